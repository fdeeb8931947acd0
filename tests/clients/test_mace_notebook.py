"""The notebook that makes a MACE faster."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.notebooks import FOLDER, run_notebook, structure


def test_it_puts_out_what_it_shows() -> None:
    """But for its numbers; in a process of its own, as MACE prints a line at its first import."""
    notebook = FOLDER / "faster_mace.ipynb"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        found = fresh.submit(run_notebook, notebook).result()
    assert structure(found) == structure(json.loads(notebook.read_text(encoding="utf-8")))
