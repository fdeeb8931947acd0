r"""Straight-line programs of polynomials, for one row and one channel.

A trie of monomials shares factors (Horner's scheme); one walk writes values and derivatives, in the algebra of
levels (`tpgen.form.call`).  *Coefficients* are sums of weights, computed once per element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from tpgen.form.call import Call, Slot
from tpgen.form.polynomial import PolynomialForm, Variable
from tpgen.kernels.sweep.statements import Accumulate, Component, Computation, Define, Local, Product, Statement, Value

COEFFICIENTS, ADJOINTS = "@a", "@d"  # no operand can have these names
_DIGITS = 12  # coefficients that agree to so many digits, but for their sign, are one

# A number of the algebra: what stands at each set of levels; None is the constant 1.
Dual = dict[int, Value | None]
_Sums = dict[int, list[Product]]
Tail = tuple[tuple[tuple[Variable, ...], float], ...]  # a polynomial of weights alone


@dataclass(frozen=True)
class PolynomialSweep:
    """Straight-line program: prologue and epilogue once per weight element, statements of every row between."""

    call: Call
    coefficients: int
    prologue: tuple[Accumulate, ...]
    rows: tuple[Computation, ...]
    epilogue: tuple[Accumulate, ...]

    @property
    def statements(self) -> tuple[Computation, ...]:
        return (*self.prologue, *self.rows, *self.epilogue)

    @property
    def operations(self) -> int:
        """Multiplications and additions per row."""
        return _count_operations(self.rows)

    @property
    def once(self) -> int:
        """Multiplications and additions per element."""
        return _count_operations(self.prologue) + _count_operations(self.epilogue)

    def __str__(self) -> str:
        parts = [f"{self.call}: {self.operations} operations a row"]
        for name in ("prologue", "rows", "epilogue"):
            statements = getattr(self, name)
            if statements:
                parts += [f"{name}:", *(f"  {s}" for s in statements)]
        return "\n".join(parts)


def make_polynomial_sweep(
    form: PolynomialForm,
    call: Call,
    weights: frozenset[str] = frozenset(),
    orders: Sequence[Sequence[str]] | None = None,
) -> PolynomialSweep:
    """Write a call's shortest straight-line program among several orders of the factors.

    Sums into ``x`` are gradients.

    >>> from tpgen.form.polynomial import make_polynomial
    >>> L = make_polynomial({(("x", 0), ("x", 0), ("out", 0)): 1.0, (("x", 0), ("x", 1), ("out", 0)): 3.0})
    >>> print(make_polynomial_sweep(L, Call.parse("x out.1 -> x")))
    x out.1 -> x: 8 operations a row
    rows:
      v1 = out.1[0].0 * x[0].0
      x[0].0 += v1
      v2 = x[0].0 + 3 * x[0].1
      x[0].1 += 3 * v1
      x[0].0 += out.1[0].0 * v2
    """
    names = [name for name in form.tensors if name not in weights]
    if orders is None:
        orders = list(permutations(names)) if len(names) <= 3 else [tuple(names), (names[-1], *names[:-1])]
    return min(
        (_PolynomialSweepBuilder(form, call, weights, order).build_sweep() for order in orders),
        key=lambda s: s.operations,
    )


@dataclass
class _MonomialTrieNode:
    """Node of a trie of monomials."""

    children: dict[Variable, _MonomialTrieNode] = field(default_factory=dict)
    tail: dict[tuple[Variable, ...], float] = field(default_factory=dict)
    differentiated: bool = False  # whether the gradient of a factor below, or of a weight, is open


def _make_trie_of_monomials(
    form: PolynomialForm, weights: frozenset[str], factor_order: Sequence[str], opened: Set[str]
) -> _MonomialTrieNode:
    root = _MonomialTrieNode()
    rank = {name: n for n, name in enumerate(factor_order)}
    for coefficient, factors in form.monomials:
        tail = tuple(f for f in factors if f.tensor in weights)
        row = sorted((f for f in factors if f.tensor not in weights), key=lambda f: (rank[f.tensor], f.component))
        node, below = root, [f.tensor in opened for f in (*row, *tail)]
        for n, f in enumerate(row):
            node.differentiated |= any(below[n:])
            node = node.children.setdefault(f, _MonomialTrieNode())
        node.differentiated |= any(below[len(row) :])
        node.tail[tail] = node.tail.get(tail, 0.0) + coefficient
    return root


class _PolynomialSweepBuilder:
    """Writes a polynomial's statements by one walk of the trie."""

    def __init__(self, form: PolynomialForm, call: Call, weights: frozenset[str], factor_order: Sequence[str]) -> None:
        """Build the trie; write no statement."""
        self.call = call
        self.opened = {s.operand for s in call.opened}
        self.root = _make_trie_of_monomials(form, weights, factor_order, self.opened)
        self.given: dict[str, list[int]] = {}
        for slot in call.given:
            self.given.setdefault(slot.operand, []).append(slot.levels)
        # which levels of an adjoint are the gradient of which slot
        self.wanted = {(s.operand, call.levels & ~s.levels): s for s in call.opened}
        self.components: dict[Variable, Dual] = {}
        self.rows: list[Computation] = []
        self.prologue: list[Accumulate] = []
        self.epilogue: list[Accumulate] = []
        self.known: dict[tuple[Product, ...], Local] = {}
        self.coefficient_of: dict[Tail, int] = {}
        self.tails: list[Tail] = []  # of every coefficient

    def build_sweep(self) -> PolynomialSweep:
        self._write_statements_of_subtree(self.root, {0: None}, needs_sum=False)
        for n, tail in enumerate(self.tails):
            for factors, value in tail:
                self._write_coefficient_statements(n, factors, value)
                self._write_weight_gradient_statements(n, factors, value)
        prologue, rows, epilogue = _drop_unread_statements(self.prologue, self.rows, self.epilogue)
        return PolynomialSweep(self.call, len(self.tails), prologue, rows, epilogue)

    def _write_statements_of_subtree(self, node: _MonomialTrieNode, product_above: Dual, needs_sum: bool) -> Dual:
        # The walk knows the product q of the factors above a node, and the sum S of the terms below.  A child with
        # factor f adds f S_child to S, and q S_child to the gradient of f.  Returns S, if a gradient of a factor above
        # is open.
        total: Dual = {}
        if node.tail:
            scale, value, adjoint = self._register_coefficient(node.tail)
            adjoint(multiply_dual_numbers(scale, product_above))
            if needs_sum:
                total = self._define_sums_added_to_total(total, multiply_dual_numbers(scale, value))
        for factor, child in node.children.items():
            f, opened = self._make_dual_number(factor), factor.tensor in self.opened
            if child.children:
                product = (
                    self._define_sums(multiply_dual_numbers(1.0, product_above, f)) if child.differentiated else {}
                )
                scale, below = 1.0, self._write_statements_of_subtree(child, product, needs_sum or opened)
            else:  # the last factor: no product of its own for the coefficient's gradient
                scale, below, adjoint = self._register_coefficient(child.tail)
                adjoint(multiply_dual_numbers(scale, product_above, f))
            if needs_sum:
                total = self._define_sums_added_to_total(total, multiply_dual_numbers(scale, f, below))
            if opened:
                self._write_gradient_statements(factor, multiply_dual_numbers(scale, product_above, below))
        return total

    def _make_dual_number(self, variable: Variable) -> Dual:
        if variable not in self.components:
            levels = self.given.get(variable.tensor, ())
            self.components[variable] = {
                t: Component(str(Slot(variable.tensor, t)), 0, variable.component) for t in levels
            }
        return self.components[variable]

    def _write_gradient_statements(self, factor: Variable, sums: _Sums) -> None:
        # add to the gradients of a factor's slots that are open
        for levels, terms in sums.items():
            slot = self.wanted.get((factor.tensor, levels))
            if slot:
                self.rows.append(Accumulate(Component(str(slot), 0, factor.component), tuple(terms)))

    def _define_sums(self, sums: _Sums) -> Dual:
        return {levels: self._define_or_reuse_sum(tuple(terms)) for levels, terms in sums.items()}

    def _define_sums_added_to_total(self, before: Dual, sums: _Sums) -> Dual:
        start = {
            levels: multiply_dual_numbers(1.0, {0: value})[0] for levels, value in before.items() if levels in sums
        }
        return {**before, **self._define_sums({levels: [*start.get(levels, ()), *sums[levels]] for levels in sums})}

    def _define_or_reuse_sum(self, terms: tuple[Product, ...]) -> Value | None:
        if len(terms) == 1 and terms[0].coefficient == 1.0 and len(terms[0].factors) < 2:
            return terms[0].factors[0] if terms[0].factors else None
        if terms not in self.known:
            self.known[terms] = name = Local(f"v{len(self.known) + 1}")
            self.rows.append(Define(name, terms))
        return self.known[terms]

    def _register_coefficient(
        self, weight_polynomial: dict[tuple[Variable, ...], float]
    ) -> tuple[float, Dual, Callable[[_Sums], None]]:
        # return the polynomial's scale, coefficient by levels, and a gradient adder
        if list(weight_polynomial) == [()]:
            return weight_polynomial[()], {0: None}, lambda sums: None
        scale = -1.0 if next(iter(weight_polynomial.values())) < 0 else 1.0
        exact = tuple((factors, scale * value) for factors, value in weight_polynomial.items())
        rounded = tuple((factors, float(f"{value:.{_DIGITS}g}")) for factors, value in exact)
        n = self.coefficient_of.setdefault(rounded, len(self.tails))
        if n == len(self.tails):
            self.tails.append(exact)
        reached = {levels for factors in weight_polynomial for levels in self._weight_products(factors, 1.0)}

        def add_to_adjoint(sums: _Sums) -> None:
            self.rows += [Accumulate(_coefficient_component(ADJOINTS, t, n), tuple(terms)) for t, terms in sums.items()]

        return scale, {t: _coefficient_component(COEFFICIENTS, t, n) for t in sorted(reached)}, add_to_adjoint

    def _weight_products(self, factors: Iterable[Variable], value: float) -> _Sums:
        return multiply_dual_numbers(value, *(self._make_dual_number(f) for f in factors))

    def _write_coefficient_statements(self, coefficient: int, factors: tuple[Variable, ...], value: float) -> None:
        # the weights' product into the coefficient
        for levels, terms in self._weight_products(factors, value).items():
            self.prologue.append(Accumulate(_coefficient_component(COEFFICIENTS, levels, coefficient), tuple(terms)))

    def _write_weight_gradient_statements(self, coefficient: int, factors: tuple[Variable, ...], value: float) -> None:
        # the gradient of the coefficient into those of its weights
        gradient: Dual = {
            t: _coefficient_component(ADJOINTS, t, coefficient)
            for t in range(self.call.levels + 1)
            if not t & ~self.call.levels
        }
        for place, f in enumerate(factors):
            rest = [self._make_dual_number(other) for other in factors[:place] + factors[place + 1 :]]
            for levels, terms in multiply_dual_numbers(value, gradient, *rest).items():
                slot = self.wanted.get((f.tensor, levels))
                if slot:
                    self.epilogue.append(Accumulate(Component(str(slot), 0, f.component), tuple(terms)))


def _coefficient_component(operand: str, levels: int, n: int) -> Component:
    return Component(str(Slot(operand, levels)), 0, n)


def multiply_dual_numbers(coefficient: float, *factors: Dual) -> _Sums:
    """Multiply dual numbers; return sums of products by levels.  Squares of a level vanish.

    >>> x = {0: Local("x"), 1: Local("v")}
    >>> {levels: len(terms) for levels, terms in multiply_dual_numbers(1.0, x, x).items()}
    {0: 1, 1: 2}
    """
    found: dict[int, list[tuple[Value, ...]]] = {0: [()]}
    for dual in factors:
        longer: dict[int, list[tuple[Value, ...]]] = {}
        for levels, terms in found.items():
            for more, value in dual.items():
                if not levels & more:
                    extra = () if value is None else (value,)
                    longer.setdefault(levels | more, []).extend([term + extra for term in terms])
        found = longer
    return {levels: [Product(coefficient, term) for term in terms] for levels, terms in found.items()}


def _drop_unread_statements(*parts: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    # the statements that something reads: sums of open slots, and what leads to them
    needed: set[Value] = set()
    kept: list[list[Computation]] = []
    for part in reversed(parts):
        kept.append([])
        for s in reversed(part):
            target = s.target
            if target in needed or (isinstance(target, Component) and not target.operand.startswith("@")):
                needed.update(s.factors)
                kept[-1].append(s)
    return (tuple(reversed(part)) for part in reversed(kept))


def _count_operations(statements: Iterable[Statement]) -> int:
    return sum(len(p.factors) for s in statements for p in s.terms)


def merge_sums_by_component(statements: Iterable[Accumulate]) -> dict[Component, tuple[Product, ...]]:
    """Join products of accumulations by component, equal products included."""
    sums: dict[Component, tuple[Product, ...]] = {}
    for s in statements:
        sums[s.target] = sums.get(s.target, ()) + s.terms
    return sums


def values_read(statements: Iterable[Statement]) -> set[Value]:
    return {value for s in statements for value in s.factors}
