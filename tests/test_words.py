"""Words of docstrings, measured: the limits may only fall.

A docstring of a private function says what its name already says; a pronoun points at a noun that a reader of one
docstring has not seen.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from doctest import DocTestParser
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tpgen"
MOST_WORDS = 32_000
MOST_PRIVATE = 0.06  # share of private functions that have a docstring
# The most of each group in a thousand words.
MOST_OF = {("it", "they", "them"): 2.0, ("what",): 1.0, ("where",): 1.0, ("stand", "stands", "stood"): 0.0}
_DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


def nodes(package: Path) -> Iterator[ast.AST]:
    for file in sorted(package.rglob("*.py")):
        yield from ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def words(package: Path) -> list[str]:
    """Words of all docstrings, without examples."""
    texts = [ast.get_docstring(node) or "" for node in nodes(package) if isinstance(node, _DOCUMENTED)]
    prose = (part for text in texts for part in DocTestParser().parse(text) if isinstance(part, str))
    return re.findall(r"[a-z']+", "\n".join(prose).lower())


def documented(package: Path) -> float:
    """Share of private functions that have a docstring."""
    functions = [node for node in nodes(package) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    private = [f for f in functions if f.name.startswith("_") and not f.name.endswith("__")]
    return sum(ast.get_docstring(f) is not None for f in private) / len(private)


def test_docstrings_grow_no_longer() -> None:
    assert len(words(PACKAGE)) <= MOST_WORDS


@pytest.mark.parametrize("group", MOST_OF, ids="-".join)
def test_few_words_point_elsewhere(group: tuple[str, ...]) -> None:
    found = words(PACKAGE)
    count = Counter(found)
    assert 1000 * sum(count[word] for word in group) / len(found) <= MOST_OF[group]


def test_private_functions_speak_by_their_names() -> None:
    assert documented(PACKAGE) <= MOST_PRIVATE


def test_words_are_counted(tmp_path: Path) -> None:
    text = '"""It stands."""\ndef _f():\n    """What\n\n    >>> it\n    they\n    """\ndef _g(): pass\n'
    (tmp_path / "file.py").write_text(text)
    assert words(tmp_path) == ["it", "stands", "what"]
    assert documented(tmp_path) == 0.5
