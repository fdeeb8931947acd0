"""Second derivatives in one kernel against the sum of gradients that they stand for, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from tests.interpreter import INTERPRETER
from tests.kernels.plans import VARIANTS, mode_plan
from tpgen.base.errors import InputError, PlanError
from tpgen.kernels.arguments import KernelCall, KernelSpec
from tpgen.kernels.placement.planning import CHANNEL_LETTER
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.forms import forms
from tpgen.kernels.runtime.ops import describe, kernel_conv, kernel_product
from tpgen.kernels.runtime.runtime import Kernels, kernels_of
from tpgen.kernels.sweep.terms import SLOTS, make_second_derivative_call
from tpgen.nn.linear import Linear
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise

pytestmark = pytest.mark.usefixtures("unoptimised")

ROWS, NODES = 11, 4
FUSED = [variant for variant in VARIANTS if variant[0] in CHANNEL_LETTER]
SMALL = channelwise("8x0e+8x1o", "0e+1o", "0e+1o")


@contextmanager
def expanding() -> Iterator[None]:
    """Second derivatives by gradients alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernels, "fuses_second_derivatives", lambda *_: False)
        yield


def derivatives(plan: Plan, edges: bool, dtype: torch.dtype = torch.float64, third: bool = True) -> list[Tensor]:
    """Second derivatives in all that there is, and third ones of those."""
    draw = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()

    x1 = random(NODES if edges else ROWS, plan.irreps_in1.dim)
    x2 = random(ROWS, plan.irreps_in2.dim)
    w = random(*(() if plan.shared_weights else (ROWS,)), plan.weight_numel)
    inputs = [x1, x2, *([w] if plan.weight_numel else [])]
    text = describe(plan)
    if edges:
        src = torch.randint(NODES, (ROWS,), generator=draw)
        dst = torch.randint(NODES - 1, (ROWS,), generator=draw)  # the last node gets nothing
        out = kernel_conv(x1, x2, w, src, dst, NODES, text)
    else:
        out = kernel_product(x1, x2, w, text)
    g = random(*out.shape)
    first = torch.autograd.grad(out, inputs, g, create_graph=True)
    cotangents = [random(*x.shape) for x in first]
    second = torch.autograd.grad(first, [*inputs, g], cotangents, create_graph=third)
    if not third:
        return list(second)
    more = [random(*x.shape) for x in second]
    return [*second, *torch.autograd.grad(second, [*inputs, g, *cotangents], more)]


@pytest.mark.parametrize(
    "mode, weighted, shared, edges",
    [*((*variant, False) for variant in FUSED), *((*variant, True) for variant in FUSED if variant[0] == "uvu")],
)
def test_one_kernel_is_the_sum_of_gradients(mode: str, weighted: bool, shared: bool, edges: bool) -> None:
    plan = mode_plan(mode, weighted, shared, 5, 5)
    assert kernels_of(describe(plan)).fuses_second_derivatives(torch.float64, "cpu")
    found = derivatives(plan, edges)
    with expanding():
        expected = derivatives(plan, edges)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
@pytest.mark.parametrize("edges", [False, True])
def test_smaller_numbers(edges: bool, dtype: torch.dtype, tolerance: float) -> None:
    found = derivatives(SMALL, edges, dtype, third=False)
    for x, exact in zip(found, derivatives(SMALL, edges, third=False), strict=True):
        assert (x.double() - exact).abs().max() < tolerance * exact.abs().max()


@pytest.mark.parametrize(
    "opened, raised, layout",
    [
        (("x1",), ("x2", "w"), "mul_ir"),
        (("x2", "w"), ("x1", "x2"), "mul_ir"),
        (("out",), ("w", "out"), "mul_ir"),
        (SLOTS, SLOTS, "mul_ir"),
        (SLOTS, ("x1", "w"), "ir_mul"),
    ],
)
def test_any_cotangents_and_slots(opened: tuple[str, ...], raised: tuple[str, ...], layout: str) -> None:
    """Of compiled kernels and of the interpreter."""
    plan = SMALL.remade(shared_weights=True)
    text, call = describe(plan, layout), str(make_second_derivative_call(opened, raised))
    shapes = {"x1": (ROWS, 32), "x2": (ROWS, 4), "w": (plan.weight_numel,), "out": (ROWS, plan.irreps_out.dim)}
    draw = torch.Generator().manual_seed(2)
    tensors = [torch.randn(shapes[o], generator=draw, dtype=torch.float64) for o in (*SLOTS, *raised)]
    found = forms.run_kernels(FormCall(tensors, (), text, call))
    with expanding():
        torch.testing.assert_close(found, forms.run_kernels(FormCall(tensors, (), text, call)))
    spec = KernelSpec(kernels_of(text).description, make_second_derivative_call(opened, raised), torch.float64)
    results = [torch.empty_like(x) for x in found]
    INTERPRETER.load(spec)(KernelCall(tensors, results, ROWS))
    torch.testing.assert_close(found, results)


def test_force_training_takes_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: set[tuple[str, ...]] = set()
    run = Kernels.compute_in_cpp

    def counted(self: Kernels, call: FormCall) -> Sequence[Tensor]:
        calls.add(self.description.computed_and_cotangent_operands(call.slots)[1])
        return run(self, call)

    monkeypatch.setattr(Kernels, "compute_in_cpp", counted)
    derivatives(SMALL, edges=True, third=False)
    assert calls - {()} == {("x1", "x2", "w")}


def test_large_couplings_are_expanded() -> None:
    large = channelwise("8x3o+8x4e+8x5o", "3o+4e+5o", "3o+4e+5o+3e+4o+5e")
    assert not kernels_of(describe(large)).fuses_second_derivatives(torch.float32, "cpu")


def test_mixing_modes_are_expanded() -> None:
    assert not kernels_of(describe(mode_plan("uvw", True, True, 5, 5))).fuses_second_derivatives(torch.float32, "cpu")


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("opens_weights", [True, False])
@pytest.mark.parametrize("batched", [("x1", "x1.1"), ("w.1",), ("x2", "w", "out")])
def test_a_batch_over_the_operator(batched: tuple[str, ...], opens_weights: bool, shared: bool) -> None:
    plan = SMALL.remade(shared_weights=shared)
    opened = ("x1", "w", "out") if opens_weights else ("x1", "out")
    call = make_second_derivative_call(opened, ("x1", "w"))
    numel = plan.weight_numel
    shapes = {"x1": (NODES, 32), "x2": (ROWS, 4), "w": (numel,) if shared else (ROWS, numel), "out": (NODES, 32)}
    shapes["out"] = (NODES, plan.irreps_out.dim)
    draw = torch.Generator().manual_seed(3)
    own = [str(slot) in batched for slot in call.given]
    tensors = [
        torch.randn(*([3] if b else []), *shapes[slot.operand], generator=draw, dtype=torch.float64)
        for slot, b in zip(call.given, own, strict=True)
    ]
    src, dst = (torch.randint(NODES, (ROWS,), generator=draw) for _ in range(2))

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.ops.tpgen.form(list(tensors), [src, dst], describe(plan), str(call), "src dst"))

    found = torch.vmap(run, in_dims=tuple(0 if b else None for b in own))(*tensors)
    each = [run(*(x[n] if b else x for x, b in zip(tensors, own, strict=True))) for n in range(3)]
    torch.testing.assert_close(found, tuple(map(torch.stack, zip(*each, strict=True))))


def test_shapes_without_values_and_in_a_graph() -> None:
    text, call = describe(SMALL), str(make_second_derivative_call(("x1", "out"), ("x2", "w")))
    tensors = [torch.randn(ROWS, n) for n in (32, 4, SMALL.weight_numel, SMALL.irreps_out.dim, 4, SMALL.weight_numel)]
    inputs = (tensors, [], text, call)
    torch.library.opcheck(torch.ops.tpgen.form, inputs, test_utils=("test_schema", "test_faketensor"))


def refused(call: str, tensors: int = 6) -> None:
    x = [torch.ones(2, 32), torch.ones(2, 4), torch.ones(2, 32), torch.ones(2, 32)]
    torch.ops.tpgen.form([*x, *x[:2]][:tensors], [], describe(SMALL), call)


def test_calls_from_a_file_are_checked() -> None:
    with pytest.raises(PlanError, match="not a call"):
        refused("x1 x2")
    with pytest.raises(InputError, match="cotangents at level 1"):
        refused("x1 x2 w out x1.2 -> x1")
    with pytest.raises(InputError, match="cotangents at level 1"):
        refused("x1 x2 w out z.1 -> z")
    for call, tensors in (("x1 x2 w out -> w x1", 4), ("x1 x2 w out x1.1 x2.1 -> out x2", 6)):
        with pytest.raises(InputError, match="opens slots in this order"):
            refused(call, tensors)
    with pytest.raises(InputError, match="is given 6 tensors, got 5"):
        refused("x1 x2 w out x1.1 x2.1 -> x1", tensors=5)
    with pytest.raises(InputError, match=r"\(2, 64\), got \(2, 32\)"):
        refused("x1 x2 w out x1.1 x2.1 -> x1")


@pytest.mark.parametrize("training", [True, False])
def test_kernels_of_gradients_that_evaluation_asks_for_are_built_first(training: bool) -> None:
    layer = Linear(f"{7 + training}x0e", "3x0e", strategy="kernel").train(training)  # nobody else has built these
    kernels = kernels_of(layer.kernel_text)
    out = layer(torch.randn(4, 7 + training, requires_grad=True))
    built = {str(slots) for slots, *_ in kernels._kernels}
    opened = {text.partition("-> ")[2] for text in built}
    assert opened == ({"out", "x1 w"} if training else {"out", "x1"})
    out.sum().backward()
    assert layer.weight.grad is not None
