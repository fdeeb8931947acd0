"""Programs write into tensors of a call what the network would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.served import kind_of
from tpgen.networks.served import serve

pytestmark = pytest.mark.usefixtures("interpreted", "float64")


class Marks(nn.Module):
    """Reads a tensor, writes into a column as SEGNN does, and reads the tensor again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor, attributes: Tensor) -> Tensor:
        hidden = self.first(x * attributes.clone()).sin()
        self.write(attributes)
        return self.last(hidden * attributes[:, :1].exp()) + attributes.sum(1, keepdim=True)

    def write(self, attributes: Tensor) -> None:
        attributes[:, 0] = 1.0


class Adds(Marks):
    def write(self, attributes: Tensor) -> None:
        attributes += 0.5


class Resizes(Marks):
    def write(self, attributes: Tensor) -> None:
        attributes.view(-1)[::2].mul_(2)


KINDS = pytest.mark.parametrize("kind", [Marks, Adds, Resizes])


def inputs(rows: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3), torch.randn(rows, 3)


def differentiate(network: nn.Module, x: Tensor, attributes: Tensor, create_graph: bool = False) -> list[Tensor]:
    """Result and gradients of a call, after a second call on other numbers."""
    x = x.clone().requires_grad_()
    found = network(x, attributes)
    network(x.detach() + 1, attributes.clone())
    wanted = [x, *network.parameters()]
    gradients = torch.autograd.grad(found.mul(1.5).sum(), wanted, create_graph=create_graph)
    if create_graph:
        gradients += torch.autograd.grad(gradients[0].square().sum(), wanted, allow_unused=True)
    return [found.detach(), *(g.detach() for g in gradients if g is not None), attributes]


def compare(own: nn.Module, stock: nn.Module, call: Callable[..., list[Tensor]], rows: int) -> None:
    x, attributes = inputs(rows)
    found, wanted = (call(network, x, attributes.clone()) for network in (own, stock))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def value(network: nn.Module, x: Tensor, attributes: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [network(x, attributes), network(x, attributes), attributes]


@KINDS
def test_values(kind: type[nn.Module], counted: list[int]) -> None:
    own, stock = kind(), kind()
    serve(own, "auto")
    value(own, *inputs())
    tpgen.ready(own)
    for rows in (5, 7, 2):
        compare(own, stock, value, rows)
    assert len(counted) == 6, kind_of(own).refused


@KINDS
@pytest.mark.parametrize("again", [False, True])
def test_gradients(kind: type[nn.Module], again: bool, counted: list[int], recomputed: list[int]) -> None:
    own, stock = kind(), kind()
    serve(own, "auto")

    def call(network: nn.Module, *given: Tensor) -> list[Tensor]:
        return differentiate(network, *given, create_graph=again)

    call(own, *inputs())
    tpgen.ready(own)
    for rows in (5, 7):
        compare(own, stock, call, rows)
    assert len(counted) == 4
    assert not recomputed


@KINDS
def test_gradients_by_the_network(kind: type[nn.Module], counted: list[int], recomputed: list[int]) -> None:
    """Whoever differentiates calls of a program without gradients gets them of the tensors before the call."""
    own, stock = kind(), kind()
    serve(own, "auto")
    x, attributes = inputs()
    own(x.requires_grad_(), attributes)
    tpgen.ready(own)
    compare(own, stock, differentiate, 6)
    assert counted
    assert recomputed


def test_a_build_leaves_tensors_of_calls() -> None:
    own = Adds()
    serve(own, "auto")
    x, attributes = inputs()
    before = attributes.clone()
    with torch.no_grad():
        own(x, attributes)
        tpgen.ready(own)
        torch.testing.assert_close(attributes, before + 0.5)
        writes = attributes._version
        own(x, attributes)
        torch.testing.assert_close(attributes, before + 1)
    assert attributes._version > writes


def test_inference_tensors_and_steps() -> None:
    own, step, stock = Adds(), tpgen.compile_step(Adds()), Adds()
    serve(own, True)
    with torch.inference_mode():
        for _ in range(3):
            x, attributes = inputs()
            one, two, three = attributes.clone(), attributes.clone(), attributes.clone()
            wanted = stock(x, three)
            torch.testing.assert_close((own(x, one), one), (wanted, three))
            torch.testing.assert_close((step(x, two), two), (wanted, three))


def test_shared_memory_is_the_networks(counted: list[int]) -> None:
    own, stock = Marks(), Marks()
    serve(own, "auto")
    with torch.no_grad():
        own(*inputs())
        tpgen.ready(own)
        for network in (own, stock):
            torch.manual_seed(1)
            both = torch.randn(5, 4)
            found = network(both[:, :3], both[:, 1:]), both
            if network is own:
                held = found
    torch.testing.assert_close(held, found)
    assert not counted


class Marked(Marks):
    """Writes numbers that have a gradient, or into a tensor that has one."""

    def write(self, attributes: Tensor) -> None:
        attributes[:, 0] = self.last.bias


def test_gradients_of_written_numbers_are_the_networks(counted: list[int]) -> None:
    own, stock = Marked(), Marked()
    serve(own, True)
    for network in (own, stock):
        torch.manual_seed(1)
        found: list[Any] = []
        for _ in range(2):
            x, attributes = inputs()
            result = network(x, attributes)
            found += [result, torch.autograd.grad(result.sum() + attributes.sum(), network.last.bias)]
        if network is own:
            held = found
    torch.testing.assert_close(held, found)
    assert not counted
    assert "has a gradient" in kind_of(own).refused
