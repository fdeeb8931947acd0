"""The picture of stock and converted networks over the number of atoms, and the figures that it is drawn from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import network_picture
from benchmarks.network_picture import CONVERTED, FIGURES, PROGRAM, STOCK, curves, draw_networks
from benchmarks.network_sizes import ATOMS, ONCE, SIZES_SHOWN, STEPS, in_turn, measure
from benchmarks.networks import SIZES


def test_what_is_shown_is_a_size_that_there_is() -> None:
    assert all(size in SIZES[project] for project, size in SIZES_SHOWN.items())
    assert set(network_picture.NAMES) == set(SIZES_SHOWN)


def test_calls_take_turns_and_stock_has_one_where_it_takes_long() -> None:
    said: list[str] = []
    calls = {mode: (lambda mode=mode: said.append(mode)) for mode in (STOCK, CONVERTED)}
    found = in_turn(calls, 0, once=False)
    assert {mode: len(times) for mode, times in found.items()} == {STOCK: 2, CONVERTED: 2}
    assert said[4:] == 2 * (STEPS * [STOCK] + STEPS * [CONVERTED])
    said.clear()
    assert {mode: len(times) for mode, times in in_turn(calls, 0, once=True).items()} == {STOCK: 1, CONVERTED: 2}
    assert said.count(STOCK) == 1


def test_the_picture_is_drawn_from_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"project": project, "atoms": atoms, "mode": mode, "seconds": seconds * atoms}
        for project in SIZES_SHOWN
        for atoms in reversed(ATOMS)
        for mode, seconds in ((STOCK, 8.0), (CONVERTED, 2.0), (PROGRAM, 1.0))
    ]
    file = tmp_path / "figures.json"
    file.write_text(json.dumps({"machine": "here", "dtype": "float32", "once above": ONCE, "rows": rows}))
    monkeypatch.setattr(network_picture, "FIGURES", file)
    assert [*curves("mace")[PROGRAM]] == [*ATOMS]
    draw_networks(tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 10_000


def test_without_the_projects_nothing_is_measured_and_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(tmp_path, 0) is None
    assert "mace IS NOT MEASURED" in capsys.readouterr().err


def test_the_figures_say_of_what_they_are() -> None:
    found = json.loads(FIGURES.read_text())
    assert {"machine", "versions", "task", "dtype", "threads"} <= set(found)
    assert found["once above"] == ONCE
    assert all(row["seconds"] > 0 for row in found["rows"])
