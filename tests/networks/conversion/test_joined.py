"""A linear layer and a product by species as one layer, against the two of them."""

from __future__ import annotations

import pytest
import torch
from e3nn import o3
from torch import Tensor

from tests.machine import needs_compiler
from tpgen.networks.conversion.joined import JoinedLayers, join_linear_and_product
from tpgen.networks.conversion.linears import read_linear_plan
from tpgen.networks.conversion.species import make_species_product
from tpgen.nn.from_e3nn import plan_e3nn_product

pytestmark = needs_compiler
FACTOR = 0.25


class Layers:
    """Two layers of e3nn's, and what is made of both."""

    def __init__(self, irreps: str = "3x0e+2x1o+2x1o") -> None:
        torch.manual_seed(0)
        self.linear = o3.Linear(irreps, "4x0e+2x1o").double()
        self.skip = o3.FullyConnectedTensorProduct("4x0e+2x1o", "5x0e", "4x0e+2x1o").double()
        plan, product = read_linear_plan(self.linear), make_species_product(plan_e3nn_product(self.skip), {})
        assert plan is not None
        assert product is not None
        joined = join_linear_and_product(plan, product)
        assert joined is not None
        self.joined: JoinedLayers = joined

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        return self.linear.weight, self.skip.weight

    def found(self, x: Tensor, rows: Tensor) -> Tensor | None:
        return self.joined.apply_both_layers(x, *self.weights, rows, FACTOR)

    def wanted(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.skip(FACTOR * self.linear(x), rows)

    def check(self, x: Tensor, rows: Tensor) -> None:
        found = self.found(x, rows)
        assert found is not None
        torch.testing.assert_close(found, self.wanted(x, rows))


@pytest.fixture
def layers() -> Layers:
    return Layers()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of species that matrices were made for, each time."""
    seen, make = [], JoinedLayers.compute_species_matrices
    counted = lambda self, *given: seen.append(len(given[2])) or make(self, *given)  # noqa: E731
    monkeypatch.setattr(JoinedLayers, "compute_species_matrices", counted)
    return seen


def arguments(*species: int) -> tuple[Tensor, Tensor]:
    chosen = torch.tensor(species or (0, 2, 0, 4, 2, 2))
    x = torch.randn(len(chosen), 15, dtype=torch.float64, requires_grad=True)
    return x, torch.eye(5, dtype=torch.float64)[chosen]


def test_it_is_both_layers_to_third_derivatives(layers: Layers) -> None:
    x, rows = arguments()
    outs = [layers.found(x, rows), layers.wanted(x, rows)]
    for _ in range(3):
        torch.testing.assert_close(*outs)
        slopes = [torch.autograd.grad(out.sin().sum(), (x, *layers.weights), create_graph=True) for out in outs]
        for pair in zip(*slopes, strict=True):
            torch.testing.assert_close(*pair)
        outs = [torch.stack([slope.cos().sum() for slope in each]) for each in slopes]


@pytest.mark.parametrize("frozen", [0, 1])
def test_gradients_of_one_layer_alone(layers: Layers, frozen: int) -> None:
    x, rows = arguments()
    layers.weights[frozen].requires_grad_(False)
    by = layers.weights[1 - frozen]
    outs = [layers.found(x, rows), layers.wanted(x, rows)]
    torch.testing.assert_close(*(torch.autograd.grad(out.sin().sum(), by)[0] for out in outs))


def test_matrices_are_made_once_while_weights_stay(layers: Layers, made: list[int]) -> None:
    for _ in range(3):
        layers.check(*arguments(0, 2))
    assert made == [2]


@pytest.mark.parametrize("layer", ["linear", "skip"])
def test_changed_weights_are_seen_however_they_were_written(layers: Layers, made: list[int], layer: str) -> None:
    weight, given = getattr(layers, layer).weight, arguments()
    layers.check(*given)
    with torch.no_grad():
        weight.mul_(1.5)
    layers.check(*given)
    weight.data.view(-1)[3] += 1e-3  # which torch does not count
    layers.check(*given)
    weight.data = weight.data.flip(0)
    layers.check(*given)
    assert made == [3] * 4


def test_species_that_come_later_get_their_matrices(layers: Layers, made: list[int]) -> None:
    for species in ((1,), (1, 3), (3, 3), (0, 4)):
        layers.check(*arguments(*species))
    assert made == [1, 2, 4]


def test_another_factor_and_dtype_make_other_matrices(layers: Layers) -> None:
    x, rows = arguments()
    layers.check(x, rows)
    doubled = layers.joined.apply_both_layers(x, *layers.weights, rows, 2 * FACTOR)
    assert doubled is not None
    torch.testing.assert_close(doubled, 2 * layers.wanted(x, rows))
    layers.linear.float(), layers.skip.float()
    layers.check(x.detach().float(), rows.float())


def test_rows_that_are_none_of_a_species_are_left_to_both(layers: Layers) -> None:
    x, rows = arguments()
    assert layers.found(x, 0.5 * rows) is None
    assert layers.found(x, rows.clone().requires_grad_()) is None
    assert layers.found(x[:0], rows[:0]) is None
    with torch.autocast("cpu"):
        assert layers.found(x, rows) is None


def test_layers_that_do_not_fit_are_not_joined(layers: Layers) -> None:
    product = layers.joined.product
    for linear in (o3.Linear("3x0e", "4x0e"), o3.Linear("3x0e+2x1o", "4x0e+2x1o", biases=True)):
        plan = read_linear_plan(linear)
        assert plan is not None
        assert join_linear_and_product(plan, product) is None
