"""The runtime computes what Python's calls do, to the bit, and leaves to Python what is not usual."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from tests.kernels.plans import operands
from tpgen.base import _torch
from tpgen.base.errors import InputError
from tpgen.kernels.runtime import memory, ops
from tpgen.kernels.runtime import runtime as runtime_of_forms
from tpgen.kernels.runtime.call import OUT, X2, ProductCall
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.forms import product_operator
from tpgen.kernels.runtime.memory import LARGE
from tpgen.kernels.runtime.native import runtime as native
from tpgen.kernels.runtime.runtime import Kernels, kernels_of
from tpgen.planner.presets import channelwise, fully_connected

ROWS, NODES = 7, 4
PLANS = {
    "shared": fully_connected("2x0e+1o", "0e+1o", "0e+1o"),
    "per row": channelwise("8x0e+8x1o", "0e+1o", "0e+1o"),
}


def in_python(call: ProductCall, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The open slots by a product that the runtime does not know."""
    with monkeypatch.context() as patch:
        patch.setattr(runtime_of_forms, "runtime", lambda: None)
        return Kernels(call.description).run(call)


def by_runtime(call: ProductCall) -> list[Tensor]:
    """The same by the runtime alone."""
    product = kernels_of(call.description)
    product.run(call)  # builds the kernel
    return list(product.quick(call))


def call_of(name: str, mask: int, dtype: torch.dtype = torch.float32, edges: bool = False) -> ProductCall:
    x1, x2, w, g = operands(PLANS[name], ROWS, dtype).values()
    if not edges:
        return ProductCall(x1, x2, w, None if mask == OUT else g, None, None, describe(PLANS[name]), mask)
    src, dst = torch.randint(NODES, (2, ROWS))
    return ProductCall(
        x1[:NODES], x2, w, None if mask == OUT else g[:NODES], src, dst, describe(PLANS[name]), mask, NODES
    )


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return len(found) == len(wanted) > 0 and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("mask, edges", [(X2, False), (OUT, False), (15, False), (7, True), (15, True)])
def test_every_slot_is_opened(name: str, mask: int, edges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of(name, mask, edges=edges)
    assert same(by_runtime(call), in_python(call, monkeypatch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_dtype(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of("shared", OUT, dtype)
    assert same(by_runtime(call), in_python(call, monkeypatch))


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "every other column": lambda x: torch.stack([x, x + 1], dim=-1).flatten(-2)[..., ::2],
    "transposed": lambda x: x.T.contiguous().T if x.dim() == 2 else x,
    "expanded": lambda x: x[..., :1].expand(x.shape),
    "part of wider rows": lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
}


@pytest.mark.parametrize("how", STRIDES)
def test_operands_of_any_strides(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of("per row", 7, edges=True)
    x1, x2, w, g = map(STRIDES[how], call[:4])
    strided = call._replace(x1=x1, x2=x2, w=w, g=g, src=STRIDES["every other column"](call.src))
    assert same(by_runtime(strided), in_python(strided, monkeypatch))


def test_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = call_of("per row", 7)
    call = whole._replace(x1=whole.x1[:0], x2=whole.x2[:0], w=whole.w[:0], g=whole.g[:0])
    assert same(by_runtime(call), in_python(call, monkeypatch))


@pytest.fixture
def python_is_away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def away(self: Kernels, call: ProductCall) -> list[Tensor]:
        raise AssertionError(f"a usual call went through Python: {call}")

    with monkeypatch.context() as patch:
        patch.setattr(Kernels, "_run", away)
        yield


@pytest.mark.parametrize("edges", [False, True])
def test_products_and_both_their_derivatives_go_without_python(edges: bool, request: pytest.FixtureRequest) -> None:
    call = call_of("per row", OUT, torch.float64, edges)
    leaves = [x.requires_grad_() for x in (call.x1, call.x2, call.w)]

    def second() -> list[Tensor]:
        (made,) = product_operator.form(call)
        first = torch.autograd.grad(made.sin().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(x.cos().sum() for x in first), leaves))

    wanted = second()
    request.getfixturevalue("python_is_away")
    assert same(second(), wanted)


def test_a_product_that_was_forgotten_gets_its_number_again() -> None:
    call = call_of("shared", OUT)
    wanted, number = by_runtime(call), kernels_of(call.description)._number
    kernels_of.cache_clear()
    assert same(by_runtime(call), wanted)
    assert kernels_of(call.description)._number == number != native.NO_NUMBER


# -- what it leaves to Python ------------------------------------------------------------------------------------------


def at_once(x1: Tensor, call: ProductCall) -> int:
    """How many results the runtime returns."""
    return len(kernels_of(call.description).quick(call._replace(x1=x1)))


def test_what_is_not_usual_is_left_to_python() -> None:
    call = call_of("shared", OUT)
    by_runtime(call)
    assert at_once(call.x1, call) == 1
    assert torch.func.vmap(lambda x: x + at_once(x, call))(call.x1.expand(2, -1, -1)).equal(call.x1.expand(2, -1, -1))
    assert torch.func.grad(lambda x: x.sum() * (1 + at_once(x, call)))(call.x1).equal(torch.ones_like(call.x1))
    with FakeTensorMode() as fake:
        assert at_once(fake.from_tensor(call.x1), call._replace(x2=fake.from_tensor(call.x2))) == 0
    with FlopCounterMode(display=False):
        assert at_once(call.x1, call) == 0
    assert at_once(call.x1.to("meta"), call) == 0
    assert at_once(call.x1.to_sparse(), call) == 0
    traced = torch.jit.trace(lambda x: x * (1 + at_once(x, call)), call.x1, check_trace=False)
    assert traced(call.x1).equal(call.x1)


def test_what_does_not_fit_is_left_to_python() -> None:
    call = call_of("shared", 7, edges=True)
    by_runtime(call)
    others = {
        "x1": (call.x1[:, 1:], call.x1.double(), call.x1[0]),
        "x2": (call.x2[1:], call.x2[0]),
        "w": (call.w[1:], call.w.expand(ROWS, -1)),
        "g": (None, call.g[:, 1:], call.g.half()),
        "src": (None, call.src[1:], call.src.short()),
        "dst": (None, call.dst - NODES),
        "mask": (0, 16, -1, 3),  # the last has no kernel yet
        "nodes": (-1,),
    }
    product = kernels_of(call.description)
    for field, values in others.items():
        for value in values:
            assert not product.quick(call._replace(**{field: value})), (field, value)
    for number in (-1, 2**40):
        assert not native.runtime().run(call.x1, call.x2, call.w, number, 7, call.g)


def large_call(mask: int) -> ProductCall:
    """One whose results are just as large as to stand on pages that are kept."""
    plan = PLANS["per row"]
    x1, x2, w, g = operands(plan, LARGE // 4 // plan.weight_numel, torch.float32).values()
    return ProductCall(x1, x2, w, None if mask == OUT else g, None, None, describe(plan), mask)


@pytest.mark.parametrize("mask", [OUT, 7])
def test_large_results_stand_on_pages_that_are_kept(mask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    call = large_call(mask)
    wanted = in_python(call, monkeypatch)
    found = by_runtime(call)
    assert same(found, wanted)
    large = [x for x in found if x.nbytes >= LARGE]
    places, before = {x.data_ptr() for x in large}, memory.kept()
    size = sum(x.nbytes for x in large)
    assert size
    del found, large
    assert memory.kept() >= before + size  # nothing else holds them
    again = kernels_of(call.description).quick(call)
    assert places & {x.data_ptr() for x in again}


def test_a_large_result_without_memory_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    call = large_call(OUT)
    by_runtime(call)

    def full(*_: object) -> Tensor:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(native, "empty", full)
    assert not kernels_of(call.description).quick(call)
    assert kernels_of(call.description).run(call)[0].shape == (
        call.x1.shape[0],
        PLANS["per row"].irreps_out.dim,
    )


def test_forward_derivatives_are_seen() -> None:
    call = call_of("shared", OUT)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(call.x1, call.x1)
        found = ops.kernel_product(dual, call.x2, call.w, call.description)
        primal, tangent = torch.autograd.forward_ad.unpack_dual(found)
    torch.testing.assert_close(tangent, primal)  # linear in x1


def test_faults_are_told_by_python() -> None:
    call = call_of("shared", OUT, edges=True)
    by_runtime(call)
    with pytest.raises(InputError, match=f"edge_src holds an index out of range: indices run from 0 to {NODES - 1}"):
        ops.kernel_conv(call.x1, call.x2, call.w, call.src + NODES, call.dst, NODES, call.description)


def test_a_trace_leaves_the_number_of_nodes_open() -> None:
    """A kernel that the runtime knows is traced as any other: no size of the trace is fixed."""
    call = call_of("per row", OUT, edges=True)
    by_runtime(call)

    def convolved(x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return ops.kernel_conv(x, y, w, src, dst, x.shape[0], call.description)

    given = call.x1, call.x2, call.w, call.src, call.dst
    more = torch.cat([call.x1, call.x1])
    traced = make_fx(convolved, tracing_mode="symbolic")(*given)
    torch.testing.assert_close(traced(more, *given[1:]), convolved(more, *given[1:]))


# -- where there is no runtime -----------------------------------------------------------------------------------------


def test_a_torch_that_lacks_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = 'extern "C" int torch_does_all(); extern "C" int tpgen_register() { return torch_does_all(); }'
    monkeypatch.setattr(native, "process_text", lambda: needs)
    with pytest.warns(UserWarning, match="(?s)kernels are called from Python.*torch_does_all.*TPGEN_NATIVE=0"):
        assert native._runtime.__wrapped__() is None


def test_it_may_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_NATIVE", "0")
    assert native._runtime.__wrapped__() is None


def test_products_without_it_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of("shared", OUT)
    wanted = by_runtime(call)
    monkeypatch.setattr(runtime_of_forms, "runtime", lambda: None)
    kernels_of.cache_clear()
    assert same([ops.kernel_product(call.x1, call.x2, call.w, call.description)], wanted)
    assert not kernels_of(call.description).quick(call)
    kernels_of.cache_clear()


def test_slots_come_in_their_order() -> None:
    call = call_of("per row", 15)
    assert [x.shape for x in by_runtime(call)] == [x.shape for x in call[:4]]


def test_traces_keep_the_number_of_nodes_open() -> None:
    """It is a symbol then, and asking the runtime must not make it the number that was seen."""
    call = call_of("shared", OUT, edges=True)
    by_runtime(call)

    def convolution(x1: Tensor, x2: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return ops.kernel_conv(x1, x2, call.w, src, dst, x1.shape[0], call.description)

    traced = make_fx(convolution, tracing_mode="symbolic", _allow_non_fake_inputs=True)(
        call.x1, call.x2, call.src, call.dst
    )
    assert traced(call.x1[:1], call.x2, call.src * 0, call.dst * 0).shape[0] == 1


def test_a_call_and_its_gradients_take_few_steps() -> None:
    """Small products are overhead, and each function of Python on their way shows."""
    call = call_of("per row", OUT)
    inputs = [x.requires_grad_() for x in (call.x1, call.x2, call.w)]
    functions: list[str] = []

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith("tpgen."):
            functions.append(frame.f_code.co_name)

    def forward_and_backward() -> None:
        torch.autograd.grad(ops.kernel_product(*inputs, call.description).sum(), inputs)

    forward_and_backward()  # builds the kernels
    sys.setprofile(count)
    forward_and_backward()
    sys.setprofile(None)
    assert "pull_back" in functions
    assert len(functions) <= 24, functions


def test_without_the_function_behind_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_torch, "operation", raising=False)
    monkeypatch.setitem(_torch.NAMES, "operation", _torch.Private("torch._C", "_gone", "nothing", "slower"))
    assert native._operation("run") is torch.ops.tpgen_native.run.default
