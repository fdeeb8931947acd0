"""Faults of periodic potentials, each caught by its law; awkward and right ones, which no law at all accuses."""

from __future__ import annotations

import pytest
import torch

from tests.tools.verification.crystals import AWKWARD as CRYSTALS
from tests.tools.verification.crystals import crystal
from tests.tools.verification.lattices import (
    AWKWARD,
    FAULTS,
    INPUTS,
    Asking,
    Case,
    Free,
    Lattice,
    Rebuilt,
    of,
    triclinic,
)
from tests.tools.verification.messages import AWKWARD as MESSAGES
from tests.tools.verification.messages import TURNS, skewed
from tpgen.tools.verification.findings import NOT_COMPARED
from tpgen.tools.verification.verify import LAWS, Verification, verify

QUICK = [name for name in LAWS if name != "compiled"]  # which takes longer than all the rest


def verified(case: Case, only: list[str]) -> Verification:
    given = INPUTS[case.inputs]()
    if case.dtype != torch.float64:
        given = tuple(x.to(case.dtype) if x.is_floating_point() else x for x in given)
    return verify(case.made().to(case.dtype).train(case.training), given, only=only, **case.said)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught_by_its_law(fault: str) -> None:
    law, made, inputs = FAULTS[fault]
    bases = (made, Free) if inputs == "free" else (made,)
    report = verified(Case(type("Fault", bases, {}), inputs), [law])
    assert report.failed == (law,), str(report)


@pytest.mark.parametrize("name", AWKWARD)
def test_no_law_accuses_what_is_right(name: str) -> None:
    report = verified(AWKWARD[name], QUICK)
    assert not report.failed, [f for f in report.findings if f.status == "failed"]


@pytest.mark.parametrize("name", CRYSTALS)
def test_no_law_accuses_a_crystal(name: str) -> None:
    report = verify(CRYSTALS[name]().double(), crystal(), only=QUICK)
    assert not report.failed, str(report)


@pytest.mark.parametrize("name", MESSAGES)
def test_no_law_accuses_a_network_of_messages(name: str) -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        report = verify(MESSAGES[name](), skewed(), only=QUICK, **TURNS)
    finally:
        torch.set_default_dtype(torch.float32)
    assert not report.failed, str(report)


def _slowly(self, edges, ends, species):
    """Weights that decay slowly, and end nowhere."""
    return self.depth[species[ends[1]]] / (1 + edges.norm(dim=-1))


@pytest.mark.parametrize("inputs", ["triclinic", "two", "perfect"])
@pytest.mark.parametrize("ends", [True, False])
def test_a_cutoff_that_does_not_end_edges_of_a_crystal_is_told(ends: bool, inputs: str) -> None:
    report = verified(Case(Lattice if ends else of(weights=_slowly), inputs), ["smooth"])
    told = [f.why for f in report.findings if f.part == "long edges"]
    assert not report.failed
    assert told == [] if ends else "no cutoff ends them" in told[0]


def test_every_law_of_networks_is_compared() -> None:
    report = verify(Lattice().double(), triclinic())
    assert report.passed
    assert report.not_compared == ()
    assert report.settings.endswith("unit_shifts: counts of cells")


def test_a_law_that_does_not_apply_says_why() -> None:
    report = verified(AWKWARD["no cell"], ["images", "basis", "batch", "stress", "sum"])
    found = {f.law: f.why for f in report.findings if f.status == NOT_COMPARED}
    assert found == {
        "images": "no cell with a volume, and images of edges in it, is among the inputs",
        "basis": "no cell that repeats along two vectors is among the inputs",
        "batch": "no tensor named batch says which graph an atom is in",
        "stress": "no result is known to be the stress",
        "sum": "no result is known to be the energies of atoms",
    }
    assert not report.passed


def test_two_edges_of_one_atom_are_read() -> None:
    """Two ends and two edges are told apart."""
    report = verify(Lattice().double(), INPUTS["a chain"](), only=["edges", "images", "copies", "finite"])
    assert report.passed, str(report)


def test_what_may_be_meant_is_told() -> None:
    report = verify(Asking().double(), triclinic(), only=["surroundings"])
    assert "sets requires_grad of its caller's tensor" in report.finding("surroundings", "positions").why
    assert "sets requires_grad of its caller's tensor" in str(report)
    report = verify(Rebuilt().double(), triclinic(), only=["saved"])
    assert report.finding("saved", "buffers").why == "no state_dict holds mean: they must come from the constructor"


def test_the_report_says_what_is_unseen_and_in_which_mode() -> None:
    case = AWKWARD["in evaluation"]
    report = verified(case, ["forces", "parameters"])
    assert "another mode than evaluation, in which it was given" in str(report)
    assert "can be differentiated" in report.finding("parameters").why
