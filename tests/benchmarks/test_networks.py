"""Benchmarks of whole networks: their structures, and the page that they write."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from benchmarks import network_table
from benchmarks.network_measures import Row, line
from benchmarks.network_table import UNITS, Unit, page
from benchmarks.networks import SIZES, lattice


@pytest.mark.parametrize("atoms, sides", [(27, (3, 3, 3)), (64, (4, 4, 4)), (100, (5, 4, 5))])
def test_a_lattice_has_the_atoms_that_were_asked_for(atoms: int, sides: tuple[int, ...]) -> None:
    found = lattice(atoms, torch.float64)
    assert len(found.positions) == len(found.species) == atoms
    assert torch.equal(found.cell, torch.diag(2.5 * torch.tensor(sides, dtype=torch.float64)))
    vectors = found.positions[found.edges[1]] - found.positions[found.edges[0]] + found.shifts @ found.cell
    assert vectors.norm(dim=1).max() < 5.0


def test_every_unit_is_a_size_that_there_is() -> None:
    assert all(unit.size in SIZES[unit.project] for unit in UNITS)
    assert len({unit.file(1) for unit in UNITS}) == len(UNITS)


def test_the_page_compares_with_the_fastest_of_stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_table, "ROWS_DIR", tmp_path)
    about = {"project": "mace", "size": "128x0e+128x1o", "atoms": 512, "edges": 9, "threads": 1}
    step = {**about, "task": "training step"}
    rows = {
        Unit("mace", "128x0e+128x1o", 512): [
            Row(**step, mode="stock", seconds=6.0, ratio=1.0),
            Row(**step, mode="scripted", seconds=4.0, ratio=1.5),
            Row(**step, mode="converted", seconds=0.25, ratio=24.0),
            Row(**{**step, "task": ""}, mode="compiled", why="failed"),
        ],
        Unit("mace", "128x0e+128x1o", 512, memory=True): [
            Row(**step, mode="stock", megabytes=2000.0),
            Row(**step, mode="converted", megabytes=500.0),
        ],
    }
    assert "keeps what it has had" not in page()
    rows[Unit("mace", "128x0e+128x1o", 512, kept=True)] = [
        Row(**step, mode="stock", seconds=3.0, ratio=1.0),
        Row(**step, mode="converted", seconds=0.25, ratio=12.0),
    ]
    for unit, found in rows.items():
        unit.file(1).write_text(json.dumps([asdict(row) for row in found]))
    text = page()
    step = "16.0× | 250.0 ms | scripted 4.00 s | 6.00 s |"
    before, after = text.split("keeps what it has had")
    assert f"| MACE 128x0e+128x1o, 512 atoms | training | {step}" in before
    assert "| MACE 128x0e+128x1o, 512 atoms | training | 12.0× | 250.0 ms | 3.00 s |" in after
    assert "| MACE 128x0e+128x1o | 512 | 2,000 MB | 500 MB | 0.25 |" in text
    assert line(rows[next(iter(rows))][3]).endswith("failed")


def test_the_page_has_time_an_atom_beside_other_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_table, "ROWS_DIR", tmp_path)
    unit = Unit("mace", "128x0e, MACE-OFF's blocks", 64, engines=True, double=True)
    step = {"project": "mace", "size": unit.size, "atoms": 64, "edges": 9, "threads": 1, "task": "step"}
    times = {"stock": (0.64, 1.0), "symmetrix": (0.064, 10.0), "converted": (0.032, 20.0)}
    rows = [Row(**step, mode=mode, seconds=seconds, ratio=ratio) for mode, (seconds, ratio) in times.items()]
    unit.file(1).write_text(json.dumps([asdict(row) for row in [*rows, Row(**step, mode="spline", why="failed")]]))
    assert "| 128x0e | 64 | float64 | 10,000 | 1,000 | 500 | – | 2.0× | – |" in page()
