"""The record of attacks, and the page that shows it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.attacks import counts


def test_the_page_shows_the_record() -> None:
    assert counts.table() + "\n\n" in counts.PAGE.read_text()


def test_runs_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(counts, "PAGE", tmp_path / "page.md")
    counts.PAGE.write_text(f"before\n\n{counts.HEAD}\n|---|---:|---:|\n| x | 1 | 1 |\n\nafter\n")
    monkeypatch.setattr(counts, "compared", Counter())
    counts.count("products, kernel", 10)
    counts.count("products, einsum", 0)
    for seed in (3, 2, 3):
        monkeypatch.setattr(counts, "SEED", seed)
        counts._add(counts.compared)
    shown = f"before\n\n{counts.HEAD}\n|---|---:|---:|\n| products | 3 | 30 |\n\nafter\n"
    assert counts.PAGE.read_text() == shown
    assert json.loads(counts.RECORD.read_text())["seeds"] == [2, 3]
