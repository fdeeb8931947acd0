"""Products with one-hot elements, which choose among the weights of a converted product."""

from __future__ import annotations

import pytest
import torch
from e3nn import o3
from e3nn.util.jit import compile as e3nn_compile
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from tests.machine import needs_compiler
from tpgen.networks.conversion import notices
from tpgen.networks.conversion import species as module
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.products import ConvertedFullyConnectedTensorProduct, ProductBySpecies

pytestmark = needs_compiler


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Species of each call by species; all products are worth it."""
    seen, run = [], module.kernel_layer
    monkeypatch.setattr(module, "WORTH_SPECIES", 0)
    monkeypatch.setattr(module, "kernel_layer", lambda x, w, *rest: seen.append(len(w)) or run(x, w, *rest))
    return seen


def network() -> nn.ModuleDict:
    return nn.ModuleDict({"skip": o3.FullyConnectedTensorProduct("4x0e+3x1o+2x0e", "5x0e", "6x1o+5x0e+2e+2x0e")})


def arguments(elements: int = 3) -> tuple[Tensor, Tensor]:
    y = torch.eye(5, dtype=torch.float64)[torch.arange(7) % elements]
    return torch.randn(7, 15, dtype=torch.float64, requires_grad=True), y


def test_one_hot_rows_choose_among_the_weights(calls: list[int]) -> None:
    product, (x, y) = network().double()["skip"], arguments()
    wanted = product(x, y)
    convert(product)
    assert type(product) is ProductBySpecies
    torch.testing.assert_close(product(x, y), wanted)
    assert calls == [3], "of the elements that are there"
    torch.testing.assert_close(e3nn_compile(product)(x, y), wanted)
    assert type(restore(product)) is o3.FullyConnectedTensorProduct


def test_it_is_proven_to_second_derivatives(calls: list[int]) -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tp = network()["skip"]
            self.register_buffer("y", arguments()[1])

        def forward(self, x: Tensor) -> Tensor:
            return self.tp(x, self.y)

    report = conversion_report(convert(Skip()), prove=(arguments()[0],))
    assert all(d.relative < 1e-12 for d in report.proof.differences), report.proof
    assert report.replaced[0].now.endswith("; by element where rows are one-hot")
    assert calls


def test_rows_that_need_a_gradient_are_told_once(calls: list[int]) -> None:
    notices._warn_once.cache_clear()
    product, (x, y) = convert(network().double())["skip"], arguments()
    with pytest.warns(UserWarning, match="multiply by all of each row: these rows need a gradient"):
        product(x, y.clone().requires_grad_())
    product(x, y.clone().requires_grad_())
    assert calls == []


@pytest.mark.filterwarnings("ignore:products with one-hot rows multiply")
@pytest.mark.parametrize(
    "change", [lambda y: 2 * y, lambda y: y + y.flip(1), lambda y: y.clone().requires_grad_(), lambda y: y[:1]]
)
def test_other_rows_are_multiplied(calls: list[int], change) -> None:
    product, (x, y) = network().double()["skip"], arguments()
    rows = change(y)
    wanted = product(x, rows)
    torch.testing.assert_close(convert(product)(x, rows), wanted)
    assert calls == []


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_one_hot_rows_of_integers(calls: list[int], dtype: torch.dtype) -> None:
    product, (x, y) = network().double()["skip"], arguments()
    wanted = product(x, y)
    convert(product)
    torch.testing.assert_close(product(x, y.to(dtype)), wanted)
    torch.testing.assert_close(e3nn_compile(product)(x, y.to(dtype)), wanted)
    assert calls == [3]


def test_small_products_are_multiplied(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORTH_SPECIES", 2**40)
    convert(network().double())["skip"](*arguments())
    assert calls == []


@pytest.mark.parametrize("irreps", [("2x0e+1o", "3x1o", "2x1o"), ("2x0e", "3x0o", "2x0o"), ("2x0e", "0e+0e", "2x0e")])
def test_what_is_no_choice_of_matrices(irreps: tuple[str, str, str]) -> None:
    product = nn.ModuleDict({"a": o3.FullyConnectedTensorProduct(*irreps)})
    assert type(convert(product)["a"]) is ConvertedFullyConnectedTensorProduct


def test_graphs_have_no_kernels_by_species() -> None:
    assert type(convert(network(), strategy="grouped")["skip"]) is ConvertedFullyConnectedTensorProduct


def test_a_trace_leaves_the_number_of_rows_open() -> None:
    """As NequIP traces what it compiles: whatever asks for the rows afterwards must not get those that were traced."""
    product = convert(network())["skip"]

    def padded(x: Tensor, y: Tensor) -> Tensor:
        return product(x, y) + x.new_ones(x.shape[0], 1)

    traced = make_fx(padded, tracing_mode="symbolic", _allow_non_fake_inputs=True)(
        torch.randn(7, 15), torch.randn(7, 5)
    )
    x, y = torch.randn(4, 15), torch.randn(4, 5)
    torch.testing.assert_close(traced(x, y), padded(x, y))
