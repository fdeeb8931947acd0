"""What is right passes, and all is compared that can be; faults like it are caught by their law."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.tools.verification.lattices import Lattice, triclinic
from tests.tools.verification.messages import TURNS, Messages, skewed
from tests.tools.verification.suspicious import FAULTS, LACKS, RIGHT, Cluster, Swapped, angles, cluster, matrix
from tpgen.base.errors import InputError
from tpgen.tools.verification.verify import LAWS, Verification, verify

OF_PRODUCTS = ("definition", "e3nn", "right", "linear", "degree", "normalisation")
QUICK = [law for law in LAWS if law not in (*OF_PRODUCTS, "compiled")]  # which takes longer than all the rest


def verified(name: str) -> Verification:
    case = RIGHT[name]
    only = [law for law in QUICK if law not in (*LACKS, *case.without)]
    only += ["batch"] if "batch" in name else []
    of_networks = [
        law for law in only if law not in ("definition", "e3nn", "right", "linear", "degree", "normalisation")
    ]
    return verify(case.made().double().train(case.training), case.given(), only=of_networks, **case.said)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes_all_that_can_be_compared(name: str) -> None:
    report = verified(name)
    assert report.passed, str(report)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_by_its_law(name: str) -> None:
    law, made, given = FAULTS[name]
    report = verify(made().double(), given(), only=[law])
    assert report.failed == (law,), str(report)


def test_edges_that_are_taken_for_atoms_are_caught() -> None:
    """No reading of the integers is obeyed, and they reach to the last edge."""
    report = verify(Swapped().double(), angles(), only=["permutation", "edges"])
    assert report.failed == ("permutation", "edges"), str(report)
    assert "one: indices of edges" in report.settings


class Vectors(Lattice):
    """A periodic potential whose edges are two vectors."""

    def forward(self, positions, cell, i, j, unit_shifts, species, batch):
        return super().forward(positions, cell, torch.stack([i, j]), unit_shifts, species, batch)


def test_every_law_of_a_cell_is_compared_with_two_vectors() -> None:
    positions, cell, ends, *rest = triclinic()
    report = verify(
        Vectors().double(), (positions, cell, *ends, *rest), only=["images", "basis", "copies", "stress", "batch"]
    )
    assert report.passed, str(report)
    assert "i, j: ends of edges" in report.settings


def test_the_report_says_that_positions_are_detached() -> None:
    report = verified("positions that are detached")
    assert "the network detaches positions, by its own choice" in report.finding("first order", "positions").why
    assert report.finding("second order", "positions").status == "passed"


def test_squares_of_e3nn_are_saved() -> None:
    torch.manual_seed(0)
    report = verify(Messages(), skewed(), only=["saved"], **TURNS)
    assert report.finding("saved", "state_dict, energy").status == "passed"


class Flat(Cluster):
    """Pairs as one number each, which no reading takes for an index."""

    def forward(self, positions: Tensor, z: Tensor, both: Tensor) -> dict[str, Tensor]:
        return self.of(positions, z, both // len(z), both % len(z))


def test_an_index_of_no_known_kind_is_not_compared_and_can_be_named() -> None:
    x, z, src, dst = cluster()
    given = (x, z, src * len(x) + dst)
    report = verify(Flat().double(), given, only=["permutation"])
    assert "say irreps_in={'both': 'indices_of_atoms'}" in report.finding("permutation").why
    assert not report.failed
    report = verify(Flat().double(), given, irreps_in={"both": None}, only=["permutation"])
    assert report.failed == ("permutation",)
    with pytest.raises(InputError, match="unknown index 'indices_of_atom'"):
        verify(Cluster().double(), (x, z, src, dst), irreps_in={"src": "indices_of_atom"})


def test_what_is_said_of_integers_goes_before() -> None:
    said = {"around": "indices_of_atoms", "z": None}
    report = verify(
        RIGHT["neighbours in rows, filled with -1"].made().double(), matrix(-1), irreps_in=said, only=["edges"]
    )
    assert report.passed, str(report)
