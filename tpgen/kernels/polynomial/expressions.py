"""What writers of polynomials share: sums as text, and the names of slots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tpgen.kernels.cpp.text import times, total
from tpgen.kernels.polynomial.call import Slot
from tpgen.kernels.polynomial.placement import PolynomialPlacement
from tpgen.kernels.polynomial.sweep import ADJOINTS, COEFFICIENTS, target_of, terms_of
from tpgen.kernels.sweep.statements import Component, Define, Product, Statement, Value


@dataclass(frozen=True)
class Expressions:
    """Sums of products; ``one`` is the number 1, ``tabled`` an element of scratch by ``name`` and ``index``."""

    at: PolynomialPlacement
    one: str
    tabled: str

    def sum(self, terms: Iterable[Product]) -> str:
        return total([self._product(p) for p in terms])

    def _product(self, p: Product) -> str:
        factors = " * ".join(map(self._value, p.factors)) if p.factors else self.one
        return times(p.coefficient, factors, self.at.target.dtype)

    def _value(self, value: Value) -> str:
        if not isinstance(value, Component):
            return str(value)
        name = slot_name(value.operand)
        if value.operand in self.at.scratch:
            return self.tabled.format(name=name, index=value.index)
        return f"t_{name}[{value.index}]"


def gathered(statements: Iterable[Statement]) -> dict[Component, list[Product]]:
    """The sums of statements that add to the same component."""
    sums: dict[Component, list[Product]] = {}
    for statement in statements:
        target = target_of(statement)
        assert isinstance(target, Component)
        assert not isinstance(statement, Define)
        sums.setdefault(target, []).extend(terms_of(statement))
    return sums


def slot_name(slot: Slot | str) -> str:
    """A slot as a C++ name; levels stand first, for no operand's name begins where they end.

    >>> slot_name("x.12"), slot_name("@a")
    ('x12_x', 'a')
    """
    operand, _, levels = str(slot).partition(".")
    scratch = {COEFFICIENTS: "a", ADJOINTS: "da"}
    return f"{scratch[operand]}{levels}" if operand in scratch else f"x{levels}_{operand}"
