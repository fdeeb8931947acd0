"""Networks that are not tpgen's own: frames, what cannot be compared, converted ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.tools.verification.potentials import Pairs, inputs
from tpgen.base._torch import pytree
from tpgen.tools.verification.verify import verify


class Readout(nn.Module):
    """Vectors of nodes to a scalar and a vector, and a list of edges."""

    def forward(self, data: dict[str, Tensor], edges: Tensor) -> tuple[Tensor, Tensor]:
        messages = data["v"][edges[0]]
        summed = torch.zeros_like(data["v"]).index_add(0, edges[1], messages)
        return summed.square().sum(), summed


def test_frames_are_given_by_name_or_in_order() -> None:
    given = ({"v": torch.randn(4, 3, dtype=torch.float64)}, torch.tensor([[0, 1, 2], [1, 2, 3]]))
    for irreps_in, irreps_out in ((["1o"], ["0e", "1o"]), ({"v": "1o"}, {"[1]": "1o"})):
        report = verify(Readout(), given, irreps_in=irreps_in, irreps_out=irreps_out, only=["equivariant"])
        assert report.passed, str(report)
    assert verify(Readout(), given, irreps_in=["1o"], irreps_out=["0e", None], only=["equivariant"]).failed


@dataclass(frozen=True)
class Atoms:
    positions: Tensor
    charges: Tensor
    label: str = "atoms"


@dataclass
class Found:
    energy: Tensor
    forces: Tensor
    more: dict[str, Tensor]


@dataclass
class Registered(Found):
    pass


class Listed(NamedTuple):
    energy: Tensor
    forces: Tensor
    more: dict[str, Tensor]


pytree.register_pytree_node(
    Registered,
    lambda x: ([x.energy, x.forces, x.more], None),
    lambda values, _: Registered(*values),
    flatten_with_keys_fn=lambda x: (
        [(pytree.GetAttrKey(n), getattr(x, n)) for n in ("energy", "forces", "more")],
        None,
    ),
)


class OfFields(Pairs):
    """A potential of a dataclass, whose results are fields."""

    def __init__(self, kind: Callable[..., Any], sign: float = 1.0) -> None:
        super().__init__()
        self.kind, self.sign = kind, sign

    def forward(self, atoms: Atoms) -> Any:  # type: ignore[override]
        found = super().forward(atoms.positions, atoms.charges)
        return self.kind(found["energy"], self.sign * found["forces"], {"charges": atoms.charges})


@pytest.mark.parametrize("kind", [Found, Registered, Listed])
def test_fields_are_known_by_their_names(kind: Callable[..., Any]) -> None:
    given, said = (Atoms(*inputs()),), {"irreps_out": {"charges": None}}
    laws = ["forces", "translation", "equivariant", "surroundings"]
    report = verify(OfFields(kind).double(), given, only=laws, **said)
    assert report.passed, str(report)
    assert report.settings == "atoms['positions']: points; forces: 1x1o"
    assert verify(OfFields(kind, -1.0).double(), given, only=laws, **said).failed == ("forces",)


class Remembers(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + 0.1 * self.calls)


def test_rows_that_may_follow_from_what_a_network_remembers_are_said_to() -> None:
    remark = "history is broken: other rows may follow from it"
    given, said = (torch.randn(4, 3),), {"irreps_in": ["1o"], "irreps_out": ["1o"]}
    assert remark in str(verify(Remembers(), given, **said, only=["equivariant", "history"]))
    assert remark not in str(verify(Remembers(), given, **said, only=["history"]))


def test_a_network_that_takes_gradients_itself_is_said_to() -> None:
    class Itself(Pairs):
        def forward(self, positions, charges):
            x = positions.detach().requires_grad_()
            energy = self.energy(x, charges)
            return {"energy": energy, "forces": -torch.autograd.grad(energy, x)[0]}

    report = verify(Itself().double(), inputs(), only=["history"])
    assert "the network takes gradients itself" in report.finding("history", "without gradients").why


class Does(nn.Module):
    def __init__(self, does) -> None:
        super().__init__()
        self.does, self.calls = does, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.does(self, x)


def _fails_later(module: Does, x: Tensor) -> Tensor:
    if module.calls > 3:
        raise ValueError("the fourth call")
    return x


VACUOUS = {
    "no such law": (lambda s, x: x, ["e3nn"]),
    "none asked": (lambda s, x: x, []),
    "not converted": (lambda s, x: x, ["stock"]),
    "no rows": (lambda s, x: x[:0], ["equivariant"]),
    "detached": (lambda s, x: x.detach(), ["first order", "Hessian"]),
}


@pytest.mark.parametrize("case", VACUOUS)
def test_where_nothing_was_compared_nothing_has_passed(case: str) -> None:
    does, only = VACUOUS[case]
    report = verify(Does(does), (torch.randn(4, 3),), irreps_in=["1o"], irreps_out=["1o"], only=only)
    assert not report.passed
    assert not report.failed
    assert "nothing was compared" in str(report)


def test_what_was_not_compared_is_named() -> None:
    report = verify(Does(lambda s, x: x.detach()), (torch.randn(4, 3),), irreps_in=["1o"], irreps_out=["1o"])
    assert report.passed
    assert "every law that was compared holds; not compared: translation, edges" in str(report)
    assert report.finding("translation").why == "no input is said to be points"
    assert report.finding("first order").why == "nothing of the results can be differentiated"


@pytest.mark.parametrize(
    "law, why", [("first order", "can be differentiated"), ("e3nn", "no law of a network"), ("stock", "no law of")]
)
def test_what_was_asked_for_and_not_compared_has_not_passed(law: str, why: str) -> None:
    detached = Does(lambda s, x: x.detach())
    report = verify(detached, (torch.randn(4, 3),), irreps_in=["1o"], irreps_out=["1o"], only=["equivariant", law])
    assert not report.passed
    assert not report.failed
    assert f"every law that was compared holds; not compared, and so not passed: {law}" in str(report)
    assert why in report.finding(law).why


def test_a_network_that_raises_breaks_a_law() -> None:
    given = (torch.randn(4, 3),)
    report = verify(Does(_fails_later), given, irreps_in=["1o"], irreps_out=["1o"], only=["equivariant", "repeated"])
    assert "repeated" in report.failed
    assert report.finding("repeated").why == "ValueError: the fourth call"


def test_the_law_of_conversions_alone() -> None:
    from e3nn import o3

    network = tpgen.convert(nn.Sequential(o3.Linear("2x0e+1o", "0e")))
    report = verify(network, (torch.randn(3, 5),), irreps_in=["2x0e+1o"], irreps_out=["0e"], only=["stock"])
    assert report.passed
    assert {f.law for f in report.findings} == {"stock"}


def test_a_converted_network_is_compared_with_the_stock_one() -> None:
    from e3nn import o3

    torch.manual_seed(0)
    network = tpgen.convert(nn.Sequential(o3.Linear("2x0e+1o", "3x0e+2x1o"), o3.Linear("3x0e+2x1o", "0e")))
    report = verify(network, (torch.randn(3, 5),), irreps_in=["2x0e+1o"], irreps_out=["0e"])
    assert report.passed, str(report)
    assert report.finding("stock", "second derivatives").status == "passed"


def test_what_cannot_be_compared_says_why() -> None:
    class Frees(Pairs):
        def forward(self, positions, charges):
            positions = positions.detach().requires_grad_() if not positions.requires_grad else positions
            energy = self.energy(positions, charges)
            return {"energy": energy, "forces": -torch.autograd.grad(energy, positions)[0]}

    report = verify(Frees().double(), inputs(), only=["first order"])
    assert "the network frees its graph: give it in the mode" in report.finding("first order").why
