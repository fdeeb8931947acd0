"""The examples run: scripts as a user runs them, notebooks cell by cell, with the outputs that they show.

``--accept-golden`` writes the outputs of notebooks anew.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "docs" / "examples"
# What a script prints last: its own verdict.
LAST = {"message_passing.py": "turns with its input: True", "convert_network.py": "restored: True"}
ELSEWHERE = {"train_potential.py", "alloy_potential.py"}  # tests/examples runs them
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.mark.parametrize("name", LAST)
def test_scripts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert printed.getvalue().splitlines()[-1] == LAST[name]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks(notebook: Path, pytestconfig: pytest.Config) -> None:
    document = json.loads(notebook.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "notebook"}
    outputs = [run_cell(cell, namespace) for cell in document["cells"] if cell["cell_type"] == "code"]
    shown = [cell["outputs"] for cell in document["cells"] if cell["cell_type"] == "code"]
    if outputs != shown and pytestconfig.getoption("--accept-golden"):
        for cell, output in zip((c for c in document["cells"] if c["cell_type"] == "code"), outputs, strict=True):
            cell["outputs"] = output
        notebook.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    assert shown == outputs


def run_cell(cell: dict[str, Any], namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a cell as a notebook keeps them: what it printed, and its last expression."""
    module = ast.parse("".join(cell["source"]))
    last = module.body.pop() if isinstance(module.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(module, "cell", "exec"), namespace)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace) if last is not None else None
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"})
    return outputs


def test_every_example_is_run_and_named() -> None:
    assert {script.name for script in SCRIPTS} == {*LAST, *ELSEWHERE}
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert all(f"(examples/{path.name})" in page for path in (*SCRIPTS, *NOTEBOOKS))
