"""What a report on a network says beside its findings, and what is asked of it otherwise."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from tests.tools.verification import clusters
from tests.tools.verification.crystals import Crystal, crystal
from tests.tools.verification.lattices import AWKWARD, Lattice, triclinic
from tests.tools.verification.molecules import CUTOFF
from tests.tools.verification.newcomers import DROPPED, NOISY, ORDERED, _pushed
from tests.tools.verification.planted import Planted
from tests.tools.verification.strangers import VECTORS, rows
from tests.tools.verification.suspicious import Cluster, cluster, of
from tpgen.base.errors import InputError
from tpgen.tools.verification import runs
from tpgen.tools.verification.findings import NOT_COMPARED
from tpgen.tools.verification.history import make_graphs_with_last_atom_beyond_and_within_cutoff
from tpgen.tools.verification.networks import build_tested_network
from tpgen.tools.verification.verify import verify


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_right_potential_has_passed(dtype: torch.dtype) -> None:
    report = verify(Crystal().to(dtype), crystal(dtype=dtype))
    assert report.passed, str(report)
    assert "no law sees whether a network predicts what it should: another table of species" in str(report)
    why = report.finding("compiled", "gradients").why
    assert "gives none, or wrong ones, of a function that takes gradients itself, without tpgen too" in why


def test_every_law_of_networks_is_compared() -> None:
    report = verify(Lattice().double(), triclinic())
    assert report.passed
    assert report.not_compared == ()
    assert report.settings.endswith("unit_shifts: counts of cells")


def test_a_law_that_does_not_apply_says_why() -> None:
    network, given = AWKWARD["no cell"].made().double(), AWKWARD["no cell"].given()
    report = verify(network, given, only=["images", "basis", "batch", "stress", "sum"])
    found = {f.law: f.why for f in report.findings if f.status == NOT_COMPARED}
    assert found == {
        "images": "no cell with a volume, and images of edges in it, is among the inputs",
        "basis": "no cell that repeats along two vectors is among the inputs",
        "batch": "no tensor named batch says which graph an atom is in",
        "stress": "no result is known to be the stress or virial",
        "sum": "no result is known to be the energies of atoms",
    }
    assert not report.passed


def test_the_report_says_what_is_unseen_and_in_which_mode() -> None:
    report = verify(AWKWARD["in evaluation"].made().double().eval(), triclinic(), only=["forces", "parameters"])
    assert "another mode than evaluation, in which it was given" in str(report)
    assert "can be differentiated" in report.finding("parameters").why


class Relu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


def test_where_nothing_was_said_to_turn_nothing_has_passed() -> None:
    report = verify(Relu(), (torch.randn(4, 3),))
    assert not report.passed
    assert not report.failed
    assert "every law that was compared holds; not compared, and so not passed: equivariant" in str(report)
    assert "inputs undeclared: say how they turn" in report.finding("equivariant").why
    assert verify(Relu(), (torch.randn(4, 3),), irreps_in=[None], irreps_out=[None]).passed


@pytest.mark.parametrize(
    "network, given, said, message",
    [
        (Relu, rows, {"irreps_in": ["4x1o"]}, r"say how 'out' turns, as inputs do: irreps_out=\{'out': '1o'\}"),
        (Cluster, cluster, {"irreps_in": {"src": "indices_of_atom"}}, "unknown index 'indices_of_atom'"),
        (Cluster, cluster, {"without": "compield"}, "unknown law 'compield': did you mean 'compiled'"),
        (
            of(told=lambda self, e, f: (e, f)),
            cluster,
            {"irreps_out": ["energy", "energy"]},
            "one result is the energy, got 2",
        ),
    ],
)
def test_what_cannot_be_said_is_an_error(network: type[nn.Module], given, said: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        verify(network().double(), given(), **said)


def test_forces_that_nobody_can_tell_are_no_pass() -> None:
    report = verify(of(told=_pushed)().double(), cluster(), **ORDERED, without=["compiled", "smooth", "conservation"])
    assert "not compared, and so not passed: forces" in report.verdict or "forces" not in report.failed
    assert not report.passed


def test_a_random_network_is_told_once() -> None:
    laws = ["equivariant", "permutation", "first order", "Hessian", "parameters", "memory", "history", "repeated"]
    assert Planted(laws, NOISY, rows, said=VECTORS).verified().failed == ("repeated",)
    assert Planted(laws, DROPPED, rows, said=VECTORS).verified().passed


def test_laws_are_left_out() -> None:
    report = verify(Cluster().double(), cluster(), only=["forces", "translation"], without="forces")
    assert {finding.law for finding in report.findings} == {"translation"}


def test_nothing_is_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verify(Cluster().double(), cluster(), only=["permutation", "edges"])


def test_zeros_of_the_network_stay_and_are_told_of_a_failure_alone() -> None:
    network = clusters.DARK().double()
    before = [p.detach().clone() for p in network.parameters()]
    assert verify(network, clusters.cluster(), only=["equivariant"]).failed == ("equivariant",)
    assert all(torch.equal(p, x) for p, x in zip(network.parameters(), before, strict=True))
    report = verify(clusters.Silent().double(), clusters.cluster(), only=["equivariant"])
    assert {f.why for f in report.findings if f.part.startswith("behind zeros")} == {""}


def test_an_atom_comes_from_beyond_the_cutoff() -> None:
    moved = make_graphs_with_last_atom_beyond_and_within_cutoff(
        build_tested_network(clusters.Cluster().double(), clusters.cluster())
    )
    far, near = ([torch.cdist(g.points[-1:], g.points[:-1]).min() for g in graphs] for graphs in moved)
    assert all(CUTOFF + 0.3 < r < 2 * CUTOFF for r in far)
    assert all(0.7 * CUTOFF < r < CUTOFF for r in near)


def _fails_in_torch(*given: object) -> None:
    torch.nn.functional.softmax(torch.ones(3), dim=9)


def _fails_itself(*given: object) -> None:
    raise RuntimeError("its own")


@pytest.mark.parametrize("run, failed", [(_fails_in_torch, ()), (_fails_itself, ("compiled",))])
def test_what_torch_cannot_compile_is_told(run, failed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "compile_program", lambda *given: run)
    report = verify(Lattice(), triclinic(), only=["compiled"])
    assert report.failed == failed, str(report)
    assert not report.passed
    assert failed or "torch cannot compile it: IndexError: Dimension out of range" in report.finding("compiled").why
