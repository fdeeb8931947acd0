"""Which terms of a polynomial each line of its plan, its form and its sweep serves.

>>> from tpgen.planner.polynomial_problems import POLYNOMIALS
>>> form = trace_polynomial_form(POLYNOMIALS["small-contraction"].plan)
>>> form.lines[0], form.origins[0].instructions
('x0 x0 x0 out0 w0_30', (0,))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tpgen.form.polynomial import Factor, form_of
from tpgen.inspection.stages.origins import Origin, TracedStage, traced_stage
from tpgen.kernels.polynomial.runtime import kernels_of, named_call
from tpgen.kernels.polynomial.sweep import COEFFICIENTS, target_of, terms_of
from tpgen.kernels.sweep.statements import Component, Statement, Value
from tpgen.planner.polynomial_plan import OUT, PolynomialPlan

Terms = frozenset[int]


def trace_polynomial_plan(plan: PolynomialPlan) -> TracedStage:
    """The plan: a line for each tensor, and one for each term."""
    lines = str(plan).split("\n")
    first = len(lines) - len(plan.terms)
    tensors = [(text, Origin(shared="tensors")) for text in lines[:first]]
    return traced_stage("plan", "text", [*tensors, *((text, Origin((n,))) for n, text in enumerate(lines[first:]))])


def trace_polynomial_form(plan: PolynomialPlan) -> TracedStage:
    """The scalar form: a line for each monomial, which serves the terms that it may come from."""
    monomials = form_of(plan).monomials
    return traced_stage("form", "text", [(str(m), _origin(_of_factors(plan, m.factors))) for m in monomials])


def trace_polynomial_sweep(plan: PolynomialPlan) -> TracedStage:
    """The sweep of the forward call: a statement serves the terms whose weights it reads, or what reads its value."""
    sweep = kernels_of(plan.to_json()).sweep(named_call(plan, "forward"))
    parts = {name: getattr(sweep, name) for name in ("prologue", "rows", "epilogue")}
    served = iter(_served(plan, [statement for part in parts.values() for statement in part]))
    head = Origin(shared="title")
    pairs = [(str(sweep).split("\n")[0], head)]
    for name, statements in parts.items():
        pairs += [(f"{name}:", head)] if statements else []
        pairs += [(f"  {statement}", _origin(next(served))) for statement in statements]
    return traced_stage("sweep", "text", pairs)


def _origin(terms: Iterable[int]) -> Origin:
    return Origin(tuple(sorted(terms)))


def _of_factors(plan: PolynomialPlan, factors: Sequence[Factor]) -> Terms:
    """The terms with the weights that a monomial has, or else those that bind its tensors and reach its component."""
    weights = {o.name for o in plan.weights}
    named = {f.tensor for f in factors} & weights
    if named:
        return frozenset(n for n, term in enumerate(plan.terms) if term.weight in named)
    bound = Counter(f.tensor for f in factors if f.tensor != OUT)
    reached = next(f.component for f in factors if f.tensor == OUT)
    return frozenset(n for n in _reaching(plan, reached) if Counter(plan.terms[n].inputs) == bound)


def _reaching(plan: PolynomialPlan, component: int) -> list[int]:
    """The terms without weights that write a component of the output."""
    slices = plan.out.irreps.slices()
    free = [(n, term) for n, term in enumerate(plan.terms) if term.weight is None]
    return [n for n, t in free if t.i_out is None or component in range(*slices[t.i_out].indices(plan.out.dim))]


def _served(plan: PolynomialPlan, statements: Sequence[Statement]) -> list[Terms]:
    """The terms of every statement: forwards from the weights, then backwards to the products that have none."""
    weights = {o.name: _of_factors(plan, [Factor(o.name, 0)]) for o in plan.weights}
    known: dict[Value, Terms] = {}
    found: list[Terms] = []
    for statement in statements:
        target, read = target_of(statement), _read(statement)
        terms: Terms = frozenset().union(*(known.get(v, weights.get(_operand(v), frozenset())) for v in read))
        if not terms and _operand(target) == OUT and isinstance(target, Component):
            terms = frozenset(_reaching(plan, target.index))
        if _operand(target) in ("", COEFFICIENTS):
            known[target] = known.get(target, frozenset()) | terms
        found.append(terms)
    wanted: dict[Value, Terms] = {}
    for n in reversed(range(len(statements))):
        found[n] = found[n] or wanted.get(target_of(statements[n]), frozenset())
        for value in _read(statements[n]):
            wanted[value] = wanted.get(value, frozenset()) | found[n]
    return found


def _operand(value: Value) -> str:
    return value.operand if isinstance(value, Component) else ""


def _read(statement: Statement) -> list[Value]:
    return [value for product in terms_of(statement) for value in product.factors]
