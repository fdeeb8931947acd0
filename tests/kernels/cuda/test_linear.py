"""Linear layers on a GPU: the kernels' own text against the slow definition, and what is left to the library."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, product
from pathlib import Path

import torch
from torch import Tensor

from tests.kernels.cuda.standin import StandIn
from tests.kernels.plans import forward_spec
from tests.machine import needs_compiler
from tpgen.form.form import form_of
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.generate import CudaSource, generate_cuda
from tpgen.kernels.cuda.placement import place_form
from tpgen.kernels.cuda.target import kernel_obstacle, slower
from tpgen.nn.linear import Linear
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan

ROWS = 11
OPENED = (("out",), ("x1", "x2", "w"), ("x1",), ("w",), ("x1", "out"))
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 1.2e-2}
PLANS = {
    "narrow": ("8x0e+3x1o", "5x0e+40x1o"),
    "several paths into one segment": ("3x0e+2x0e+4x1o", "6x0e+1x1o+2x1o"),
    "a segment that no path reaches": ("4x0e+2x2e", "3x0e+7x1o"),
}


def plan_of(name: str, shared: bool) -> Plan:
    return make_linear_plan(*PLANS[name], shared_weights=shared)


def source_of(plan: Plan, layout: str, dtype: str, opened: tuple[str, ...], arch: int = 90) -> CudaSource:
    return generate_cuda(place_form(form_of(plan, layout), dtype, opened, chip_of(arch)))


def operands_of(plan: Plan, dtype: str) -> dict[str, Tensor]:
    weights = (plan.weight_numel,) if plan.shared_weights else (ROWS, plan.weight_numel)
    shapes = {"x1": (ROWS, plan.irreps_in.dim), "x2": (ROWS, 0), "w": weights, "out": (ROWS, plan.irreps_out.dim)}
    return {name: torch.randn(shape).to(getattr(torch, dtype)).double() for name, shape in shapes.items()}


def wanted(plan: Plan, layout: str, given: dict[str, Tensor]) -> dict[str, Tensor]:
    layer = Linear.from_plan(plan, internal_weights=False, strategy="einsum", layout=layout).double()
    x1, w = (given[name].clone().requires_grad_() for name in ("x1", "w"))
    out = layer(x1, w)
    found = torch.autograd.grad(out, (x1, w), given["out"])
    return {"out": out.detach(), "x1": found[0], "w": found[1]}


WAYS = tuple(product(TOLERANCES, ("mul_ir", "ir_mul"), (2, 1, 2, 0)))


@needs_compiler
def test_kernels_agree_with_the_definition(tmp_path: Path) -> None:
    check(WAYS, tmp_path)


@needs_compiler
def check(ways: Iterable[tuple[str, str, int]], folder: Path) -> None:
    """All plans, weights and open slots; dtypes, layouts and ways to copy take turns with them."""
    turns = cycle(ways)
    cases = [
        (plan_of(name, shared), opened, *next(turns)) for name, shared, opened in product(PLANS, (True, False), OPENED)
    ]
    sources = [source_of(plan, layout, dtype, opened) for plan, opened, dtype, layout, _ in cases]
    stand_in = StandIn(sources, [copies for *_, copies in cases], folder)
    for n, (plan, opened, dtype, layout, _) in enumerate(cases):
        given = operands_of(plan, dtype)
        found, again = (stand_in.run(n, given, seed=seed) for seed in (0, 2))
        right = wanted(plan, layout, given)
        for slot in (s for s in opened if s != "x2"):
            error = (found[slot] - right[slot]).abs().max() / right[slot].abs().max()
            assert error < TOLERANCES[dtype], f"{slot} of {plan}: {error}"
            assert torch.equal(found[slot], again[slot])


def test_the_library_has_the_large_ones() -> None:
    chip = chip_of(90)
    narrow, wide = (make_linear_plan(irreps, irreps) for irreps in ("8x0e+4x1o", "512x0e+512x1o"))
    assert slower(forward_spec(narrow), chip) is None
    assert "262144 weights that all rows share" in str(slower(forward_spec(wide), chip))
    assert kernel_obstacle(forward_spec(narrow), chip) is None
