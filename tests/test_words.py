"""Docstrings stand alone: in a hover or on an API page nobody sees what stands before them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tpgen"
RIDDLE = re.compile(r"(What|Of|Those|The same|How|Which|Where)\b")


def riddles(file: Path) -> Iterator[str]:
    """Yield the docstrings of a file that begin as the rest of a sentence, each after its line."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, kinds) and RIDDLE.match(text := ast.get_docstring(node) or ""):
            yield f"{file}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_docstrings_begin_with_a_verb_or_a_noun(file: Path) -> None:
    assert [*riddles(file)] == []


def test_a_riddle_is_found(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        '"""Howling."""\n\ndef f():\n    """The same on a device."""\n\nclass C:\n    """Of all warps."""\n'
    )
    assert {found.rpartition(": ")[2] for found in riddles(file)} == {"Of all warps.", "The same on a device."}
