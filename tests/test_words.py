"""Docstrings stand alone: in a hover or on an API page nobody sees what stands before them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tpgen"
RIDDLE = re.compile(r"(What|Of|Those|The same|How|Which|Where)\b")
# Words that point at something outside of a docstring, in its first sentence.
_THINGS = "name|kind|dtype|table|option|slot|argument|input|call|tensor|operand|weight|type|index|indices|result"
POINTER = re.compile(rf"\bsuch (?!as\b)|\b(of|by|with|for|in|from|at) (that|those|these) ({_THINGS})s?\b")


def riddles(file: Path) -> Iterator[str]:
    """Yield the docstrings of a file that begin as the rest of a sentence, or point outside, each after its line."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        text = (ast.get_docstring(node) or "") if isinstance(node, kinds) else ""
        first = re.split(r"(?<=[.:;])\s", " ".join(text.split()))[0]
        if RIDDLE.match(text) or POINTER.search(first):
            yield f"{file}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_docstrings_begin_with_a_verb_or_a_noun(file: Path) -> None:
    assert [*riddles(file)] == []


def test_a_riddle_is_found(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        '"""Howling."""\n\ndef f():\n    """The same on a device."""\n\nclass C:\n    """Of all warps."""\n'
        'def g():\n    """The call of such tensors."""\n\ndef h():\n    """The problem of that name, or none."""\n'
    )
    assert {found.rpartition(": ")[2] for found in riddles(file)} == {
        *("Of all warps.", "The same on a device."),
        *("The call of such tensors.", "The problem of that name, or none."),
    }
