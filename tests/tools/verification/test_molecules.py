"""Faults of potentials that find their neighbours, each caught by its law; right ones, which no law accuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.tools.verification.lattices import Lists, wide
from tests.tools.verification.molecules import CUTOFF, FAULTS, RIGHT, TOLD, Molecule, molecules
from tpgen.tools.verification.findings import FAILED, NOT_COMPARED
from tpgen.tools.verification.verify import LAWS, Verification, verify

QUICK = [name for name in LAWS if name != "compiled"]


def verified(made: type, only: list[str], training: bool = False) -> Verification:
    return verify(made().train(training), molecules(), irreps_out=["energy", "forces"], only=only)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_in_a_part_of_its_law(fault: str) -> None:
    law, part, made, training = FAULTS[fault]
    found = [f.part for f in verified(made, [law], training).findings if f.status == FAILED]
    assert found
    assert all(part in one for one in found), found


@pytest.mark.parametrize("name", TOLD)
def test_what_may_be_meant_is_told(name: str) -> None:
    law, part, made = TOLD[name]
    report = verified(made, [law])
    assert not report.failed, str(report)
    assert report.finding(law, part).status == NOT_COMPARED


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_no_law_accuses_what_is_right(name: str, training: bool) -> None:
    report = verified(RIGHT[name], QUICK, training)
    assert not report.failed, [f for f in report.findings if f.status == FAILED]


class Given(Molecule):
    """Edges are given, and a cutoff ends them only where the network says so."""

    def __init__(self, ends: bool) -> None:
        super().__init__()
        self.ends = ends

    def forward(self, positions: Tensor, species: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        i, j = edge_index
        r = self.lengths(positions, i, j)
        inside = (r < CUTOFF) | (not self.ends)
        pairs = self.weigh[species[j]].sum(1) * torch.where(inside, 1 - (r / CUTOFF) ** 2, 0.0) ** 4
        return (self.alone[species].sum() + pairs.sum()).reshape(1)


@pytest.mark.parametrize("ends", [True, False])
def test_a_cutoff_that_does_not_end_given_edges_is_told(ends: bool) -> None:
    positions, species, batch = molecules()
    edges = torch.stack(Molecule().neighbours(positions, batch))
    report = verify(Given(ends), [positions, species, edges], irreps_out=["energy"], only=["smooth"])
    told = [f.why for f in report.findings if f.part == "long edges"]
    assert not report.failed
    assert ends or "no cutoff ends them" in told[0]
    assert not (ends and told)


class Open(Lists):
    """Cells along the vectors that repeat."""

    def forward(self, positions: Tensor, cell: Tensor, species: Tensor, batch: Tensor, pbc: Tensor) -> dict:  # type: ignore[override]
        self.sides = pbc
        return super().forward(positions, cell, species, batch)

    def found(self, positions: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        ends, counts = super().found(positions, cell)
        kept = ((counts == 0) | self.sides).all(1)
        return ends[:, kept], counts[kept]


class Closed(Open):
    """Cells along all vectors, whatever is said."""

    def found(self, positions: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        return Lists.found(self, positions, cell)


@pytest.mark.parametrize("made", [Open, Closed])
def test_sides_that_do_not_repeat_are_looked_at(made: type) -> None:
    report = verify(made().double(), (*wide(), torch.ones(3, dtype=torch.bool)), only=["images"])
    assert bool(report.failed) == (made is Closed), str(report)
    assert any(f.part.startswith("an open side") for f in report.findings)
