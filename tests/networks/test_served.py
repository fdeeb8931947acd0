"""Results of a network that has programs of its own, and their derivatives, are the network's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.served import compare, given, ready, twins
from tpgen.networks.served import serve

pytestmark = pytest.mark.usefixtures("interpreted")


def test_results_and_arguments_are_as_the_network_leaves_them(counted: list[int]) -> None:
    stock, own = twins()
    for atoms in (5, 6, 9):
        compare(stock, own, atoms)
    assert len(counted) == 2, "the first call is the network's"
    compare(stock, own, atoms=1)
    assert len(counted) == 2, "so is one of a size that the program does not hold for"


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("forces", [False, True])
def test_what_has_a_graph_has_one_still(frozen: bool, forces: bool) -> None:
    stock, own = (network.requires_grad_(not frozen) for network in twins())
    ready(own, forces=forces)
    compare(stock, own, forces=forces)


def test_derivatives_of_results_are_those_of_the_network(counted: list[int]) -> None:
    found = []
    for network in twins():
        if "_tpgen_calls" in vars(network):
            ready(network, forces=False)
        data = given(6)
        result = network(data, forces=False)
        parameters = list(network.parameters())
        (slope,) = torch.autograd.grad(result["energies"].square().sum(), data["positions"], create_graph=True)
        second = torch.autograd.grad(slope.sin().sum(), (data["positions"], *parameters), retain_graph=True)
        (moved,) = torch.autograd.grad(slope.sin().sum(), data["positions"], retain_graph=True)
        rows = torch.autograd.grad(
            slope.flatten()[:4], data["positions"], torch.eye(4, dtype=torch.float64), is_grads_batched=True
        )
        found.append([slope, *second, moved, *rows])
    assert len(counted) == 1
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_what_stock_cannot_differentiate_is_its_error() -> None:
    messages = []
    for network in twins():
        if "_tpgen_calls" in vars(network):
            ready(network)
        with pytest.raises(RuntimeError) as error:
            network(given())["energy"].backward()
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_a_source_that_is_written_to_is_an_error() -> None:
    _, own = twins()
    ready(own, forces=False)
    result = own(given(), forces=False)
    with torch.no_grad():
        own.first.weight.mul_(2)
    with pytest.raises(RuntimeError, match="has changed since it was called"):
        result["energy"].backward()


def test_a_network_that_has_changed_since_is_an_error() -> None:
    _, own = twins()
    ready(own, forces=False)
    result = own(given(), forces=False)
    own.scale = 3.0
    with pytest.raises(tpgen.TpgenError, match="Field or a tensor given to it has changed since it was called"):
        result["energy"].backward()


class Adds(nn.Module):
    """Returns the dict that it is given, with a name more and one less."""

    def forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        data["sine"] = data.pop("x").sin()
        return data


def test_a_dict_that_is_returned_is_the_one_that_was_given(counted: list[int]) -> None:
    network = Adds()
    serve(network, True)
    for size in (3, 4):
        x = torch.randn(size)
        data = {"x": x, "y": x}
        assert network(data) is data
        assert list(data) == ["y", "sine"]
        assert data["y"] is x
        torch.testing.assert_close(data["sine"], x.sin())
    assert len(counted) == 1
