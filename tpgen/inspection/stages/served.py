"""Terms of a polynomial that its monomials and the statements of its sweep serve.

>>> from tpgen.form.polynomial import polynomial_of
>>> from tpgen.planner.problems import POLYNOMIALS
>>> plan = POLYNOMIALS["small-contraction"].plan
>>> first = polynomial_of(plan).monomials[0]
>>> str(first), of_factors(plan, first.factors)
('x0 x0 x0 out0 w0_30', (0,))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tpgen.form.polynomial import Variable
from tpgen.kernels.sweep.monomials import COEFFICIENTS, stored_value, terms_of
from tpgen.kernels.sweep.statements import Component, Statement, Value
from tpgen.planner.plan import OUT, Plan

Terms = frozenset[int]


def of_factors(plan: Plan, factors: Sequence[Variable]) -> tuple[int, ...]:
    """Terms with the weights that a monomial has, or else those that bind its tensors and reach its component."""
    weights = {o.name for o in plan.weights}
    named = {f.tensor for f in factors} & weights
    if named:
        return tuple(n for n, term in enumerate(plan.terms) if term.weight in named)
    bound = Counter(f.tensor for f in factors if f.tensor != OUT)
    reached = next(f.component for f in factors if f.tensor == OUT)
    return tuple(n for n in _reaching(plan, reached) if Counter(plan.terms[n].inputs) == bound)


def _reaching(plan: Plan, component: int) -> list[int]:
    """The terms without weights that write a component of the output."""
    slices = plan.out.irreps.slices()
    free = [(n, term) for n, term in enumerate(plan.terms) if term.weight is None]
    return [n for n, t in free if t.i_out is None or component in range(*slices[t.i_out].indices(plan.out.dim))]


def of_statements(plan: Plan, statements: Sequence[Statement]) -> list[tuple[int, ...]]:
    """Terms of every statement: those of the weights that it reads, or else of what reads its value."""
    weights = {o.name: frozenset(of_factors(plan, [Variable(o.name, 0)])) for o in plan.weights}
    known: dict[Value, Terms] = {}
    found: list[Terms] = []
    for statement in statements:
        target, read = stored_value(statement), _read(statement)
        terms: Terms = frozenset().union(*(known.get(v, weights.get(_operand(v), frozenset())) for v in read))
        if not terms and _operand(target) == OUT and isinstance(target, Component):
            terms = frozenset(_reaching(plan, target.index))
        if _operand(target) in ("", COEFFICIENTS):
            known[target] = known.get(target, frozenset()) | terms
        found.append(terms)
    wanted: dict[Value, Terms] = {}
    for n in reversed(range(len(statements))):
        found[n] = found[n] or wanted.get(stored_value(statements[n]), frozenset())
        for value in _read(statements[n]):
            wanted[value] = wanted.get(value, frozenset()) | found[n]
    return [tuple(sorted(terms)) for terms in found]


def _operand(value: Value) -> str:
    return value.operand if isinstance(value, Component) else ""


def _read(statement: Statement) -> list[Value]:
    return [value for product in terms_of(statement) for value in product.factors]
