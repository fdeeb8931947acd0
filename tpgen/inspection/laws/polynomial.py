"""Check a polynomial against the laws that it must obey, with the report that products have.

The reference is the form itself: every monomial on its own, in float64, and autograd over that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tpgen.emitter.polynomial import emit_polynomial
from tpgen.form.polynomial import form_of, read_operand, write_operand
from tpgen.inspection.laws.check import TOLERANCES, CheckReport, judge
from tpgen.inspection.laws.laws import Pair
from tpgen.planner.equivariance import random_rotation, representation
from tpgen.planner.polynomial_plan import OUT, PolynomialPlan


@dataclass(frozen=True)
class PolynomialSubject:
    """A program of a polynomial with operands: float64, of values that its dtype can hold."""

    plan: PolynomialPlan
    run: Callable[..., Tensor]
    dtype: torch.dtype
    operands: tuple[Tensor, ...]
    cotangent: Tensor
    directions: tuple[Tensor, ...]

    def program(self, *operands: Tensor) -> Tensor:
        return self.run(*(x.to(self.dtype) for x in operands)).double()

    def reference(self, *operands: Tensor) -> Tensor:
        values = {}
        for o, x in zip(self.plan.operands, operands, strict=False):
            values[o.name] = read_operand(o, x).movedim(-1, 0)
        gradient = form_of(self.plan).gradient(OUT)
        rows, channels = self.operands[0].shape[0], self.cotangent.shape[1] // self.plan.out.dim
        zero = torch.zeros(rows, channels, dtype=torch.float64)
        parts = [gradient[k].at(values) + zero if k in gradient else zero for k in range(self.plan.out.dim)]
        return write_operand(self.plan.out, torch.stack(parts, -1))


def check_polynomial(
    plan: PolynomialPlan,
    strategy: str = "einsum",
    *,
    dtype: torch.dtype = torch.float32,
    rows: int = 4,
    channels: int = 3,
) -> CheckReport:
    """Values, gradients, second derivatives and equivariance of one strategy.

    >>> from e3nn.o3 import Irreps
    >>> from tpgen.planner.polynomial_plan import Operand, PolynomialTerm, make_polynomial_plan
    >>> operands = [Operand("x", Irreps("0e+1o")), Operand("out", Irreps("0e+1o"))]
    >>> plan = make_polynomial_plan(operands, [PolynomialTerm(("x", "x"), 0, "w"), PolynomialTerm(("x", "x"), 1)])
    >>> check_polynomial(plan).passed
    True
    """
    subject = _subject(plan, strategy, dtype, rows, channels)
    tolerance = 2 * TOLERANCES[dtype]  # up to four factors where a product has two
    findings = [
        judge(law, part, pair, tolerance) for law, pairs in LAWS.items() for part, pair in pairs(subject).items()
    ]
    ends = f"{', '.join(str(o.irreps) for o in plan.inputs)} -> {plan.out.irreps}"
    layouts = tuple(o.layout for o in plan.operands if not o.weights)
    return CheckReport(ends, plan.digest, layouts, strategy, "eager", str(dtype)[6:], "cpu", rows, tuple(findings))


def _subject(plan: PolynomialPlan, strategy: str, dtype: torch.dtype, rows: int, channels: int) -> PolynomialSubject:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).double()

    shapes = [_shape(plan, n, rows, channels) for n in range(len(plan.operands) - 1)]
    return PolynomialSubject(
        plan,
        emit_polynomial(plan, strategy).module().to(dtype),
        dtype,
        tuple(draw(*shape) for shape in shapes),
        draw(rows, plan.out.dim * channels),
        tuple(draw(*shape) for shape in shapes),
    )


def _shape(plan: PolynomialPlan, n: int, rows: int, channels: int) -> tuple[int, ...]:
    o = plan.operands[n]
    if o.weights:
        return (1, o.dim, channels)
    return (rows, o.dim * (channels if o.channels else 1))


def _values(subject: PolynomialSubject) -> dict[str, Pair]:
    return {"": (subject.program(*subject.operands), subject.reference(*subject.operands))}


def _gradients(subject: PolynomialSubject) -> dict[str, Pair]:
    found = [_gradient(subject, function) for function in (subject.program, subject.reference)]
    return {o.name: pair for o, pair in zip(subject.plan.operands, zip(*found, strict=True), strict=False)}


def _second(subject: PolynomialSubject) -> dict[str, Pair]:
    """The gradient of the gradients along a direction in all operands."""
    found = []
    for function in (subject.program, subject.reference):
        operands = [x.clone().requires_grad_() for x in subject.operands]
        first = torch.autograd.grad(function(*operands), operands, subject.cotangent, create_graph=True)
        along = torch.stack([(g * d).sum() for g, d in zip(first, subject.directions, strict=True)]).sum()
        second = torch.autograd.grad(along, operands, allow_unused=True, materialize_grads=True)
        found.append(second)
    return {o.name: pair for o, pair in zip(subject.plan.operands, zip(*found, strict=True), strict=False)}


def _gradient(subject: PolynomialSubject, function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    operands = [x.clone().requires_grad_() for x in subject.operands]
    return torch.autograd.grad(function(*operands), operands, subject.cotangent)


def _equivariance(subject: PolynomialSubject) -> dict[str, Pair]:
    """Turning the inputs turns the output; of the reference too, whose numbers are exact."""
    generator = torch.Generator().manual_seed(1)
    pairs: dict[str, Pair] = {}
    for part, sign in (("rotation", 1), ("inversion", -1)):
        rotation = random_rotation(generator) * sign
        turned = [
            x if o.weights else write_operand(o, read_operand(o, x) @ representation(o.irreps, rotation).T)
            for o, x in zip(subject.plan.operands, subject.operands, strict=False)
        ]
        out = subject.plan.out
        value = read_operand(out, subject.program(*subject.operands)) @ representation(out.irreps, rotation).T
        pairs[part] = subject.program(*turned), write_operand(out, value)
    return pairs


LAWS: dict[str, Callable[[PolynomialSubject], dict[str, Pair]]] = {
    "reference": _values,
    "gradient": _gradients,
    "second derivative": _second,
    "equivariance": _equivariance,
}
