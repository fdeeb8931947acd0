"""Rows computed a few at a time: the same numbers, of every order, in no more memory than was allowed."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import tpgen
from tpgen.compiler.footprint import without_values
from tpgen.errors import BackendError, InputError
from tpgen.planner.coupling import coupling
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected

PLANS = {
    "row weights": channelwise("4x0e+4x1o", "0e+1o", "0e+1o"),
    "shared weights": fully_connected("4x0e+2x1o", "2x0e+1o", "2x0e+3x1o"),
}
ROWS, NODES, LIMIT = 150, 12, 30_000
ALL = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


def operands(plan: Plan, *batch: int) -> list[Tensor]:
    weights = () if plan.shared_weights else batch
    shapes = ((*batch, plan.irreps_in1.dim), (*batch, plan.irreps_in2.dim), (*weights, plan.weight_numel))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def derivatives(module: torch.nn.Module, given: Sequence[Tensor], *rest: Tensor) -> list[Tensor]:
    """The result, its gradients, and the gradients of those."""
    result = module(*given, *rest)
    first = torch.autograd.grad(result.sin().sum(), given, create_graph=True)
    return [result, *first, *torch.autograd.grad(sum(x.sin().sum() for x in first), given)]


def assert_alike(limited: list[Tensor], whole: list[Tensor]) -> None:
    for x, y in zip(limited, whole, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def chunked(module: torch.nn.Module, name: str = "forward") -> bool:
    """Whether rows were cut by the last call of a module, by what it has measured."""
    return bool(module._runners[name]._measured)


@ALL
@pytest.mark.parametrize("strategy", ["grouped", "unrolled"])
def test_products(plan: Plan, strategy: str) -> None:
    made = [tpgen.TensorProduct.from_plan(plan, False, strategy=strategy, max_bytes=m).double() for m in (LIMIT, None)]
    given = operands(plan, ROWS)
    assert_alike(*(derivatives(module, given) for module in made))
    assert chunked(made[0])


@ALL
def test_convolutions(plan: Plan) -> None:
    made = [tpgen.TensorProductConv.from_plan(plan, False, strategy="grouped", max_bytes=m).double()
            for m in (LIMIT, None)]  # fmt: skip
    given = operands(plan, ROWS)
    given[0] = given[0][:NODES].detach().requires_grad_()
    src, dst = torch.randint(NODES, (2, ROWS))
    assert_alike(*(derivatives(module, given, src, dst) for module in made))
    assert chunked(made[0])


def test_linear_layers() -> None:
    made = [tpgen.Linear("4x0e+4x1o", "6x0e+2x1o", strategy="grouped", max_bytes=m).double() for m in (LIMIT, None)]
    made[1].load_state_dict(made[0].state_dict())
    x = torch.randn(ROWS * 3, 16, dtype=torch.float64, requires_grad=True)
    assert_alike(*(derivatives(module, [x]) for module in made))
    assert chunked(made[0])


@pytest.mark.parametrize(
    "batches", [((2, 90), (2, 90)), ((90, 2), (90, 1)), ((1, 90), (3, 1)), ((90,), (2, 90))], ids=str
)
def test_batches_that_broadcast(batches: tuple) -> None:
    plan = fully_connected("4x0e+2x1o", "2x0e+1o", "2x0e+3x1o")
    made = [tpgen.TensorProduct.from_plan(plan, False, strategy="grouped", max_bytes=m).double() for m in (LIMIT, None)]
    x, y = (operands(plan, *batch)[n] for n, batch in enumerate(batches))
    w = torch.ones(plan.weight_numel, dtype=torch.float64, requires_grad=True)
    assert_alike(*(derivatives(module, [x, y, w]) for module in made))
    assert chunked(made[0])


def test_the_matrix_of_a_product() -> None:
    plan = PLANS["row weights"]
    made = [tpgen.TensorProduct.from_plan(plan, False, strategy="grouped", max_bytes=m).double()
            for m in (10 * LIMIT, None)]  # fmt: skip
    _, y, w = operands(plan, ROWS)
    limited, whole = (torch.autograd.grad(module.right(y, w).sin().sum(), (y, w)) for module in made)
    assert_alike(list(limited), list(whole))
    assert chunked(made[0], "right")


def test_no_more_is_taken_than_allowed() -> None:
    """What a call makes and holds at once, beside its result; counted where nothing is computed."""
    plan = PLANS["row weights"]
    product = tpgen.TensorProduct.from_plan(plan, False, strategy="grouped", max_bytes=LIMIT)
    shapes = [x.shape for x in operands(plan, ROWS)]

    def call(taken) -> tuple[int, int]:
        given = [torch.empty(shape) for shape in shapes]
        before = taken.now
        with torch.no_grad():
            result = product(*given)
        return taken.peak - before, result.nbytes

    peak, result = without_values(call)
    assert result < peak <= result + LIMIT


def test_a_kernel_keeps_nothing_on_the_way() -> None:
    plan = PLANS["row weights"]
    product = tpgen.TensorProduct.from_plan(plan, strategy="kernel", max_bytes=1)
    found = product.memory(100_000)
    assert found.kept == 0
    assert found.forward - found.result < 100_000


def test_a_limit_below_one_row_is_said() -> None:
    product = tpgen.TensorProduct.from_plan(PLANS["row weights"], strategy="grouped", max_bytes=100)
    with pytest.raises(InputError, match=r"max_bytes: 100 is too little for a single row, which takes .* give as many"):
        product(*(x.float() for x in operands(PLANS["row weights"], ROWS)))


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "1e6"])
def test_a_limit_is_a_number_of_bytes(limit: object) -> None:
    with pytest.raises(BackendError, match="max_bytes must be a whole number of bytes above zero"):
        tpgen.Linear("0e", "0e", max_bytes=limit)  # type: ignore[arg-type]


def test_what_runs_all_rows_at_once_has_no_limit() -> None:
    with pytest.raises(BackendError, match="backend 'script' runs all rows at once"):
        tpgen.Linear("0e", "0e", backend="script", max_bytes=1000)
    with pytest.raises(BackendError, match="streams=2 runs all rows at once"):
        tpgen.TensorProduct.from_plan(PLANS["row weights"], streams=2, max_bytes=1000)


def test_a_copy_keeps_its_limit() -> None:
    product = tpgen.TensorProduct.from_plan(PLANS["row weights"], strategy="grouped", max_bytes=100)
    with pytest.raises(InputError, match="max_bytes: 100"):
        copy.deepcopy(product)(*(x.float() for x in operands(PLANS["row weights"], ROWS)))


def test_couplings_are_numbers_also_where_shapes_alone_are_computed() -> None:
    coupling.cache_clear()
    found = without_values(lambda taken: coupling(1, 1, 1))
    assert abs((found**2).sum() - 1.0) < 1e-12
