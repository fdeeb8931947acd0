"""Gathers and sums around products become rules of rows, however torch writes them; others stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, fx, nn
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

import tpgen
from tests.kernels.test_nodes import operands, plan_of_scalars
from tests.machine import needs_compiler
from tpgen.kernels.rows import DESTINATIONS
from tpgen.kernels.runtime.call import FORWARD, FormCall
from tpgen.kernels.runtime.description import describe
from tpgen.networks import libraries, step_program
from tpgen.networks.edges import _WIDE, fuse_gathers_and_sums, write_wide_sums_as_library_calls
from tpgen.networks.program import network_program
from tpgen.networks.sizes import InputSizes
from tpgen.networks.stages import GraphPart

GATHERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x[src]": lambda x, index: x[index],
    "index_select": lambda x, index: x.index_select(-2, index),
    "gather": lambda x, index: x.gather(0, index.unsqueeze(1).expand(-1, x.shape[1])),
    "embedding": lambda x, index: nn.functional.embedding(index, x),
}
SUMS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "index_add": lambda x, index, count: x.new_zeros(count, x.shape[1]).index_add(0, index, x),
    "index_add_": lambda x, index, count: torch.zeros(count, x.shape[1], dtype=x.dtype).index_add_(-2, index, x),
    "scatter_add": lambda x, index, count: x.new_zeros(count, x.shape[1]).scatter_add(
        0, index.view(-1, 1).expand_as(x), x
    ),
    "index_put": lambda x, index, count: torch.full((count, x.shape[1]), 0.0, dtype=x.dtype).index_put(
        (index,), x, accumulate=True
    ),
}
KEPT: dict[str, Callable[..., Tensor]] = {
    "no zeros": lambda x, index, count: x.new_ones(count, x.shape[1]).index_add(0, index, x),
    "scaled": lambda x, index, count: x.new_zeros(count, x.shape[1]).index_add(0, index, x, alpha=2),
    "written": lambda x, index, count: x.new_zeros(count, x.shape[1]).index_put((index,), x[:1].expand_as(x)),
    "other columns": lambda x, index, count: x.new_zeros(count, 20).scatter_add(0, index.view(-1, 1).expand_as(x), x),
    "read twice": lambda x, index, count: x.new_zeros(count, x.shape[1]).index_add(0, index, x) + x.sum(),
    "counted": lambda x, index, count: x.new_zeros(count, x.shape[1]).index_add(0, index, x) / x.shape[0],
}


class Messages(nn.Module):
    """A product of neighbours, summed, as somebody writes it, and its derivatives."""

    def __init__(self, gather: Callable[..., Tensor], total: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.product = tpgen.FullyConnectedTensorProduct("4x0e+4x1o", "0e+1o", "4x0e+4x1o", strategy="kernel").double()
        self.gather, self.total = gather, total

    @torch.enable_grad()
    def forward(self, x: Tensor, edges: Tensor, vectors: Tensor) -> tuple[Tensor, ...]:
        x, vectors = x.detach().requires_grad_(), vectors.detach().requires_grad_()
        harmonics = o3.spherical_harmonics([0, 1], vectors, False)
        out = self.total(self.product(self.gather(x, edges[0]), harmonics), edges[1], x.shape[0])
        return out.detach(), *torch.autograd.grad(out.square().sum(), (x, vectors))


def given(nodes: int, edges: int) -> tuple[Tensor, ...]:
    return torch.randn(nodes, 16).double(), torch.randint(nodes, (2, edges)), torch.randn(edges, 3).double()


def rules(graph: fx.Graph) -> list[str]:
    """Names of the rules of each call, after a look for gathers and sums."""
    fuse_gathers_and_sums(graph)
    calls = graph.find_nodes(op="call_function", target=torch.ops.tpgen.form.default)
    return ["".join(call.args[4:5]) for call in calls]  # type: ignore[arg-type]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Rules of the calls of each program, which is run as it stands then."""
    seen: list[str] = []

    def library_of(program: GraphPart, sizes: InputSizes, _inputs: list[Tensor]) -> tuple[Callable, InputSizes]:
        seen.extend(rules(program.graph.graph))
        program.graph.recompile()
        return lambda given: list(program.graph.forward(*given)), sizes

    monkeypatch.setattr(step_program, "library_of", library_of)
    return seen


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The same of programs that are compiled."""
    seen: list[str] = []
    monkeypatch.setattr(libraries, "fuse_gathers_and_sums", lambda graph: seen.extend(rules(graph)))
    return seen


def check(network: Messages) -> None:
    step = tpgen.compile_step(network, *given(7, 31))
    for sizes in ((7, 31), (12, 40), (5, 3)):
        data = given(*sizes)
        for made, wanted in zip(step(*data), network(*data), strict=True):
            torch.testing.assert_close(made, wanted, rtol=1e-11, atol=1e-11)
        assert step._program.run_tensors(list(data)) is not None, "the network serves"


@needs_compiler
@pytest.mark.parametrize("total", SUMS)
@pytest.mark.parametrize("gather", GATHERS)
def test_products_of_neighbours_are_convolutions(found: list[str], gather: str, total: str) -> None:
    check(Messages(GATHERS[gather], SUMS[total]))
    assert found == ["src dst", "src dst"], "the product, and its gradients"


def test_sums_by_node_find_no_rows_of_scalars() -> None:
    """Their kernel gathers no input, and takes less time than one that does."""
    plan = plan_of_scalars(13)

    def function(h: Tensor, p: Tensor, w: Tensor, ends: Tensor) -> Tensor:
        call = FormCall((h[ends[0]], p, w), (ends[1],), describe(plan), FORWARD, (DESTINATIONS,), 5)
        return torch.ops.tpgen.form.default(*call.to_arguments())[0]

    h, p, w = (x.detach() for x in operands(plan, 9))
    made = make_fx(function, tracing_mode="symbolic")(h, p, w, torch.randint(5, (2, 9)))
    assert rules(made.graph) == ["dst"]


@pytest.mark.parametrize("columns, wide", [(_WIDE - 1, False), (_WIDE, True), (_WIDE + 1, True)])
@pytest.mark.parametrize("total", SUMS)
def test_wide_sums_without_a_product_are_scatters(total: str, columns: int, wide: bool) -> None:
    def function(x: Tensor, index: Tensor) -> Tensor:
        return SUMS[total](x.view(-1, columns) * 2, index, 5)

    x, index = torch.randn(9, columns), torch.randint(5, (9,))
    index[3] = -1 if total == "index_put" else 1
    made = make_fx(functionalize(function), tracing_mode="symbolic")(x, index)
    write_wide_sums_as_library_calls(made.graph)
    made.recompile()
    scatters = made.graph.find_nodes(op="call_function", target=torch.ops.aten.scatter_add.default)
    assert len(scatters) == (wide or total == "scatter_add")
    torch.testing.assert_close(made(x, index), function(x, index))


@needs_compiler
@pytest.mark.parametrize("gather, total", [*zip(GATHERS, SUMS, strict=True)])
def test_programs_for_deployment_are_convolutions_too(gather: str, total: str) -> None:
    network = Messages(GATHERS[gather], SUMS[total])
    program = network_program(network, given(7, 31))
    calls = program.graph.find_nodes(op="call_function", target=torch.ops.tpgen.form.default)
    assert ["".join(call.args[4:5]) for call in calls] == ["src dst", "src dst"]
    for sizes in ((12, 40), (5, 2), (3, 1), (3, 0), (1, 4), (1, 1), (1, 0)):
        data = given(*sizes)
        for made, wanted in zip(program.module()(*data), network(*data), strict=True):
            torch.testing.assert_close(made, wanted, rtol=1e-11, atol=1e-11)


@needs_compiler
@pytest.mark.parametrize("total", KEPT)
def test_what_is_no_sum_of_all_stays(found: list[str], total: str) -> None:
    check(Messages(GATHERS["x[src]"], KEPT[total]))
    assert found[0] == ("src dst" if total == "counted" else "src")


@needs_compiler
def test_so_are_their_second_derivatives_in_training(compiled: list[str]) -> None:
    network = Messages(GATHERS["x[src]"], SUMS["scatter_add"])

    def loss(network: Any, x: Tensor, edges: Tensor, vectors: Tensor) -> Tensor:
        vectors = vectors.detach().requires_grad_()
        out = network.product(x[edges[0]], o3.spherical_harmonics([0, 1], vectors, False))
        (slopes,) = torch.autograd.grad(network.total(out, edges[1], len(x)).square().sum(), vectors, create_graph=True)
        return slopes.square().sum()

    training = tpgen.compile_training(network, loss)
    for sizes in ((7, 31), (12, 40)):
        data = given(*sizes)
        training(*data).backward()
        made, network.product.weight.grad = network.product.weight.grad, None
        loss(network, *data).backward()
        torch.testing.assert_close(made, network.product.weight.grad, rtol=1e-10, atol=1e-10)
        network.product.weight.grad = None
    assert set(compiled) == {"src dst"}
    assert len(compiled) > 2


@needs_compiler
def test_a_gather_of_some_columns_stays(found: list[str]) -> None:
    def some(x: Tensor, index: Tensor) -> Tensor:
        return torch.cat([x, x], 1).gather(0, index.view(-1, 1).expand(-1, x.shape[1]))

    check(Messages(some, SUMS["index_add"]))
    assert found == ["dst", "dst"]


@needs_compiler
def test_a_sum_of_some_columns_stays(found: list[str]) -> None:
    class Some(nn.Module):
        def forward(self, x: Tensor, edges: Tensor, vectors: Tensor) -> Tensor:
            rows = product(x[edges[0]], o3.spherical_harmonics([0, 1], vectors, False))
            return x.new_zeros(x.shape).scatter_add(0, edges[1].view(-1, 1).expand(-1, 5), rows)

    product = tpgen.FullyConnectedTensorProduct("4x0e+4x1o", "0e+1o", "4x0e+4x1o", strategy="kernel").double()
    product.requires_grad_(False)
    step, data = tpgen.compile_step(Some(), *given(7, 31)), given(12, 40)
    torch.testing.assert_close(step(*data), Some()(*data), rtol=1e-11, atol=1e-11)
    assert found == ["src"]


@needs_compiler
def test_a_sum_of_one_row_at_many_places_stays(found: list[str]) -> None:
    class OneRow(nn.Module):
        def forward(self, x: Tensor, edges: Tensor, vectors: Tensor) -> Tensor:
            row = product(x[:1], o3.spherical_harmonics([0, 1], vectors[:1], False))
            return x.new_zeros(x.shape).index_put((edges[1],), row, accumulate=True)

    product = tpgen.FullyConnectedTensorProduct("4x0e+4x1o", "0e+1o", "4x0e+4x1o", strategy="kernel").double()
    step, data = tpgen.compile_step(OneRow(), *given(7, 31)), given(12, 40)
    torch.testing.assert_close(step(*data), OneRow()(*data).detach(), rtol=1e-11, atol=1e-11)
    assert found == [""]


class Layered(nn.Module):
    """A linear layer of neighbours, which has no edges of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = tpgen.Linear("4x0e+4x1o", "4x0e+4x1o", strategy="kernel").double()

    def forward(self, x: Tensor, harmonics: Tensor) -> Tensor:
        return self.layer(x) * harmonics[:, 1:2]


@needs_compiler
def test_linear_layers_take_rows_as_they_come(found: list[str]) -> None:
    network = Messages(GATHERS["x[src]"], SUMS["index_add"])
    network.product = Layered()
    check(network)
    assert set(found) == {""}
