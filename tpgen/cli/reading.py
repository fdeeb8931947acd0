"""Generated text as it reads best: on a terminal with colours and without what is the same everywhere."""

from __future__ import annotations

import os
import re
import sys

import pygments
from pygments.formatters import TerminalFormatter
from pygments.lexers import get_lexer_for_filename

# from the first line of code to the first function that is generated: see tpgen.kernels.cpp.prelude
_PRELUDE = re.compile(
    r'^typedef .*?(?=^(?:// path |static void (?:tabulate|row|tile|finish|path_)|extern "C" __attr))', re.M | re.S
)


def for_reading(name: str, text: str, whole: bool = False) -> str:
    """The text of a file for whoever reads it: as it is, unless a terminal does.

    Colours are left out where NO_COLOR is set.
    """
    if not sys.stdout.isatty():
        return text
    shown = text if whole or not name.endswith(".cpp") else without_prelude(text)
    return shown if os.environ.get("NO_COLOR") else coloured(name, shown)


def without_prelude(text: str) -> str:
    """Generated C++ without the constant text in its front.

    >>> print(without_prelude("// channel schedule\\ntypedef float real;\\nint a;\\n// path 0\\nb();"))
    // channel schedule
    // ... 2 lines of prelude, the same for every kernel: --whole shows them
    // path 0
    b();
    """
    found = _PRELUDE.search(text)
    if found is None:
        return text
    count = found[0].count("\n")
    note = f"// ... {count} lines of prelude, the same for every kernel: --whole shows them\n"
    return text[: found.start()] + note + text[found.end() :]


def coloured(name: str, text: str) -> str:
    """The text with the colours of a terminal, by the ending of its file.

    >>> "\\x1b[" in coloured("a.py", "return 1"), coloured("a.txt", "return 1")
    (True, 'return 1')
    """
    return pygments.highlight(text, get_lexer_for_filename(name), TerminalFormatter()).rstrip("\n")
