"""Sweeps: the oracle of the writer agrees with the definition, whatever is given and opened."""

from __future__ import annotations

import pytest
import torch

from tests.interpreter import interpret_polynomial
from tests.polynomials import PLANS, along, components, operands_of, slow, symmetric
from tpgen.form.call import Call
from tpgen.form.polynomial import make_scalar_form
from tpgen.kernels.sweep.monomials import PolynomialSweep, make_polynomial_sweep
from tpgen.planner.plan import Plan


def forward(plan: Plan) -> Call:
    return Call.parse(f"{' '.join(o.name for o in plan.operands[:-1])} -> out")


def sweep_of(plan: Plan, call: Call) -> PolynomialSweep:
    return make_polynomial_sweep(make_scalar_form(plan), call, frozenset(o.name for o in plan.weights))


def run(plan: Plan, call: Call, given: dict[str, torch.Tensor], index: torch.Tensor) -> dict[str, torch.Tensor]:
    shapes = {}
    for slot in call.opened:
        o = plan.operand(slot.operand)
        shapes[str(slot)] = (2 if o.weights else len(index), o.dim, 3 if o.channels else 1)
    return interpret_polynomial(sweep_of(plan, call), given, shapes, index)


@pytest.mark.parametrize("name", PLANS)
def test_interpreted_forward_and_backward(name: str) -> None:
    plan = PLANS[name]()
    index = torch.tensor([0, 1, 1, 0])
    tensors = operands_of(plan, 4, 2, 3)
    expected = slow(plan, tensors, index)
    pairs = list(zip(plan.operands, tensors, strict=False))
    given = {o.name: x if o.weights else components(o, x).transpose(1, 2) for o, x in pairs}
    out = run(plan, forward(plan), given, index)["out"]
    torch.testing.assert_close(out.transpose(1, 2), components(plan.out, expected))
    g = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, tensors, g)
    call = forward(plan).pulled_back([True], [True] * len(tensors))
    found = run(plan, call, given | {"out.1": components(plan.out, g).transpose(1, 2)}, index)
    for o, gradient in zip(plan.operands, wanted, strict=False):
        value = gradient if o.weights else components(o, gradient).transpose(1, 2)
        torch.testing.assert_close(found[o.name], value)


def test_it_does_what_derivatives_of_the_value_do() -> None:
    """`along` and `gradient` of the polynomial say the same as a call with a direction."""
    plan = symmetric(degree=2)
    values = {name: torch.randn(o.dim, dtype=torch.float64) for o in plan.operands for name in (o.name, f"{o.name}.1")}
    call = Call.parse("x " + " ".join(o.name for o in plan.weights) + " out x.1 -> x x.1 out")
    shapes = dict.fromkeys(("x", "x.1", "out"), (1, 4, 1))
    rows = {name: x.reshape(1, -1, 1) for name, x in values.items()}
    found = interpret_polynomial(sweep_of(plan, call), rows, shapes, torch.zeros(1, dtype=torch.int64))
    directed = along(make_scalar_form(plan), "x", "x.1")
    for slot in shapes:
        expected = directed.gradient(slot)
        for i, value in enumerate(found[slot].flatten()):
            torch.testing.assert_close(value, torch.as_tensor(expected[i].at(values)))


def test_monomials_are_visited_once() -> None:
    plan = symmetric(degree=3)
    monomials = [tuple(f for f in m.factors if f.tensor == "x") for m in make_scalar_form(plan).monomials]
    assert all(tuple(sorted(m)) == m for m in monomials)
    assert sweep_of(plan, forward(plan)).operations < 4 * len(set(monomials)) + 40


def test_what_is_not_asked_for_is_not_computed() -> None:
    plan = symmetric(degree=3)
    weights = len(plan.weights)
    everything = sweep_of(plan, forward(plan).pulled_back([True], [True] * (1 + weights)))
    features = sweep_of(plan, forward(plan).pulled_back([True], [True] + [False] * weights))
    assert everything.operations > features.operations
    assert everything.epilogue
    assert not features.epilogue


def test_it_prints_itself() -> None:
    plan = symmetric(degree=1)
    lines = str(sweep_of(plan, forward(plan))).splitlines()
    assert lines[0].startswith("x w0_1 w1_1 -> out: ")
    assert lines[1:4] == ["prologue:", "  @a[0].0 += w0_1[0].0", "  @a[0].1 += w1_1[0].0"]
