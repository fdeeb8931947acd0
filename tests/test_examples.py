"""The examples run: scripts as a user runs them, notebooks cell by cell, with the outputs that they show.

``--accept-golden`` writes the outputs of notebooks anew.  Of those that measure or train, all but the numbers counts.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.notebooks import CLIENTS, run_cell, run_notebook, structure, write_notebook
from tpgen.base._e3nn import default_dtype

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "docs" / "examples"
# What a script prints last: its own verdict.
LAST = {"message_passing.py": "turns with its input: True", "convert_network.py": "restored: True"}
ELSEWHERE = {"train_potential.py", "alloy_potential.py"}  # tests/examples runs them
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
MEASURED = {*CLIENTS, "new_layer.ipynb"}  # tests/clients runs the first
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.mark.parametrize("name", LAST)
def test_scripts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert printed.getvalue().splitlines()[-1] == LAST[name]


@pytest.mark.parametrize("notebook", [n for n in NOTEBOOKS if n.name not in MEASURED], ids=lambda path: path.name)
def test_notebooks(notebook: Path, pytestconfig: pytest.Config) -> None:
    check_notebook(notebook, pytestconfig.getoption("--accept-golden"), outputs)


@pytest.mark.slow
def test_a_notebook_that_trains(pytestconfig: pytest.Config) -> None:
    with default_dtype(torch.get_default_dtype()):  # which the notebook sets
        check_notebook(EXAMPLES / "new_layer.ipynb", pytestconfig.getoption("--accept-golden"), structure)


def check_notebook(notebook: Path, accept: bool, compared: Callable[[Any], Any]) -> None:
    shown, found = json.loads(notebook.read_text(encoding="utf-8")), run_notebook(notebook)
    if accept and compared(shown) != compared(found):
        write_notebook(found, notebook)
    else:
        assert compared(shown) == compared(found)


def outputs(document: Any) -> list[Any]:
    return [cell["outputs"] for cell in document["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_what_a_notebook_shows_is_of_no_machine(notebook: Path) -> None:
    shown = outputs(json.loads(notebook.read_text(encoding="utf-8")))
    assert all(shown[-1:]), "python -m benchmarks.notebooks"
    text = "".join(
        str(output.get("text", output.get("data", {}).get("text/plain"))) for cell in shown for output in cell
    )
    assert not re.search(r"/(home|root|tmp|work|usr|opt)/|https?://", text)


def test_what_differs_between_machines_is_numbers_and_pictures() -> None:
    cell = {"cell_type": "code", "source": ["print('loss 0.25 of 8x0e')\n", "figure"]}

    class Figure:
        def savefig(self, drawn: Any, **options: Any) -> None:
            drawn.write(b"drawn")

    said = structure({"cells": [{**cell, "outputs": run_cell(cell, {"figure": Figure()})}]})
    assert said[0][0] == {"text": "loss # of 8x0e"}
    assert said[0][1]["image/png"] == ""


def test_every_example_is_run_and_named() -> None:
    assert {script.name for script in SCRIPTS} == {*LAST, *ELSEWHERE}
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert all(f"(examples/{path.name})" in page for path in (*SCRIPTS, *NOTEBOOKS))
