"""Check a polynomial against the laws that it must obey, with the report that products have.

The reference is the form itself: every monomial on its own, in float64, and autograd over that.  Other laws ask nothing
of the form but its degrees: linear where a tensor occurs once, of its degree where it occurs more often, equivariant,
second derivatives symmetric, rows apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from tpgen.emitter.polynomial import emit_polynomial
from tpgen.errors import InputError
from tpgen.form.polynomial import form_of, read_operand, write_operand
from tpgen.form.sampling import random_polynomial_operands
from tpgen.inspection.laws.check import CheckReport, judge, outcomes, tolerance_of
from tpgen.inspection.laws.laws import Pair
from tpgen.planner.equivariance import random_rotation, representation
from tpgen.planner.polynomial_plan import OUT, Operand, PolynomialPlan


@dataclass(frozen=True)
class PolynomialSubject:
    """A program of a polynomial with operands: float64, of values that its dtype can hold."""

    plan: PolynomialPlan
    run: Callable[..., Tensor]
    dtype: torch.dtype
    operands: tuple[Tensor, ...]
    cotangent: Tensor
    directions: tuple[Tensor, ...]
    index: Tensor | None = None  # the element of every row

    def program(self, *operands: Tensor, index: Tensor | None = None) -> Tensor:
        elements = () if self.index is None else (self.index if index is None else index,)
        return self.run(*(x.to(self.dtype) for x in operands), *elements).double()

    def replaced(self, name: str, value: Tensor) -> Tensor:
        """The program where one operand is another."""
        pairs = zip(self.plan.operands, self.operands, strict=False)
        return self.program(*(value if o.name == name else x for o, x in pairs))

    def reference(self, *operands: Tensor) -> Tensor:
        values = {}
        for o, x in zip(self.plan.operands, operands, strict=False):
            spread = x[self.index] if o.weights and self.index is not None else x
            values[o.name] = read_operand(o, spread).movedim(-1, 0)
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
    elements: int = 1,
    progress: Callable[[str], None] | None = None,
) -> CheckReport:
    """Check one strategy by all `LAWS`; with more than one of ``elements`` weights are chosen row by row.

    Raises `InputError` for a dtype that has no tolerance, and where there is nothing to check.

    >>> from e3nn.o3 import Irreps
    >>> from tpgen.planner.polynomial_plan import Operand, PolynomialTerm, make_polynomial_plan
    >>> operands = [Operand("x", Irreps("0e+1o")), Operand("out", Irreps("0e+1o"))]
    >>> plan = make_polynomial_plan(operands, [PolynomialTerm(("x", "x"), 0, "w"), PolynomialTerm(("x", "x"), 1)])
    >>> check_polynomial(plan).passed
    True
    """
    tolerance = 2 * tolerance_of(dtype)  # up to four factors where a product has two
    for name, count in (("rows", rows), ("channels", channels), ("elements", elements)):
        if count < 1:
            raise InputError(f"{name}: a check needs one at least, got {count}")
    subject = _subject(plan, strategy, dtype, rows, channels, elements)
    findings = []
    for law, pairs in LAWS.items():
        if progress:
            progress(law)
        findings += [judge(law, part, pair, tolerance) for part, pair in outcomes(pairs, subject).items()]
    ends = f"{', '.join(str(o.irreps) for o in plan.inputs)} -> {plan.out.irreps}"
    layouts = tuple(o.layout for o in plan.operands if not o.weights)
    return CheckReport(ends, plan.digest, layouts, strategy, "eager", str(dtype)[6:], "cpu", rows, tuple(findings))


def _subject(
    plan: PolynomialPlan, strategy: str, dtype: torch.dtype, rows: int, channels: int, elements: int
) -> PolynomialSubject:
    generator = torch.Generator().manual_seed(0)

    def draw() -> tuple[Tensor, ...]:
        found = random_polynomial_operands(plan, rows, channels, elements, generator=generator, dtype=dtype)
        return tuple(x.double() for x in found)

    indexed = elements > 1
    return PolynomialSubject(
        plan,
        emit_polynomial(plan, strategy, indexed).module().to(dtype),
        dtype,
        operands=draw(),
        cotangent=torch.randn(rows, plan.out.dim * channels, dtype=torch.float64, generator=generator),
        directions=draw(),
        index=torch.randint(elements, (rows,), generator=generator) if indexed else None,
    )


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


def _linear(subject: PolynomialSubject) -> dict[str, Pair]:
    """Of an operand that no monomial has twice, a mean is mapped to the mean: what lacks it is a constant to it."""
    pairs = {}
    for o, x, other in _each_with_degree(subject, lambda degree: degree == 1):
        ends = [subject.replaced(o.name, t) for t in (x, other)]
        pairs[o.name] = subject.replaced(o.name, 0.3 * x + 0.7 * other), 0.3 * ends[0] + 0.7 * ends[1]
    return pairs


def _degree(subject: PolynomialSubject) -> dict[str, Pair]:
    """Along a line of values of an operand, the output is what a polynomial of its degree makes of a few points."""
    form, pairs = form_of(subject.plan), {}
    for o, x, other in _each_with_degree(subject, lambda degree: degree > 1):
        nodes = torch.linspace(-1, 1, form.degree(o.name) + 1, dtype=torch.float64).tolist()
        at = 0.4
        values = [subject.replaced(o.name, 0.5 * (x + node * other)) for node in nodes]
        factors = [prod((at - m) / (n - m) for m in nodes if m != n) for n in nodes]
        expected = torch.stack([f * v for f, v in zip(factors, values, strict=True)]).sum(0)
        pairs[o.name] = subject.replaced(o.name, 0.5 * (x + at * other)), expected
    return pairs


def _each_with_degree(
    subject: PolynomialSubject, chosen: Callable[[int], bool]
) -> Iterator[tuple[Operand, Tensor, Tensor]]:
    """Operands of some degree, with two values of each."""
    form = form_of(subject.plan)
    for o, x, other in zip(subject.plan.operands, subject.operands, subject.directions, strict=False):
        if chosen(form.degree(o.name)):
            yield o, x, other


def _symmetric(subject: PolynomialSubject) -> dict[str, Pair]:
    """Differentiating along u and then v is differentiating along v and then u."""
    generator = torch.Generator().manual_seed(2)
    u = subject.directions
    v = tuple(torch.randn(x.shape, dtype=torch.float64, generator=generator).to(subject.dtype).double() for x in u)
    operands = [x.clone().requires_grad_() for x in subject.operands]
    first = torch.autograd.grad(subject.program(*operands), operands, subject.cotangent, create_graph=True)
    found = []
    for a, b in ((u, v), (v, u)):
        along = torch.stack([(g * d).sum() for g, d in zip(first, a, strict=True)]).sum()
        second = torch.autograd.grad(along, operands, retain_graph=True, allow_unused=True, materialize_grads=True)
        # each number beside its size: their sum may be anything
        found.append(torch.stack([(g * d).sum() for g, d in zip(second, b, strict=True)]))
    sizes = torch.stack([(g * d).abs().sum() for g, d in zip(second, u, strict=True)])
    return {"": (torch.stack([found[0].sum(), sizes.sum()]), torch.stack([found[1].sum(), sizes.sum()]))}


def _rows_apart(subject: PolynomialSubject) -> dict[str, Pair]:
    """Rows in another order are results in that order."""
    order = torch.arange(len(subject.operands[0])).flip(0)
    moved = [x if o.weights else x[order] for o, x in zip(subject.plan.operands, subject.operands, strict=False)]
    index = None if subject.index is None else subject.index[order]
    return {"": (subject.program(*moved, index=index), subject.program(*subject.operands)[order])}


LAWS: dict[str, Callable[[PolynomialSubject], dict[str, Pair]]] = {
    "reference": _values,
    "gradient": _gradients,
    "second derivative": _second,
    "symmetry": _symmetric,
    "linear": _linear,
    "degree": _degree,
    "rows": _rows_apart,
    "equivariance": _equivariance,
}
