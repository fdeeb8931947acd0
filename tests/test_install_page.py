"""docs/install.md has every variable that the package reads, and every instruction set."""

from __future__ import annotations

import ast
from pathlib import Path

import tpgen
from tpgen.kernels.build.processor import SETS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
READS = {"get", "getenv", "integer_setting", "__getitem__"}


def variables() -> set[str]:
    """Names of ours in calls and subscripts that read the environment."""
    found = set()
    for file in Path(tpgen.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in READS and node.args:
                name = node.args[0]
            elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
                name = node.slice
            else:
                continue
            if isinstance(name, ast.Constant) and str(name.value).startswith("TPGEN_"):
                found.add(name.value)
    return found


def test_every_variable_has_its_row() -> None:
    assert "TPGEN_TARGET" in variables()
    rows = {line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `TPGEN_")}
    assert rows == variables()


def test_every_instruction_set_is_named() -> None:
    assert all(f"`{each.name}`" in PAGE for each in SETS)
