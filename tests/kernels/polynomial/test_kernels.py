"""Kernels of polynomials against the slow definition: values, derivatives of three orders, channels, dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from e3nn.o3 import Irreps
from torch import Tensor

import tpgen
from tests.interpreter import INTERPRETER
from tests.kernels.test_products import identical, on_threads
from tests.machine import needs_compiler
from tests.polynomials import PLANS, mixed, operands_of, slow, symmetric
from tpgen.base.errors import InputError, PlanError
from tpgen.form.call import Call
from tpgen.kernels.arguments import KernelCall, KernelSpec
from tpgen.kernels.rows import ELEMENTS
from tpgen.kernels.runtime import targets
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.ops import kernel_polynomial
from tpgen.kernels.runtime.polynomials import forward_call
from tpgen.kernels.runtime.runtime import Kernels, kernels_of
from tpgen.kernels.runtime.targets import KERNEL_TARGETS, target_of, why_kernel_unsupported
from tpgen.planner.plan import OUT, Operand, Plan
from tpgen.planner.polynomial_plan import PolynomialTerm, make_polynomial_plan

pytestmark = needs_compiler
INDEX = torch.tensor([0, 2, 2, 0, 0, 2, 0])  # no row of element 1


def kernel(plan: Plan, index: Tensor | None, *tensors: Tensor) -> Tensor:
    return kernel_polynomial(tensors, index, plan.to_json(), str(forward_call(plan)))


def both(plan: Plan, index: Tensor | None) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    return partial(kernel, plan, index), lambda *tensors: slow(plan, tensors, index)


def gradients(y: Tensor, tensors: Sequence[Tensor], cotangent: Tensor | None = None) -> list[Tensor]:
    found = torch.autograd.grad(y, tensors, cotangent, create_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(tensors, found, strict=True)]


@pytest.mark.parametrize("channels", [1, 3, 16])
@pytest.mark.parametrize("name", PLANS)
def test_three_orders_agree_with_the_definition(name: str, channels: int) -> None:
    plan = PLANS[name]()
    tensors = operands_of(plan, 7, 3, channels)
    fast, definition = both(plan, INDEX if plan.weights else None)
    levels = [fast(*tensors), definition(*tensors)]
    torch.testing.assert_close(*levels)
    cotangent = torch.randn_like(levels[0])
    first = [gradients(y, tensors, cotangent) for y in levels]
    torch.testing.assert_close(*first)
    directions = [torch.randn_like(x) for x in tensors]
    sums = [torch.stack([(g * d).sum() for g, d in zip(f, directions, strict=True)]).sum() for f in first]
    second = [gradients(s, tensors) for s in sums]
    torch.testing.assert_close(*second)
    third = [gradients(torch.stack([(g**2).sum() for g in s]).sum(), tensors) for s in second]
    torch.testing.assert_close(*third)


@pytest.mark.parametrize("channels", [5, 48, 130])
def test_any_number_of_channels(channels: int) -> None:
    plan = symmetric(degree=2)
    tensors = operands_of(plan, 4, 2, channels, torch.float32)
    fast, definition = both(plan, torch.tensor([1, 0, 1, 1]))
    results = [fast(*tensors), definition(*tensors)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(*[gradients(y, tensors, torch.ones_like(y)) for y in results], rtol=1e-4, atol=1e-4)


def test_it_reads_nothing_past_its_rows() -> None:
    """Operands are views of memory that goes on with NaN."""
    plan = mixed()
    tensors = [x.detach() for x in operands_of(plan, 3, 1, 5)]
    padded = [torch.cat([x, torch.full_like(x, torch.nan)]) for x in tensors]
    views = [x[: t.shape[0]] for x, t in zip(padded, tensors, strict=True)]
    assert torch.equal(kernel(plan, None, *views), kernel(plan, None, *tensors))


@pytest.mark.parametrize("elements", [1, 7])
def test_shared_weights_and_weights_of_each_row(elements: int) -> None:
    plan = symmetric(degree=2)
    tensors = operands_of(plan, 7, elements, 6)
    fast, definition = both(plan, None)
    results = [fast(*tensors), definition(*tensors)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*[gradients(y, tensors, torch.ones_like(y)) for y in results])


def test_no_rows() -> None:
    plan = symmetric(degree=2)
    tensors = operands_of(plan, 0, 3, 6)
    result = kernel(plan, torch.zeros(0, dtype=torch.int64), *tensors)
    assert result.shape == (0, 24)
    assert not any(g.any() for g in gradients(result, tensors, result))


def test_gradcheck_and_gradgradcheck() -> None:
    plan = mixed()
    tensors = operands_of(plan, 3, 2, 2)
    call = partial(kernel, plan, torch.tensor([1, 0, 1]))
    assert torch.autograd.gradcheck(call, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, tensors)


def test_operands_may_be_called_what_they_like() -> None:
    """No slot of one is called as another is."""
    vector, scalar = Irreps("1o"), Operand(OUT, Irreps("0e"))
    names = ["x", "x_1", "out_1", "v1", "a", "da", "W", "C", "n"]
    terms = [PolynomialTerm((name, names[n - 1]), 0) for n, name in enumerate(names)]
    plan = make_polynomial_plan([*(Operand(name, vector) for name in names), scalar], terms)
    tensors = operands_of(plan, 2, 1, 2)
    assert torch.autograd.gradcheck(partial(kernel, plan, None), tensors, check_forward_ad=True)


def test_bfloat16_sums_in_float32() -> None:
    plan = mixed()
    tensors = [x.bfloat16() for x in operands_of(plan, 5, 1, 20, grad=False)]
    exact = kernel(plan, None, *(x.float() for x in tensors))
    torch.testing.assert_close(kernel(plan, None, *tensors), exact.bfloat16())


def test_nan_propagates() -> None:
    plan = symmetric(degree=2)
    tensors = operands_of(plan, 3, 1, 4, grad=False)
    tensors[0][1, 2, 0] = torch.nan
    result = kernel(plan, None, *tensors)
    assert result[1].isnan().any()
    assert not result[[0, 2]].isnan().any()


def test_one_thread_and_many_give_the_same_bits() -> None:
    plan = symmetric()
    index = torch.randint(3, (300,))
    tensors = operands_of(plan, 300, 3, 40, torch.float32)

    def compute() -> list[Tensor]:
        y = kernel(plan, index, *tensors)
        return [y, *torch.autograd.grad(y, tensors, torch.ones_like(y))]

    assert identical(on_threads(1, compute), on_threads(4, compute))


@pytest.mark.parametrize("weights_batch", [None, 0])
def test_vmap_is_more_rows(weights_batch: int | None) -> None:
    plan = symmetric(degree=2)
    x, *weights = operands_of(plan, 4, 3, 5, grad=False)
    xs, ws = torch.stack([x, 2 * x]), [torch.stack([w, -w]) for w in weights]
    given = weights if weights_batch is None else ws
    call = partial(kernel, plan, torch.tensor([2, 0, 0, 1]))
    mapped = torch.func.vmap(call, in_dims=(0, *[weights_batch] * len(weights)))(xs, *given)
    single = [call(xs[n], *(weights if weights_batch is None else [w[n] for w in ws])) for n in range(2)]
    torch.testing.assert_close(mapped, torch.stack(single))


@pytest.mark.parametrize("elements", [1, 3, 4])
def test_gradients_of_each_sample(elements: int) -> None:
    """With shared weights, weights by element and weights of each row."""
    plan = symmetric(degree=2)
    index = INDEX[:4] if elements == 3 else None
    x, *weights = operands_of(plan, 4, elements, 5, grad=False)
    xs = torch.stack([x, x.flip(0)])

    def loss(x: Tensor, *weights: Tensor) -> Tensor:
        return kernel(plan, index, x, *weights).pow(2).sum()

    grad = torch.func.grad(loss, argnums=tuple(range(1 + len(weights))))
    mapped = torch.func.vmap(grad, in_dims=(0, *[None] * len(weights)))(xs, *weights)
    single = [grad(one, *weights) for one in xs]
    torch.testing.assert_close(mapped, tuple(torch.stack(parts) for parts in zip(*single, strict=True)))


def test_forward_over_reverse_is_reverse_over_reverse() -> None:
    plan = symmetric(degree=2)
    x, *weights = operands_of(plan, 3, 1, 2, grad=False)

    def loss(x: Tensor) -> Tensor:
        return kernel(plan, None, x, *weights).pow(3).sum()

    hessians = [torch.func.hessian(loss)(x), torch.func.jacrev(torch.func.jacrev(loss))(x)]
    torch.testing.assert_close(*hessians)


def test_torch_compile_takes_it_whole() -> None:
    plan = symmetric(degree=2)
    tensors = operands_of(plan, 4, 3, 5)
    index = torch.tensor([2, 0, 0, 1])
    text, forward = plan.to_json(), str(forward_call(plan))

    def call(*tensors: Tensor) -> Tensor:
        return kernel_polynomial(tensors, index, text, forward) * 2

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    results = [compiled(*tensors), call(*tensors)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*[torch.autograd.grad(y.sum(), tensors) for y in results])


def test_only_what_is_asked_for_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = symmetric(degree=2)
    tensors = operands_of(plan, 4, 1, 5)
    calls: list[str] = []
    kernels = kernels_of(plan.to_json())
    quick = kernels.compute_in_cpp
    monkeypatch.setattr(kernels, "compute_in_cpp", lambda call: (calls.append(call.call), quick(call))[1])
    torch.autograd.grad(kernel(plan, None, *tensors).sum(), tensors[0])
    assert calls[-1].endswith(" -> x")


def test_bad_tensors_say_what_is_wrong() -> None:
    plan = symmetric(degree=2)
    x, *weights = operands_of(plan, 4, 3, 5, grad=False)
    index = torch.tensor([2, 0, 0, 1])
    for wrong in (index + 1, index - 1):
        with pytest.raises(InputError, match=f"index: elements run from 0 to 2, got {wrong.min()} to {wrong.max()}"):
            kernel(plan, wrong, x, *weights)
    with pytest.raises(InputError, match="3 elements need the element of each of the 4 rows"):
        kernel(plan, None, x, *weights)
    with pytest.raises(InputError, match=r"index must be int64, got torch.int32"):
        kernel(plan, index.int(), x, *weights)
    with pytest.raises(InputError, match="x: a row must be whole channels of 4"):
        kernel(plan, index, x[:, :, :3], *weights)
    with pytest.raises(InputError, match="has 4 channels, and the tensors before it have 5"):
        kernel(plan, index, x, weights[0][:, :, :4], *weights[1:])
    with pytest.raises(InputError, match="has 2 elements, and the tensors before it have 3"):
        kernel(plan, index, x, weights[0], weights[1][:2], *weights[2:])
    with pytest.raises(InputError, match="float32, float64 or bfloat16"):
        kernel(plan, index, x.half(), *(w.half() for w in weights))
    with pytest.raises(InputError, match="is given 5 tensors, got 1"):
        torch.ops.tpgen.form([x], [index], plan.to_json(), str(forward_call(plan)), "element")


def test_bad_calls_say_what_is_wrong() -> None:
    plan = mixed(weighted=False)
    tensors = operands_of(plan, 2, 1, 3, grad=False)
    mixed_up = [tensors[0], tensors[1].float(), tensors[2]]
    with pytest.raises(InputError, match=r"float64.*float32"):
        torch.ops.tpgen.form(mixed_up, [], plan.to_json(), "a b y -> out", "element")
    with pytest.raises(InputError, match="a: must have rows"):
        torch.ops.tpgen.form([torch.ones(())], [], plan.to_json(), "a -> out", "element")
    with pytest.raises(InputError, match="y: a row must have 9 numbers"):
        torch.ops.tpgen.form([torch.ones(2, 8)], [], plan.to_json(), "y -> out", "element")
    for call in ["a", "a -> ", "a a -> out", "a.0 -> out", "a -> out.1", "z -> out", "a.21 -> a"]:
        with pytest.raises(PlanError, match="call"):
            torch.ops.tpgen.form([tensors[0]], [], plan.to_json(), call, "element")


def test_calls_open_what_has_a_shape() -> None:
    plan = symmetric(degree=1)
    x = operands_of(plan, 4, 1, 5, grad=False)[0]
    for call in ("x -> w0_1", "x out.1 -> w0_1 out"):
        with pytest.raises(PlanError, match="w0_1 is opened and nothing says its shape: give w0_1 too"):
            torch.ops.tpgen.form([x, x.flatten(1)][: call.count(" ") - 1], [], plan.to_json(), call, "element")


def test_derivatives_have_an_end() -> None:
    call = Call.parse("x -> out")
    for _ in range(9):
        call = call.pushed_forward([True, *[False] * (len(call.given) - 1)])
    with pytest.raises(PlanError, match="up to order 9"):
        call.pushed_forward([True] * len(call.given))


def test_what_compiles_for_long_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_kernel_unsupported(symmetric()) is None
    monkeypatch.setattr("tpgen.kernels.runtime.targets._COMFORTABLE", 10)
    monkeypatch.setattr(targets, "_why_no_kernel_on_chip", targets._why_no_kernel_on_chip.__wrapped__)  # asked anew
    assert "kernels of more than 10 take long to compile" in str(why_kernel_unsupported(symmetric()))


def test_too_large_for_a_kernel(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is a graph's, and says so once."""
    plan = symmetric()
    tensors = operands_of(plan, 2, 1, 3)
    wanted = kernel(plan, None, *tensors)
    monkeypatch.setattr("tpgen.kernels.runtime.polynomials.LARGEST", 10)
    tpgen.caches().clear()
    with pytest.warns(UserWarning, match="more than 10: use strategy='einsum'"):
        found = kernel(plan, None, *tensors)
    torch.testing.assert_close(found, wanted)
    tpgen.caches().clear()


@pytest.mark.parametrize("index", [None, INDEX])
@pytest.mark.parametrize("name", PLANS)
def test_targets_agree(name: str, index: Tensor | None) -> None:
    """Of the output, of all gradients, and of second derivatives."""
    plan = PLANS[name]()
    index = index if plan.weights else None
    tensors = operands_of(plan, 7, 1 if index is None else 3, 5, grad=False)
    forward = forward_call(plan)
    given = [True] * len(forward.given)
    backward = forward.pulled_back([True], given)
    calls = [
        forward,
        backward,
        backward.pulled_back([n == 0 for n in range(len(given))], [True, *[False] * len(given)]),
    ]
    for call in calls:
        kernels = kernels_of(plan.to_json())
        signature = kernels.signature(str(call), (ELEMENTS,))
        tensors += [torch.randn(s, dtype=torch.float64) for s in _more(plan, call, tensors)]
        own = FormCall(tensors, [] if index is None else [index], plan.to_json(), str(call), (ELEMENTS,))
        counts = signature.measure_axes(own)
        spec = KernelSpec(kernels.description, call, torch.float64, (ELEMENTS,))
        indices = kernels.prepare_row_indices(own, counts)
        found = []
        for target in (KERNEL_TARGETS["cpp"], INTERPRETER):
            results = [torch.empty(s, dtype=torch.float64) for s in signature.result_shapes(tensors, counts)]
            assert target.load(spec)(KernelCall(tensors, results, counts["rows"], counts["channels"], indices)) == 0
            found.append(results)
        torch.testing.assert_close(*found)


def _more(plan: Plan, call: Call, tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Shapes of what a call is given beyond these tensors."""
    channels = tensors[0].numel() // tensors[0].shape[0] // plan.operands[0].dim
    first = dict(zip((s.operand for s in call.given), tensors, strict=False))
    out = (tensors[0].shape[0], plan.out.dim * channels)
    return [tuple(first[s.operand].shape) if s.operand in first else out for s in call.given[len(tensors) :]]


def test_a_device_without_a_target() -> None:
    everything = dict(KERNEL_TARGETS)
    del KERNEL_TARGETS["cpp"]
    target_of.cache_clear()
    try:
        assert why_kernel_unsupported(symmetric(), device="cpu") == "kernels run on CUDA GPUs, not on cpu"
        plan = mixed(weighted=False)
        call = FormCall(operands_of(plan, 2, 1, 3, grad=False), (), plan.to_json(), "a b y -> out", (ELEMENTS,))
        with pytest.raises(InputError, match="a must be on CUDA GPUs, where the kernels run, got cpu; move it"):
            Kernels(call.description).run(call)
    finally:
        KERNEL_TARGETS.clear()
        KERNEL_TARGETS.update(everything)  # in their order, which messages have
        target_of.cache_clear()


def test_a_row_of_the_table_is_all_that_a_device_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNEL_TARGETS, "cpp", INTERPRETER)
    monkeypatch.setenv("TPGEN_CXX", "none")
    for function in (target_of, kernels_of):
        function.cache_clear()
    try:
        plan = mixed()
        assert why_kernel_unsupported(plan) is None
        tensors = operands_of(plan, 3, 2, 2)
        index = torch.tensor([1, 0, 1])
        torch.testing.assert_close(kernel(plan, index, *tensors), slow(plan, tensors, index))
        assert torch.autograd.gradcheck(partial(kernel, plan, index), tensors)
        with pytest.raises(InputError, match="index: elements run from 0 to 1"):
            kernel(plan, index + 1, *tensors)
    finally:
        for function in (target_of, kernels_of):
            function.cache_clear()
