"""The notebook that makes a MACE faster."""

from __future__ import annotations

import json

from benchmarks.notebooks import FOLDER, run_notebook, structure


def test_it_puts_out_what_it_shows() -> None:
    """But for its numbers, which are times."""
    notebook = FOLDER / "faster_mace.ipynb"
    assert structure(run_notebook(notebook)) == structure(json.loads(notebook.read_text(encoding="utf-8")))
