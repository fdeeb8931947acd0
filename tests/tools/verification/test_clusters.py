"""Faults of clusters that a potential finds edges in are caught; what may be meant is told; what is right passes."""

from __future__ import annotations

import pytest
import torch

from tests.tools.verification.clusters import FAULTS, RIGHT, TOLD, Cluster, Dark, cluster, skin
from tests.tools.verification.molecules import CUTOFF
from tests.tools.verification.test_strangers import check_caught, check_passed, check_told
from tpgen.tools.verification.approach import departures_and_arrivals
from tpgen.tools.verification.networks import network_subject
from tpgen.tools.verification.verify import LAWS, verify

pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_by_its_law(name: str) -> None:
    check_caught(FAULTS[name])


@pytest.mark.parametrize("name", TOLD)
def test_what_may_be_meant_is_told(name: str) -> None:
    check_told(TOLD[name])


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_has_passed(name: str) -> None:
    check_passed(RIGHT[name])


def test_no_law_accuses_a_list_with_a_skin() -> None:
    report = verify(skin(torch.max)().double(), cluster(), only=[n for n in LAWS if n != "compiled"])
    assert not report.failed, str(report)


def test_zeros_of_the_network_stay() -> None:
    network = Dark().double()
    before = [p.detach().clone() for p in network.parameters()]
    assert verify(network, cluster(), only=["equivariant"]).failed == ("equivariant",)
    assert all(torch.equal(p, x) for p, x in zip(network.parameters(), before, strict=True))


def test_a_remark_on_zeros_is_of_a_failure_alone() -> None:
    report = verify(RIGHT["a silent branch"].made().double(), cluster(), only=["equivariant"])
    behind = [f for f in report.findings if f.part.startswith("behind zeros")]
    assert behind
    assert not any(f.why for f in behind)


def test_an_atom_comes_from_beyond_the_cutoff() -> None:
    departures, arrivals = departures_and_arrivals(network_subject(Cluster().double(), cluster()))
    far, near = ([torch.cdist(g.points[-1:], g.points[:-1]).min() for g in graphs] for graphs in (departures, arrivals))
    assert all(CUTOFF + 0.3 < r < 2 * CUTOFF for r in far)
    assert all(0.7 * CUTOFF < r < CUTOFF for r in near)
