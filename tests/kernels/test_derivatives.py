"""Derivatives of every order and kind come out of one rule; torch's tools agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.kernels.plans import VARIANTS, call, mode_plan, operands
from tpgen.base.errors import PlanError
from tpgen.form.reference import reference_product
from tpgen.kernels.placement.planning import CHANNEL_LETTER
from tpgen.kernels.runtime import forms
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.description import read_description
from tpgen.kernels.runtime.ops import describe, kernel_conv, kernel_product
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, full, fully_connected
from tpgen.planner.product import make_plan

pytestmark = pytest.mark.usefixtures("unoptimised")

PLANS = {
    "channel": channelwise("8x0e+8x1o", "0e+1o", "0e+1o"),
    "channel, shared": channelwise("8x0e+8x1o", "0e+1o", "1o", shared_weights=True),
    "batch": fully_connected("2x0e+1o", "0e+1o", "2x1o", shared_weights=False),
    "batch, shared": fully_connected("2x0e+1o", "0e+1o", "2x1o"),
}
ALL = pytest.mark.parametrize("name", PLANS)


def differentiable(plan: Plan, rows: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    x1, x2, w, _ = operands(plan, rows).values()
    return x1.requires_grad_(), x2.requires_grad_(), w.requires_grad_(plan.weight_numel > 0)


def both(plan: Plan):
    """The kernel's product and the definition's."""
    text = describe(plan)
    return (
        lambda x1, x2, w: kernel_product(x1, x2, w, text),
        lambda x1, x2, w: reference_product(plan, x1, x2, w),
    )


@pytest.mark.parametrize("copies", [2, 5])
@pytest.mark.parametrize("mode, weighted, shared", VARIANTS)
def test_first_and_second_derivatives(mode: str, weighted: bool, shared: bool, copies: int) -> None:
    m1, m2 = (2, copies) if mode == "uvv" else (copies, 2)
    plan = mode_plan(mode, weighted, shared, m1, m2)
    schedule = kernels_of(describe(plan)).description.schedule(torch.float64).name
    assert schedule == ("channel" if mode in CHANNEL_LETTER else "batch") or copies < 5
    kernel, _ = both(plan)
    inputs = differentiable(plan, 2)
    assert torch.autograd.gradcheck(kernel, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(kernel, inputs, fast_mode=True)


@ALL
def test_third_derivative(name: str) -> None:
    plan = PLANS[name]
    inputs = differentiable(plan)

    def third(product):
        total = product(*inputs).pow(2).sum()
        for _ in range(3):
            total = sum(g.pow(2).sum() for g in torch.autograd.grad(total, inputs, create_graph=True))
        return total

    kernel, definition = both(plan)
    torch.testing.assert_close(third(kernel), third(definition), rtol=1e-10, atol=0.0)


@ALL
def test_only_the_gradients_that_are_asked_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x1, x2, w = differentiable(PLANS[name])
    kernel, definition = both(PLANS[name])
    opened: list[str] = []

    def listening(self: object, one: FormCall) -> list[Tensor]:
        opened.append(one.call.partition(" -> ")[2])
        return kernels_of(one.description).run(one)

    monkeypatch.setattr(forms, "_WORTH_ASKING", 0)
    monkeypatch.setattr(forms._FormOperator, "compute_in_cpp", listening)

    def force_step(product):
        inner = x2 * 1.0  # no leaf, as the edges' harmonics are in a network
        (force,) = torch.autograd.grad(product(x1, inner, w).square().sum(), inner, create_graph=True)
        return force, *torch.autograd.grad(force.square().sum(), w)

    torch.testing.assert_close(force_step(kernel), force_step(definition))
    # the product, its gradient of x2; then of that the gradients of w and the cotangent, whose path leads to w again
    assert opened == ["out", "x2", "w out", "w"]
    opened.clear()
    product = kernel(x1, x2, w)
    product.sum().backward(inputs=[w], retain_graph=True)
    product.sum().backward()
    assert opened == ["out", "w", "x1 x2 w"]


@ALL
def test_forward_mode(name: str) -> None:
    kernel, _ = both(PLANS[name])
    assert torch.autograd.gradcheck(
        kernel, differentiable(PLANS[name]), check_forward_ad=True, check_backward_ad=False, fast_mode=True
    )


@ALL
def test_torch_accepts_the_operators(name: str) -> None:
    plan = PLANS[name]
    inputs = differentiable(plan)
    torch.library.opcheck(torch.ops.tpgen.form.default, call("out", *inputs, text=describe(plan)).to_arguments())
    g = torch.randn(3, plan.irreps_out.dim, dtype=torch.float64, requires_grad=True)
    given = call("x1 x2 w", *inputs, g, text=describe(plan)).to_arguments()
    torch.library.opcheck(torch.ops.tpgen.form.default, given)


@ALL
@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, 0, None), (1, None, 0)])
def test_vmap(name: str, in_dims: tuple, samples: int) -> None:
    plan = PLANS[name]
    kernel, definition = both(plan)
    inputs = [
        x.detach() if d is None else torch.randn(samples, *x.shape, dtype=x.dtype).movedim(0, d)
        for x, d in zip(differentiable(plan), in_dims, strict=True)
    ]
    torch.testing.assert_close(torch.func.vmap(kernel, in_dims)(*inputs), torch.func.vmap(definition, in_dims)(*inputs))


@ALL
@pytest.mark.parametrize("samples", [1, 3])
def test_vmap_of_gradients_behind_a_level_that_is_over(name: str, samples: int) -> None:
    x1, x2, w = differentiable(PLANS[name])
    cotangents = torch.randn(samples, 3, PLANS[name].irreps_out.dim, dtype=torch.float64)
    found = []
    for product in both(PLANS[name]):
        _, back = torch.func.vjp(lambda x, product=product: product(x, x2, w).sin(), x1.detach())
        each = torch.vmap(lambda c, back=back: back(c)[0])(cotangents)
        found.append((each.detach(), *torch.autograd.grad(each.sin().sum(), (x2, w))))
    torch.testing.assert_close(*found)


@ALL
def test_gradients_behind_a_level_of_torch_func_that_is_over(name: str) -> None:
    """What `vjp` returns is called after its level: operands are what is left of wrappers, and weights are outside."""
    x1, x2, w = differentiable(PLANS[name])
    cotangent = torch.ones(3, PLANS[name].irreps_out.dim).double()
    for _ in range(2):  # the second time all kernels are there, and calls may take the shortest way
        found = []
        for product in both(PLANS[name]):
            _, back = torch.func.vjp(lambda x, product=product: product(x, x2, w).sin(), x1.detach())
            found.append(torch.autograd.grad(back(cotangent)[0].sin().sum(), w))
        torch.testing.assert_close(*found)


def test_vmap_without_weights() -> None:
    plan = full("2x0e+1o", "0e+1o")
    kernel, definition = both(plan)
    x1, x2, _ = (x.detach() for x in differentiable(plan))
    many = x1.repeat(4, 1, 1)
    for transform in (
        lambda f: torch.func.vmap(lambda x: f(x, x2, None)),
        lambda f: torch.func.jacrev(lambda x: f(x[0], x2, None)),
        lambda f: torch.func.hessian(lambda x: f(x[0], x2, None).pow(2).sum()),
    ):
        wanted = transform(lambda a, b, _: definition(a, b, a.new_empty(0)))(many)
        torch.testing.assert_close(transform(kernel)(many), wanted)


@pytest.mark.parametrize("convolution", [False, True])
def test_empty_weights_that_require_grad_change_nothing(convolution: bool) -> None:
    """A weight network without outputs gives weights of no entries that autograd follows."""
    plan = channelwise("8x0e+8x1o", "0e+1o", "0e+1o")
    plan = make_plan(
        plan.irreps_in1, plan.irreps_in2, plan.irreps_out, [(*i[:4], False) for i in plan.instructions],
        shared_weights=False,
    )  # fmt: skip
    rows, text, order = 3, describe(plan), torch.arange(3)

    def product(x1: Tensor, x2: Tensor, w: Tensor) -> Tensor:
        return kernel_conv(x1, x2, w, order, order, rows, text) if convolution else kernel_product(x1, x2, w, text)

    def definition(x1: Tensor, x2: Tensor, w: Tensor) -> Tensor:
        return reference_product(plan, x1, x2, w) + w.sum()

    def second(f) -> tuple[Tensor, ...]:
        x1, x2, w = (x.detach().requires_grad_() for x in given)
        first = torch.autograd.grad(f(x1, x2, w).sin().sum(), (x1, x2, w), create_graph=True)
        return torch.autograd.grad(sum(g.cos().sum() for g in first), (x1, x2))

    given = tuple(x.detach() for x in operands(plan, rows).values())[:3]
    torch.testing.assert_close(second(product), second(definition))
    tangents = tuple(torch.ones_like(x) for x in given)
    torch.testing.assert_close(
        torch.func.jvp(product, given, tangents)[1], torch.func.jvp(definition, given, tangents)[1]
    )
    many = torch.randn(2, *given[0].shape, dtype=torch.float64)
    each = torch.func.vmap(torch.func.grad(lambda x1, w: product(x1, given[1], w).sum(), 1), (0, None))
    assert each(many, given[2]).shape == (2, rows, 0)


def test_vmap_over_no_samples() -> None:
    plan = PLANS["channel"]
    kernel, _ = both(plan)
    x1, x2, w = (torch.empty(0, *x.shape, dtype=x.dtype) for x in differentiable(plan))
    assert torch.func.vmap(kernel)(x1, x2, w).shape == (0, 3, plan.irreps_out.dim)
    each = torch.func.vmap(torch.func.grad(lambda *inputs: kernel(*inputs).sum(), (0, 1, 2)))
    assert [g.shape for g in each(x1, x2, w)] == [x.shape for x in (x1, x2, w)]


@ALL
def test_transforms_nest(name: str) -> None:
    plan = PLANS[name]
    kernel, definition = both(plan)
    inputs = [x.detach() for x in differentiable(plan)]

    def energy(product):
        return lambda x1, x2, w: product(x1, x2, w).pow(2).sum()

    for transform in (
        lambda f: torch.func.jacrev(f, 1),
        lambda f: torch.func.jacfwd(f, 2),
        lambda f: torch.func.hessian(energy(f), 1),
        lambda f: (
            lambda *a: torch.func.vmap(torch.func.grad(energy(f), 2), (None, 0, None))(
                a[0], a[1].expand(2, -1, -1), a[2]
            )
        ),
    ):
        torch.testing.assert_close(transform(kernel)(*inputs), transform(definition)(*inputs))


def test_compiled_network_trains_with_dynamic_shapes() -> None:
    plan = PLANS["channel"]
    kernel, _ = both(plan)

    def loss(x1, x2, w):
        return kernel(x1.sin(), x2, w).tanh().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (3, 5, 8):
        inputs = differentiable(plan, rows)
        for got, wanted in zip(
            torch.autograd.grad(compiled(*inputs), inputs), torch.autograd.grad(loss(*inputs), inputs), strict=True
        ):
            torch.testing.assert_close(got, wanted)


def test_exported_program_finds_its_kernel() -> None:
    plan = PLANS["channel"]
    text = describe(plan)

    class Network(torch.nn.Module):
        def forward(self, x1: Tensor, x2: Tensor, w: Tensor) -> Tensor:
            return kernel_product(x1.sin(), x2, w, text)

    inputs = tuple(x.detach() for x in differentiable(plan, 5))
    rows = torch.export.Dim("rows")
    program = torch.export.export(Network(), inputs, dynamic_shapes=({0: rows}, {0: rows}, {0: rows}))
    more = tuple(x.detach() for x in differentiable(plan, 7))
    torch.testing.assert_close(program.module()(*more), Network()(*more))


def test_saved_packages_run_in_another_process(tmp_path: Path) -> None:
    plan = PLANS["channel"]
    text, trusting = describe(plan), describe(plan, check_index=False)

    class Network(torch.nn.Module):
        def forward(self, x1: Tensor, x2: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
            product = kernel_product(x1.sin(), x2, w, text).tanh()
            return product + kernel_conv(x1, x2, w, src, dst, x1.shape[0], trusting)

    def arguments(rows: int) -> tuple[Tensor, ...]:
        return *(x.detach() for x in differentiable(plan, rows)), *torch.randint(rows, (2, rows))

    inputs, more = arguments(5), arguments(7)
    program = torch.export.export(Network(), inputs, dynamic_shapes=({0: torch.export.Dim("rows")},) * 5)
    torch.export.save(program, tmp_path / "exported.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "compiled.pt2"))
    torch.save((more, Network()(*more)), tmp_path / "values.pt")
    code = """
import torch, tpgen
more, wanted = torch.load("values.pt")
for run in (torch.export.load("exported.pt2").module(), torch._inductor.aoti_load_package("compiled.pt2")):
    torch.testing.assert_close(run(*more), wanted)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_second_inputs_that_a_layer_does_not_read_change_no_derivative() -> None:
    layer = describe(make_linear_plan("3x0e+2x1o", "2x0e+1o"))
    x = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    w = torch.randn(8, dtype=torch.float64, requires_grad=True)

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return kernel_product(x, x[:, :0], w, layer)

    assert torch.autograd.gradgradcheck(product, (x, w), check_fwd_over_rev=True, check_batched_grad=True)


# -- weighted and unweighted paths: where another value stands in the weights' place, the latter drop out --------------

INSTRUCTIONS = [(0, 0, 0, "uvu", True), (0, 0, 1, "uvu", False), (0, 0, 1, "uvu", True, 0.5)]


@pytest.mark.parametrize("shared", [True, False])
def test_derivatives_of_weighted_and_unweighted_paths(shared: bool) -> None:
    plan = make_plan("3x1o", "1o", "3x1e+3x0e", INSTRUCTIONS, shared_weights=shared)
    given = operands(plan, 4)
    text = describe(plan)
    inputs = tuple(given[name].clone().requires_grad_() for name in ("x1", "x2", "w"))

    def product(*x: torch.Tensor) -> torch.Tensor:
        return kernel_product(*x, text)

    torch.autograd.gradgradcheck(product, inputs)
    torch.autograd.gradcheck(product, inputs, check_forward_ad=True)


def test_the_weighted_part_keeps_coefficients_and_weights() -> None:
    plan = make_plan("3x1o", "1o", "3x1e+3x0e", INSTRUCTIONS)
    part = read_description(read_description(describe(plan)).text_with_weighted_paths)
    assert [(t.path, t.coefficient) for t in part.form.terms] == [
        (p.index, p.coefficient) for p in plan.paths if p.weight is not None
    ]
    assert part.text_with_weighted_paths == read_description(part.text_with_weighted_paths).text_with_weighted_paths


def test_an_unknown_part_is_refused() -> None:
    fields = json.loads(describe(make_plan("1o", "1o", "1e", [(0, 0, 0, "uuu", True)])))
    with pytest.raises(PlanError, match="paths must be one of all, weighted, got 'some'"):
        read_description(json.dumps({**fields, "paths": "some"}))
