"""Emitted programs equal the slow definition: every mode, weighted or not, layout, strategy and direction."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import Tensor

from tests.cases import (
    CASES,
    LAYOUTS,
    MIXED,
    ROWS,
    STRATEGIES,
    Case,
    assert_close,
    operands,
    random_arguments,
    reference_right,
    run_python,
)
from tpgen.base._e3nn import default_dtype
from tpgen.base.errors import EmitError
from tpgen.compiler.backends import script_module
from tpgen.emitter.emit import DIRECTIONS, Emission, emit_form, emit_plan
from tpgen.emitter.strategies import STRATEGIES as KNOWN
from tpgen.form.form import Layout, right_form
from tpgen.form.reference import reference_product
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected
from tpgen.planner.product import make_plan

by_case = pytest.mark.parametrize("case", CASES, ids=str)
by_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)
ROW_DIRECTIONS = tuple(name for name in DIRECTIONS if name != "conv")  # see test_indexed.py for edges
by_strategy = pytest.mark.parametrize("strategy", STRATEGIES)

Derivatives = tuple[dict[str, Tensor], dict[tuple[str, str], Tensor]]


def derivatives(out: Tensor, leaves: dict[str, Tensor], cotangents: dict[str, Tensor]) -> Derivatives:
    """Gradients of ``g · out``, and the derivatives of each along its cotangent, by autograd."""
    leaves = {name: x for name, x in leaves.items() if x.numel() > 0}
    first = torch.autograd.grad((out * cotangents["g"]).sum(), list(leaves.values()), create_graph=True)
    gradients = dict(zip(leaves, first, strict=True))
    leaves = {**leaves, "g": cotangents["g"]}
    second = {}
    for name, gradient in gradients.items():
        others = {other: x for other, x in leaves.items() if other != name}
        along = torch.autograd.grad(
            (gradient * cotangents[name]).sum(), list(others.values()), retain_graph=True, materialize_grads=True
        )
        second.update({(name, other): x for other, x in zip(others, along, strict=True)})
    return gradients, second


@cache
def expected(case: Case, layout: Layout) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor, Derivatives]:
    """Operands, cotangents, the product and its derivatives, by the slow definition."""
    leaves = operands(case.plan, requires_grad=True)
    out = reference_product(case.plan, *leaves.values(), layout=layout)
    cotangents = {name: torch.randn_like(x, requires_grad=name == "g") for name, x in {**leaves, "g": out}.items()}
    return leaves, cotangents, out, derivatives(out, leaves, cotangents)


def run(emission: Emission, **given: Tensor) -> Tensor:
    return emission.module().double()(*(given[name] for name in emission.arguments))


def check_derivatives(got: Derivatives, want: Derivatives) -> None:
    for mine, theirs in zip(got, want, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert_close(mine[name], theirs[name])


def test_all_strategies_are_tested() -> None:
    assert set(STRATEGIES) <= set(KNOWN)


@by_strategy
@by_layout
@by_case
def test_every_direction_is_the_definition(case: Case, layout: Layout, strategy: str) -> None:
    leaves, cotangents, out, (gradients, second) = expected(case, layout)
    forward = run(emit_plan(case.plan, "forward", strategy, layout), **leaves)
    assert_close(forward, out)
    # derivatives of the forward program, by autograd: orders one and two
    check_derivatives(derivatives(forward, leaves, cotangents), (gradients, second))
    # gradients as programs of their own, and autograd through them: order two once more
    for name, want in gradients.items():
        given = {**{n: x for n, x in leaves.items() if n != name}, "g": cotangents["g"]}
        got = run(emit_plan(case.plan, f"grad_{name}", strategy, layout), **given)
        assert_close(got, want)
        given = {n: x for n, x in given.items() if x.numel() > 0}
        along = torch.autograd.grad((got * cotangents[name]).sum(), list(given.values()), materialize_grads=True)
        for other, x in zip(given, along, strict=True):
            assert_close(x, second[name, other])


@by_strategy
@by_layout
@by_case
def test_right_is_the_definition(case: Case, layout: Layout, strategy: str) -> None:
    leaves = operands(case.plan, requires_grad=True)
    del leaves["x1"]
    want = reference_right(case.plan, *leaves.values(), layout)
    cotangents = {name: torch.randn_like(x, requires_grad=name == "g") for name, x in {**leaves, "g": want}.items()}
    by_definition = derivatives(want, leaves, cotangents)
    got = run(emit_plan(case.plan, "right", strategy, layout), **leaves)
    assert_close(got, want)
    check_derivatives(derivatives(got, leaves, cotangents), by_definition)
    for name, gradient in by_definition[0].items():  # gradients of right, as programs
        emission = emit_form(right_form(case.plan, layout).open(name), strategy)
        given = {**leaves, "g": cotangents["g"], "x1*out": cotangents["g"]}
        assert_close(run(emission, **given), gradient)


@by_strategy
def test_all_modes_in_one_product(strategy: str) -> None:
    for seed in range(12):
        arguments, keywords = random_arguments(seed)
        check_product(make_plan(*arguments, **keywords), strategy)
    check_product(make_plan(*MIXED), strategy)
    check_product(make_plan(*MIXED, shared_weights=False), strategy)


def check_product(plan: Plan, strategy: str) -> None:
    given = operands(plan)
    want = reference_product(plan, *given.values())
    assert_close(run(emit_plan(plan, "forward", strategy), **given), want)
    assert_close(run(emit_plan(plan, "right", strategy), **given), reference_right(plan, given["x2"], given["w"]))
    given = {name: x.requires_grad_() for name, x in given.items()}
    g = torch.randn_like(want)
    scalar = (reference_product(plan, *given.values()) * g).sum()
    gradients = torch.autograd.grad(scalar, list(given.values()), allow_unused=True, materialize_grads=True)
    for (name, x), gradient in zip(given.items(), gradients, strict=True):
        if x.numel() > 0:
            assert_close(run(emit_plan(plan, f"grad_{name}", strategy), **given, g=g), gradient)


# --- batches ----------------------------------------------------------------------------------------------------------

SHAPES = [
    ((2, 1, 3), (1, 2, 3), (1, 2, 1)),
    ((2, 1, 0, 1, 4), (1, 2, 0, 3, 4), (1,)),
    ((), (), (1,)),
    ((), (3,), (2, 1)),
    ((3,), (), (1,)),
    ((0,), (0,), (0,)),
    ((1,), (5,), (5,)),
]


@by_strategy
@pytest.mark.parametrize("shared", [True, False])
def test_batch_dimensions_broadcast(strategy: str, shared: bool) -> None:
    plan = make_plan(*MIXED, shared_weights=shared)
    for batch1, batch2, batch_w in SHAPES:
        batch = torch.broadcast_shapes(batch1, batch2, () if shared else batch_w)
        dims = {"x1": plan.irreps_in1.dim, "x2": plan.irreps_in2.dim, "w": plan.weight_numel, "g": plan.irreps_out.dim}
        batches = {"x1": batch1, "x2": batch2, "w": () if shared else batch_w, "g": batch1}
        given = {name: torch.randn(*batches[name], dim, dtype=torch.float64) for name, dim in dims.items()}
        for direction in ROW_DIRECTIONS:
            emission = emit_plan(plan, direction, strategy)
            got = run(emission, **given)
            names = emission.arguments
            flat = {
                name: given[name]
                if name == "w" and shared
                else given[name].expand(*torch.broadcast_shapes(*(batches[n] for n in names)), -1).flatten(0, -2)
                if torch.broadcast_shapes(*(batches[n] for n in names))
                else given[name].unsqueeze(0)
                for name in names
            }
            rows_shape = torch.broadcast_shapes(*(batches[n] for n in names))
            want = run(emission, **flat)
            if not (direction == "grad_w" and shared):
                want = want.reshape(*rows_shape, *want.shape[1:])
            assert_close(got, want)
        if direction == "forward":
            assert got.shape == (*batch, plan.irreps_out.dim)


@by_strategy
@pytest.mark.parametrize(
    "arguments",
    [
        ("", "", "", []),
        ("0x0e", "1o", "0x1o", [(0, 0, 0, "uvw", True)]),
        ("2x1o", "", "3x0e", []),
        ("", "2x1o", "3x0e", []),
        ("2x1o", "3x1o", "", []),
        ("2x1o + 0x1o", "0x0e + 1x1o", "2x0e + 3x1o + 0x1e", [(0, 1, 0, "uvu", True), (1, 1, 2, "uvw", True)]),
        ("1x1o", "1x1o", "0x1e", [(0, 0, 0, "uvu<v", False)]),
        ("2x1o", "2x1o", "2x0e", [(0, 0, 0, "uuu", True, 0.0)]),
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_empty_products(strategy: str, arguments: tuple, shared: bool) -> None:
    plan = make_plan(*arguments, shared_weights=shared)
    given = operands(plan)
    given["g"] = torch.randn(ROWS, plan.irreps_out.dim, dtype=torch.float64)
    for direction in ROW_DIRECTIONS:
        got = run(emit_plan(plan, direction, strategy), **given)
        shape = {
            "forward": (ROWS, plan.irreps_out.dim),
            "right": (ROWS, plan.irreps_in1.dim, plan.irreps_out.dim),
            "grad_x1": (ROWS, plan.irreps_in1.dim),
            "grad_x2": (ROWS, plan.irreps_in2.dim),
            "grad_w": tuple(given["w"].shape),
        }[direction]
        assert got.shape == shape
    assert_close(run(emit_plan(plan, "forward", strategy), **given), reference_product(plan, *list(given.values())[:3]))


# --- constants --------------------------------------------------------------------------------------------------------


@by_strategy
def test_constants_are_exact_in_every_dtype(strategy: str) -> None:
    emission = emit_plan(make_plan(*MIXED), "right", strategy)
    assert emission.constants
    module = emission.module()
    assert module.state_dict() == {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float64):
        module = module.to(dtype)
        for name, buffer in module.named_buffers():
            values = torch.tensor(emission.constants[name])
            assert torch.equal(buffer, values.to(dtype) if values.is_floating_point() else values), name


@by_strategy
def test_a_copied_module_keeps_its_constants(strategy: str) -> None:
    emission = emit_plan(make_plan(*MIXED), "forward", strategy)
    given = operands(make_plan(*MIXED))
    copied = copy.deepcopy(emission.module().float()).double()
    assert_close(copied(*given.values()), run(emission, **given))


def test_meta_modules_get_their_constants_where_they_are_made_real() -> None:
    plan = make_plan(*MIXED)
    module = emit_plan(plan).module().to("meta").to_empty(device="cpu").double()
    given = operands(plan)
    assert_close(module(*given.values()), reference_product(plan, *given.values()))


def test_modules_are_born_in_the_default_dtype() -> None:
    with default_dtype(torch.float64):
        module = emit_plan(make_plan(*MIXED)).module()
    assert {b.dtype for b in module.buffers() if b.is_floating_point()} == {torch.float64}


# --- determinism, caching, errors -------------------------------------------------------------------------------------


def emitted_text() -> str:
    """Digest of the code of every case, strategy and direction."""
    import hashlib

    digest = hashlib.sha256()
    for case in CASES[::5]:
        for strategy in STRATEGIES:
            for direction in ROW_DIRECTIONS:
                digest.update(emit_plan(case.plan, direction, strategy).code.encode())
    return digest.hexdigest()


def test_text_is_the_same_in_every_process() -> None:
    assert run_python("from tests.emitter.test_emit import *; print(emitted_text())").strip() == emitted_text()


def test_the_same_request_is_written_once() -> None:
    plan, again = make_plan(*MIXED), make_plan(*MIXED)
    assert plan is not again
    assert emit_plan(plan, "forward", "grouped") is emit_plan(again, "forward", "grouped")
    assert emit_plan(plan, layout=["mul_ir"] * 3) is emit_plan(plan, layout=("mul_ir",) * 3)  # type: ignore[arg-type]
    assert emit_plan(plan, "forward", "grouped") is not emit_plan(plan, "forward", "einsum")


def test_two_modules_of_one_emission_are_independent() -> None:
    emission = emit_plan(make_plan(*MIXED))
    first, second = emission.module(), emission.module()
    first.double()
    assert all(b.dtype != torch.float64 for b in second.buffers())


def test_errors() -> None:
    plan = make_plan(*MIXED)
    with pytest.raises(EmitError, match="unknown strategy 'fast'; known strategies: einsum, grouped, unrolled"):
        emit_plan(plan, strategy="fast")
    with pytest.raises(EmitError, match=r"'left'.*grad_x1"):
        emit_plan(plan, "left")
    with pytest.raises(EmitError, match=r"'row'.*mul_ir, ir_mul"):
        emit_plan(plan, layout="row")
    with pytest.raises(EmitError, match="layout: give one name, or one for each"):
        emit_plan(plan, layout=["mul_ir"])  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", ["forward", "right"])
@by_strategy
def test_every_strategy_scripts(strategy: str, direction: str) -> None:
    plan = make_plan(*MIXED, shared_weights=False)
    emission = emit_plan(plan, direction, strategy)
    module = emission.module().double()
    scripted = script_module(module)
    for rows in (3, 5, 1, 0):
        given = operands(plan, rows)
        call = [given[name] for name in emission.arguments]
        assert_close(scripted(*call), module(*call))


def test_problems_of_the_suites_in_float32() -> None:
    """Larger multiplicities take other branches (orders of contraction, groups) than small ones."""
    plans = [
        channelwise("16x0e + 16x1o", "0e + 1o + 2e", "0e + 1o + 2e"),
        fully_connected("8x0e + 8x1o", "4x0e + 1x1o", "16x0e + 8x1o"),
        fully_connected("5x0e + 5x1o", "0e + 1o", "5x0e + 5x1o", shared_weights=False),
    ]
    for plan in plans:
        for strategy in STRATEGIES:
            check_product(plan, strategy)
