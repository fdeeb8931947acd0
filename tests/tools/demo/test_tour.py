"""A short tour writes everything that its index links to; a tour that finds a fault says so."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tpgen.base.errors import TpgenError
from tpgen.tools.demo import tour

TINY = replace(tour.SHORT, contenders=("tpgen-einsum/eager",), seconds=0.0, steps=2)


def run(folder: Path, **changes: object) -> str:
    text = io.StringIO()
    tour.run_tour(folder, replace(TINY, **changes), Console(file=text, width=120))
    return text.getvalue()


def test_a_short_tour_writes_what_its_index_links_to(tmp_path: Path) -> None:
    said = run(tmp_path / "new" / "demo")
    index = (tmp_path / "new" / "demo" / "index.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", index)
    assert len(links) > 20
    assert [link for link in links if not (tmp_path / "new" / "demo" / link).is_file()] == []
    assert "index.md" in said
    for number, title in enumerate(tour.STEPS, start=1):
        assert f"{number}/{len(tour.STEPS)}  {title}" in said
        assert f"## {title}" in index


def test_a_tour_that_finds_a_fault_says_so_and_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tour, "STEPS", {"Train": tour.train_tetris})
    with pytest.raises(TpgenError, match="the tour found what should not be: e3nn did not learn tetris in 2 steps"):
        run(tmp_path, must_solve=True)
    assert (tmp_path / "index.md").is_file()
    assert (tmp_path / "tetris.png").stat().st_size > 0


def test_the_main_work_comes_first_and_the_rest_is_named(tmp_path: Path) -> None:
    assert [*tour.STEPS][: len(tour.MAIN)] == [*tour.MAIN]
    said = run(tmp_path, parts=tour.MAIN)
    assert "13 modules compute with tpgen, 0 stay" in said
    assert "in float64, stock and converted are equal" in said
    assert "`tpgen demo --all` shows the rest" in said
    assert "## Deploy" not in (tmp_path / "index.md").read_text()
