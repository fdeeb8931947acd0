"""The runtime computes what Python's calls do, to the bit, and leaves to Python what is not usual."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from tests.kernels.plans import call as call_on
from tests.kernels.plans import operands
from tests.polynomials import PLANS as POLYNOMIALS
from tests.polynomials import operands_of, symmetric
from tpgen.base import _torch
from tpgen.base.errors import InputError
from tpgen.kernels.rows import ELEMENTS
from tpgen.kernels.runtime import memory, ops
from tpgen.kernels.runtime import runtime as runtime_of_forms
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.forms import forms
from tpgen.kernels.runtime.memory import LARGE
from tpgen.kernels.runtime.native import runtime as native
from tpgen.kernels.runtime.polynomials import parse_polynomial_call
from tpgen.kernels.runtime.runtime import Kernels, kernels_of
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected

ROWS, NODES = 7, 4
PLANS = {
    "shared": fully_connected("2x0e+1o", "0e+1o", "0e+1o"),
    "per row": channelwise("8x0e+8x1o", "0e+1o", "0e+1o"),
}


INDEX = torch.tensor([0, 2, 2, 0, 0, 2, 0])  # of elements: no row of element 1
CHANNELS = 16


def in_python(call: FormCall, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The open slots by kernels that the runtime does not know."""
    with monkeypatch.context() as patch:
        patch.setattr(runtime_of_forms, "load_cpp_runtime", lambda: None)
        return Kernels(call.description).run(call)


def by_runtime(call: FormCall) -> list[Tensor]:
    """The same by the runtime alone."""
    product = kernels_of(call.description)
    product.run(call)  # builds the kernel
    return list(product.compute_in_cpp(call))


ALL, GRADIENTS = "x1 x2 w out", "x1 x2 w"


def call_of(name: str, opened: str, dtype: torch.dtype = torch.float32, edges: bool = False) -> FormCall:
    x1, x2, w, g = operands(PLANS[name], ROWS, dtype).values()
    text = describe(PLANS[name])
    if not edges:
        return call_on(opened, x1, x2, w, g, text=text)
    ends = torch.randint(NODES, (2, ROWS))
    return call_on(opened, x1[:NODES], x2, w, g[:NODES], text=text, edges=[*ends], nodes=NODES)


def polynomial_call(plan: Plan, name: str, dtype: torch.dtype = torch.float32) -> FormCall:
    """A named call: tensors of the polynomial, and cotangents in the shape of what they belong to."""
    tensors = [x.detach().to(dtype) for x in operands_of(plan, ROWS, 3, CHANNELS)]
    out = torch.randn(ROWS, plan.out.dim * CHANNELS, dtype=dtype)
    likes = {o.name: x for o, x in zip((o for o in plan.operands if o.name != "out"), tensors, strict=True)}
    slots = parse_polynomial_call(plan, name)
    given = [*tensors, *(torch.randn_like(likes.get(slot.operand, out)) for slot in slots.given[len(tensors) :])]
    return FormCall(given, [INDEX] if plan.weights else [], plan.to_json(), str(slots), (ELEMENTS,))


KINDS: dict[str, Callable[[torch.dtype], FormCall]] = {
    "product": lambda dtype: call_of("shared", "out", dtype),
    "edges": lambda dtype: call_of("per row", GRADIENTS, dtype, edges=True),
    "polynomial": lambda dtype: polynomial_call(symmetric(), "backward", dtype),
}
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)


def ends_of(call: FormCall) -> tuple[Tensor, Tensor]:
    src, dst = call.at
    return src, dst


def with_index(call: FormCall, place: int, **fields: object) -> FormCall:
    indices = [*call.indices]
    indices[place] = indices[place]._replace(**fields)
    return call.with_indices(indices)


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return len(found) == len(wanted) > 0 and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("opened, edges", [("x2", False), ("out", False), (ALL, False), (GRADIENTS, True), (ALL, True)])
def test_every_slot_is_opened(name: str, opened: str, edges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of(name, opened, edges=edges)
    assert same(by_runtime(call), in_python(call, monkeypatch))


@pytest.mark.parametrize("call", ["forward", "backward", "second"])
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_every_call_of_a_polynomial(name: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = polynomial_call(POLYNOMIALS[name](), call)
    assert same(by_runtime(own), in_python(own, monkeypatch))


@ALL_KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_dtype(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    call = KINDS[kind](dtype)
    assert same(by_runtime(call), in_python(call, monkeypatch))


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "every other column": lambda x: torch.stack([x, x + 1], dim=-1).flatten(-2)[..., ::2],
    "transposed": lambda x: x.T.contiguous().T if x.dim() == 2 else x,
    "expanded": lambda x: x[..., :1].expand(x.shape),
    "one row for all": lambda x: x[:1].expand(x.shape),
    "part of wider rows": lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
}


@pytest.mark.parametrize("kind", ["edges", "polynomial"])
@pytest.mark.parametrize("how", STRIDES)
def test_operands_of_any_strides(how: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = KINDS[kind](torch.float32)
    strided = call._replace(tensors=[*map(STRIDES[how], call.tensors)])
    strided = with_index(strided, 0, tensor=STRIDES["every other column"](call.at[0]))
    assert same(by_runtime(strided), in_python(strided, monkeypatch))


def test_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = call_of("per row", GRADIENTS)
    call = whole._replace(tensors=[x[:0] for x in whole.tensors])
    assert same(by_runtime(call), in_python(call, monkeypatch))


def test_results_without_channels_are_sums_over_none() -> None:
    call = polynomial_call(symmetric(), "backward")
    made = by_runtime(call._replace(tensors=[x[..., :0] for x in call.tensors]))
    assert len(made) > 1
    assert all(not x.count_nonzero() for x in made)


@pytest.mark.parametrize("kind", ["rows", "edges", "polynomial"])
def test_calls_and_both_their_derivatives_go_without_python(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    polynomial = polynomial_call(symmetric(), "forward", torch.float64)
    call = polynomial if kind == "polynomial" else call_of("per row", "out", torch.float64, kind == "edges")
    leaves = [x.requires_grad_() for x in call.tensors]

    def second() -> list[Tensor]:
        (made,) = forms.compute(call)
        first = torch.autograd.grad(made.sin().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(x.cos().sum() for x in first), leaves))

    wanted = second()
    monkeypatch.setattr(
        Kernels, "_check_and_run", lambda _, call: pytest.fail(f"a usual call went through Python: {call}")
    )
    assert same(second(), wanted)


@ALL_KINDS
def test_what_was_forgotten_gets_its_number_again(kind: str) -> None:
    call = KINDS[kind](torch.float32)
    wanted, entered = by_runtime(call), dict(kernels_of(call.description)._entered)
    kernels_of.cache_clear()
    assert same(by_runtime(call), wanted)
    again = kernels_of(call.description)._entered
    assert again
    assert all(entered[key] == numbers for key, numbers in again.items())


# -- what it leaves to Python ------------------------------------------------------------------------------------------


def at_once(x1: Tensor, call: FormCall) -> int:
    """How many results the runtime returns."""
    return len(kernels_of(call.description).compute_in_cpp(call._replace(tensors=[x1, *call.tensors[1:]])))


@pytest.mark.parametrize("kind", ["product", "polynomial"])
def test_what_is_not_usual_is_left_to_python(kind: str) -> None:
    call = call_of("shared", "out") if kind == "product" else polynomial_call(symmetric(), "forward")
    by_runtime(call)
    x1, *others = call.tensors
    many = x1.expand(2, *x1.shape)
    assert at_once(x1, call) == 1
    assert torch.func.vmap(lambda x: x + at_once(x, call))(many).equal(many)
    assert torch.func.grad(lambda x: x.sum() * (1 + at_once(x, call)))(x1).equal(torch.ones_like(x1))
    with FakeTensorMode() as fake:
        fakes = call._replace(tensors=[x1, *map(fake.from_tensor, others)], at=[*map(fake.from_tensor, call.at)])
        assert at_once(fake.from_tensor(x1), fakes) == 0
    with FlopCounterMode(display=False):
        assert at_once(x1, call) == 0
    assert at_once(x1.to("meta"), call) == 0
    assert at_once(x1.to_sparse(), call) == 0
    traced = torch.jit.trace(lambda x: x * (1 + at_once(x, call)), x1, check_trace=False)
    assert traced(x1).equal(x1)


def test_what_does_not_fit_is_left_to_python() -> None:
    call = call_of("shared", GRADIENTS, edges=True)
    by_runtime(call)
    (x1, x2, w, g), (src, dst) = call.tensors, ends_of(call)
    others = [
        *((0, x) for x in (x1[:, 1:], x1.double(), x1[0])),
        *((1, x) for x in (x2[1:], x2[0])),
        *((2, x) for x in (w[1:], w.expand(ROWS, -1))),
        *((3, x) for x in (g[:, 1:], g.half())),
    ]
    changed = [call._replace(tensors=[*call.tensors[:n], x, *call.tensors[n + 1 :]]) for n, x in others]
    changed += [with_index(call, 0, tensor=x) for x in (None, src[1:], src.short())]
    changed += [with_index(call, 1, tensor=dst - NODES), call._replace(tensors=call.tensors[:3])]
    changed += [call._replace(call=text) for text in ("x1 x2 w out -> x1 x2", "none")]  # the first has no kernel yet
    changed += [call.with_indices(call.indices[:1]), call._replace(tensors=())]
    forward = call_of("shared", "out", edges=True)
    by_runtime(forward)
    changed.append(with_index(forward, 1, size=-1))
    product = kernels_of(call.description)
    for one in changed:
        assert not product.compute_in_cpp(one), one
    for number in (-1, 2**40):
        assert not native.load_cpp_runtime().form([*call.tensors, src, dst], number)


def test_what_does_not_fit_a_polynomial_is_left_to_python() -> None:
    call = polynomial_call(symmetric(), "forward")
    by_runtime(call)
    first, *weights = call.tensors
    others: dict[str, tuple[list[Tensor], Tensor | None]] = {
        "a row too few": ([first[1:], *weights], INDEX),
        "part of a channel": ([first[..., 1:], *weights], INDEX),
        "another dtype": ([first, *weights[:-1], weights[-1].double()], INDEX),
        "a dtype without its kernel": ([x.half() for x in (first, *weights)], INDEX),
        "a tensor too few": ([first, *weights[:-1]], INDEX),
        "no index": ([first, *weights], None),
        "indices too short": ([first, *weights], INDEX[1:]),
        "indices of 32 bits": ([first, *weights], INDEX.int()),
        "a number": ([first.sum(), *weights], INDEX),
    }
    for why, (tensors, index) in others.items():
        one = call._replace(tensors=tensors, at=[] if index is None else [index])
        assert not kernels_of(call.description).compute_in_cpp(one), why


@pytest.mark.parametrize("edges", [False, True])
def test_few_tensors_need_no_list(edges: bool) -> None:
    """What the overload without lists computes is the same to the bit, and it leaves the same to Python."""
    call, runtime = call_of("per row", "out", edges=edges), native.load_cpp_runtime()
    (wanted,) = by_runtime(call)
    ((number, _),) = kernels_of(call.description)._entered[call.call, torch.float32, call.rules]
    x1, *rest = call.tensors
    assert torch.equal(runtime.few(x1, *rest, number, call.nodes, *call.at)[0], wanted)
    assert torch.equal(runtime.form([*call.tensors, *call.at], number, call.nodes)[0], wanted)
    for wrong in (x1[:, 1:], x1.double(), x1[0], x1.to("meta")):
        assert not runtime.few(wrong, *rest, number, call.nodes, *call.at)
    for place in (-1, 2**40):
        assert not runtime.few(x1, *rest, place, call.nodes, *call.at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "form", None)  # usual calls are of few tensors
        assert torch.equal(kernels_of(call.description).compute_in_cpp(call)[0], wanted)


def large_call(opened: str) -> FormCall:
    """One whose results are just as large as to stand on pages that are kept."""
    if opened == "polynomial":
        small, plan = polynomial_call(symmetric(), "forward"), symmetric()
        times = -(-LARGE // (4 * ROWS * plan.out.dim * CHANNELS))
        first, *weights = small.tensors
        wide = first.repeat_interleave(times, 1)
        return small._replace(tensors=[wide, *(w.repeat_interleave(times, -1) for w in weights)])
    plan = PLANS["per row"]
    x1, x2, w, g = operands(plan, LARGE // 4 // plan.weight_numel, torch.float32).values()
    return call_on(opened, x1, x2, w, g, text=describe(plan))


@pytest.mark.parametrize("opened", ["out", GRADIENTS, "polynomial"])
def test_large_results_stand_on_pages_that_are_kept(opened: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = large_call(opened)
    wanted = in_python(call, monkeypatch)
    found = by_runtime(call)
    assert same(found, wanted)
    large = [x for x in found if x.nbytes >= LARGE]
    places, before = {x.data_ptr() for x in large}, memory.kept_bytes()
    size = sum(x.nbytes for x in large)
    assert size
    del found, large
    assert memory.kept_bytes() >= before + size  # nothing else holds them
    again = kernels_of(call.description).compute_in_cpp(call)
    assert places & {x.data_ptr() for x in again}


def test_forward_derivatives_are_seen() -> None:
    call = call_of("shared", "out")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(call.tensors[0], call.tensors[0])
        found = ops.kernel_product(dual, *call.tensors[1:], call.description)
        primal, tangent = torch.autograd.forward_ad.unpack_dual(found)
    torch.testing.assert_close(tangent, primal)  # linear in x1


def test_faults_are_told_by_python() -> None:
    call = call_of("shared", "out", edges=True)
    by_runtime(call)
    src, dst = ends_of(call)
    with pytest.raises(InputError, match=f"edge_src holds an index out of range: indices run from 0 to {NODES - 1}"):
        ops.kernel_conv(*call.tensors, src + NODES, dst, NODES, call.description)
    own = polynomial_call(symmetric(), "forward")
    by_runtime(own)
    with pytest.raises(InputError, match="index: elements run from 0 to 2, got 3 to 5"):
        ops.kernel_polynomial(own.tensors, INDEX + 3, own.description, own.call)


def test_a_trace_leaves_the_number_of_nodes_open() -> None:
    """A kernel that the runtime knows is traced as any other: no size of the trace is fixed."""
    call = call_of("per row", "out", edges=True)
    by_runtime(call)

    def convolved(x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return ops.kernel_conv(x, y, w, src, dst, x.shape[0], call.description)

    given = (*call.tensors, *ends_of(call))
    more = torch.cat([given[0], given[0]])
    traced = make_fx(convolved, tracing_mode="symbolic")(*given)
    torch.testing.assert_close(traced(more, *given[1:]), convolved(more, *given[1:]))


# -- where there is no runtime -----------------------------------------------------------------------------------------


def test_a_torch_that_lacks_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = 'extern "C" int torch_does_all(); extern "C" int tpgen_register() { return torch_does_all(); }'
    monkeypatch.setattr(native, "write_process_runtime_source", lambda: needs)
    with pytest.warns(UserWarning, match="(?s)kernels are called from Python.*torch_does_all.*TPGEN_NATIVE=0"):
        assert native._build_cpp_runtime_or_none.__wrapped__() is None


def test_it_may_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_NATIVE", "0")
    assert native._build_cpp_runtime_or_none.__wrapped__() is None


def test_products_without_it_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    call = call_of("shared", "out")
    wanted = by_runtime(call)
    monkeypatch.setattr(runtime_of_forms, "load_cpp_runtime", lambda: None)
    kernels_of.cache_clear()
    assert same([ops.kernel_product(*call.tensors, call.description)], wanted)
    assert not kernels_of(call.description).compute_in_cpp(call)
    kernels_of.cache_clear()


def test_slots_come_in_their_order() -> None:
    call = call_of("per row", ALL)
    assert [x.shape for x in by_runtime(call)] == [x.shape for x in call.tensors]


def test_a_call_and_its_gradients_take_few_steps() -> None:
    """Small products are overhead, and each function of Python on their way shows."""
    call = call_of("per row", "out")
    inputs = [x.requires_grad_() for x in call.tensors]
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
    assert native._get_native_operator("form") is torch.ops.tpgen_native.form.default
    assert native._get_native_operator("form", "few") is torch.ops.tpgen_native.form.few
