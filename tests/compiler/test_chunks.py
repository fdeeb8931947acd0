"""Rows computed a few at a time: the same numbers, of every order, in no more memory than was allowed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import tpgen
from tests.cases import derivatives
from tpgen.base.errors import BackendError, InputError
from tpgen.compiler import chunks
from tpgen.compiler.chunks import ChunkedProgram
from tpgen.compiler.footprint import run_on_fake_tensors
from tpgen.networks.program import network_program
from tpgen.planner.coupling import wigner_3j
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


def assert_alike(limited: list[Tensor], whole: list[Tensor]) -> None:
    for x, y in zip(limited, whole, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def chunked(module: torch.nn.Module, name: str = "forward") -> bool:
    """Whether rows were cut by the last call of a module, by what it has measured."""
    return bool(measured(module._runners[name]))


def measured(runner: ChunkedProgram) -> list[tuple]:
    return [key for key in chunks._measured if key[0] == runner._number]


@ALL
@pytest.mark.parametrize("strategy", ["grouped", "unrolled"])
def test_products(plan: Plan, strategy: str) -> None:
    made = [tpgen.TensorProduct.from_plan(plan, False, strategy=strategy, max_bytes=m).double() for m in (LIMIT, None)]
    given = operands(plan, ROWS)
    assert_alike(*(derivatives(module(*given), given) for module in made))
    assert chunked(made[0])


@ALL
def test_convolutions(plan: Plan) -> None:
    made = [tpgen.TensorProductConv.from_plan(plan, False, strategy="grouped", max_bytes=m).double()
            for m in (LIMIT, None)]  # fmt: skip
    given = operands(plan, ROWS)
    given[0] = given[0][:NODES].detach().requires_grad_()
    src, dst = torch.randint(NODES, (2, ROWS))
    assert_alike(*(derivatives(module(*given, src, dst), given) for module in made))
    assert chunked(made[0])


def test_linear_layers() -> None:
    made = [tpgen.Linear("4x0e+4x1o", "6x0e+2x1o", strategy="grouped", max_bytes=m).double() for m in (LIMIT, None)]
    made[1].load_state_dict(made[0].state_dict())
    x = torch.randn(ROWS * 3, 16, dtype=torch.float64, requires_grad=True)
    assert_alike(*(derivatives(module(x), [x]) for module in made))
    assert chunked(made[0])


CONTRACTIONS: dict[str, dict] = {
    "one set of weights": {},
    "weights by element": {"num_elements": 3},
    "in compiled code": {"num_elements": 3, "backend": "aot_eager"},
}


@pytest.mark.parametrize("options", CONTRACTIONS.values(), ids=CONTRACTIONS)
def test_contractions(options: dict) -> None:
    """Of MACE: features three times in a term, so no form that is linear in them."""
    made = [tpgen.SymmetricContraction("4x0e+4x1o", "4x0e+4x1o", 3, strategy="einsum", max_bytes=m, **more).double()
            for m, more in ((LIMIT * 4, options), (None, {**options, "backend": "eager"}))]  # fmt: skip
    made[1].load_state_dict(made[0].state_dict())
    x = torch.randn(ROWS, 4, 4, dtype=torch.float64, requires_grad=True)
    elements = [torch.randint(3, (ROWS,))] if "num_elements" in options else []
    inputs = [[x, *(p for p in module.parameters() if p.requires_grad)] for module in made]
    assert_alike(*(derivatives(module(x, *elements), own) for module, own in zip(made, inputs, strict=True)))
    assert chunked(made[0])


@pytest.mark.parametrize(
    "batches", [((2, 90), (2, 90)), ((90, 2), (90, 1)), ((1, 90), (3, 1)), ((90,), (2, 90))], ids=str
)
def test_batches_that_broadcast(batches: tuple) -> None:
    plan = fully_connected("4x0e+2x1o", "2x0e+1o", "2x0e+3x1o")
    made = [limited(plan, limit) for limit in (LIMIT, None)]
    x, y = (operands(plan, *batch)[n] for n, batch in enumerate(batches))
    w = torch.ones(plan.weight_numel, dtype=torch.float64, requires_grad=True)
    assert_alike(*(derivatives(module(x, y, w), [x, y, w]) for module in made))
    assert chunked(made[0])


def test_the_matrix_of_a_product() -> None:
    plan = PLANS["row weights"]
    made = [limited(plan, limit) for limit in (10 * LIMIT, None)]
    _, y, w = operands(plan, ROWS)
    assert_alike(*(derivatives(module.right(y, w), [y, w], 1) for module in made))
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

    peak, result = run_on_fake_tensors(call)
    assert result < peak <= result + LIMIT


def limited(plan: Plan, limit: int | None = LIMIT) -> tpgen.TensorProduct:
    return tpgen.TensorProduct.from_plan(plan, False, strategy="grouped", max_bytes=limit).double()


TRACERS = {
    "make_fx": lambda module, given: make_fx(module, tracing_mode="symbolic")(*given),
    "make_fx of one size": lambda module, given: make_fx(module)(*given),
    "jit.trace": lambda module, given: torch.jit.trace(module, given),
    "network_program": lambda module, given: network_program(module, given).module(),
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("trace", TRACERS.values(), ids=TRACERS)
def test_what_is_traced_takes_all_rows(trace: Callable) -> None:
    plan = PLANS["row weights"]
    given, other = ([x.detach() for x in operands(plan, rows)] for rows in (ROWS, ROWS + 7))
    module = limited(plan)
    traced = trace(module, tuple(given))
    if trace is TRACERS["make_fx of one size"]:
        other = given
    torch.testing.assert_close(traced(*other), module(*other), rtol=1e-12, atol=1e-12)


def test_forward_derivatives() -> None:
    plan = PLANS["row weights"]
    given, along = ([x.detach() for x in operands(plan, ROWS)] for _ in range(2))
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(given, along, strict=True)]
        found = [forward_ad.unpack_dual(limited(plan, limit)(*duals)) for limit in (LIMIT, None)]
    assert_alike(*([x.primal, x.tangent] for x in found))


def test_parts_of_few_digits_are_added_in_more() -> None:
    plan, rows = PLANS["shared weights"], 4000
    x, y, w = (torch.rand_like(x).bfloat16() for x in operands(plan, rows))

    def gradient(limit: int | None, dtype: torch.dtype) -> Tensor:
        weight = w.to(dtype).requires_grad_()
        module = limited(plan, limit).to(dtype)
        return torch.autograd.grad(module(x.to(dtype), y.to(dtype), weight).sum(), weight)[0]

    expected = gradient(None, torch.float64)
    found = gradient(LIMIT // 2, torch.bfloat16)
    assert found.dtype == torch.bfloat16
    assert (found - expected).abs().max() < 2e-2 * expected.abs().max()


def test_another_number_of_rows_is_not_measured_again() -> None:
    plan = PLANS["row weights"]
    module = limited(plan)
    for rows in (ROWS, ROWS + 1, ROWS + 50):
        module(*(x.detach() for x in operands(plan, rows)))
    assert len(measured(module._runners["forward"])) == 1
    assert "bytes of rows computed some at a time" in str(tpgen.caches())


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
    wigner_3j.cache_clear()
    found = run_on_fake_tensors(lambda taken: wigner_3j(1, 1, 1))
    assert abs((found**2).sum() - 1.0) < 1e-12
