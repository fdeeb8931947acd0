"""Statements of sweeps.

>>> x, y, out = Component("x1", 0, 1), Component("x2", 0, 2), Component("out", 0, 0)
>>> print(Define(Local("p"), (Product(0.5, (x, y)), Product(-1.0, (x,))), paths=(3,)))
p = 0.5 * x1[0].1 * x2[0].2 - x1[0].1
>>> print(Accumulate(out, (Product(1.0, (Local("p"),)),)))
out[0].0 += p
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tpgen.form.call import Slot


@dataclass(frozen=True)
class Component:
    """Value: a component of an operand's segment."""

    operand: str
    segment: int
    index: int = 0

    def __str__(self) -> str:
        return f"{self.operand}[{self.segment}].{self.index}"


@dataclass(frozen=True)
class TableEntry:
    """Value: an entry of a precomputed table, at derivative levels."""

    table: int
    index: int
    levels: int = 0

    def __str__(self) -> str:
        return f"T{self.table}[{self.index}]{Slot('', self.levels)}"


# a tuple, as products are: a sweep creates and compares tens of thousands
class Local(NamedTuple):
    """Value: a local variable."""

    name: str

    def __str__(self) -> str:
        return self.name


Value = Component | TableEntry | Local


class Product(NamedTuple):
    """A constant times a product of values.

    >>> str(Product(-1.0, (Local("a"), Local("b")))), str(Product(2.0, ()))
    ('-a * b', '2')
    """

    coefficient: float
    factors: tuple[Value, ...]

    def __str__(self) -> str:
        sign = "-" if self.coefficient < 0 else ""
        size = f"{abs(self.coefficient):.6g}"
        return sign + " * ".join([size] * (size != "1" or not self.factors) + [str(f) for f in self.factors])


Sum = tuple[Product, ...]  # multiply-adds, in this order


def _text_of_sum(terms: Sum) -> str:
    return " + ".join(map(str, terms)).replace("+ -", "- ") if terms else "0"


@dataclass(frozen=True)
class Load:
    """Statement that loads a component of a given operand."""

    target: Component
    paths: tuple[int, ...] = ()

    terms, factors = (), ()  # no fields: a load computes nothing

    def __str__(self) -> str:
        return f"load {self.target}"


@dataclass(frozen=True)
class _ComputingStatement:
    """Base of statements that compute a sum of products."""

    target: Value
    terms: Sum
    paths: tuple[int, ...] = ()

    @property
    def factors(self) -> Iterator[Value]:
        """Values in the sum, with repetitions."""
        return (value for term in self.terms for value in term.factors)


class Define(_ComputingStatement):
    """Statement that names a sum of products."""

    target: Local

    def __str__(self) -> str:
        return f"{self.target} = {_text_of_sum(self.terms)}"


class Tabulate(Define):
    """Statement that computes an entry of a table."""

    target: TableEntry  # type: ignore[assignment]


class Accumulate(_ComputingStatement):
    """Statement that adds products to a component, summed over the copies that the component lacks."""

    target: Component

    def __str__(self) -> str:
        return f"{self.target} += {_text_of_sum(self.terms)}"


Computation = Define | Accumulate
Statement = Load | Computation


class TextOfPaths:
    """Base of objects printed line by line, with path numbers of each line."""

    @property
    def text_lines_and_paths(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self.text_lines_and_paths)


@dataclass(frozen=True)
class SweepStage:
    """Statements of a path inside one nest of loops over multiplicities."""

    letters: str
    statements: tuple[Statement, ...]

    def __str__(self) -> str:
        lines = [f"  for {', '.join(self.letters)}:"] if self.letters else ["  once:"]
        return "\n".join([*lines, *(f"    {s}" for s in self.statements)])


ValueMemory = MutableMapping[Value, Any]


def run_statements(statements: Iterable[Statement], memory: ValueMemory) -> dict[Component, Any]:
    """Interpret statements; return sums of computed components, and store other values in ``memory``."""
    opened: dict[Component, Any] = {}
    for statement in statements:
        if not isinstance(statement, Load):  # what is read is at hand
            target = statement.target
            inner = isinstance(target, Local) or (isinstance(target, Component) and target.operand.startswith("@"))
            place: Any = memory if inner else opened
            place[target] = evaluate_sum(statement.terms, memory, place.get(target))
    return opened


def evaluate_sum(terms: Sum, memory: ValueMemory, start: Any = None) -> Any:
    """Evaluate a sum of products, added to ``start`` in order."""
    for term in terms:
        value = _compute_product(term, memory)
        start = value if start is None else start + value
    return start


def _compute_product(product: Product, memory: ValueMemory) -> Any:
    if not product.factors:
        return product.coefficient
    first, *rest = (memory[factor] for factor in product.factors)
    for factor in rest:
        first = first * factor
    return first if product.coefficient == 1.0 else first * product.coefficient
