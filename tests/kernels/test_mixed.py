"""Mixed weighted and unweighted paths: where another value stands in the weights' place, the latter drop out."""

from __future__ import annotations

import json

import pytest
import torch

from tests.kernels.plans import operands
from tpgen.base.errors import PlanError
from tpgen.kernels.runtime.description import describe, read_description
from tpgen.kernels.runtime.ops import kernel_product
from tpgen.planner.product import make_plan

INSTRUCTIONS = [(0, 0, 0, "uvu", True), (0, 0, 1, "uvu", False), (0, 0, 1, "uvu", True, 0.5)]


@pytest.mark.parametrize("shared", [True, False])
def test_derivatives_of_second_order(shared: bool) -> None:
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
    part = read_description(read_description(describe(plan)).weighted)
    assert [(t.path, t.coefficient) for t in part.form.terms] == [
        (p.index, p.coefficient) for p in plan.paths if p.weight is not None
    ]
    assert part.weighted == read_description(part.weighted).weighted


def test_an_unknown_part_is_refused() -> None:
    fields = json.loads(describe(make_plan("1o", "1o", "1e", [(0, 0, 0, "uuu", True)])))
    with pytest.raises(PlanError, match="paths must be one of all, weighted, got 'some'"):
        read_description(json.dumps({**fields, "paths": "some"}))
