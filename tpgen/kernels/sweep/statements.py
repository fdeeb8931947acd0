"""Statements of a sweep: the straight-line program of one row and one channel, without lanes and without memory.

Every statement reads values that stand before it and names at most one new one, or adds to one number of an open
operand; every one is tagged with the paths (or monomials) that it serves.

>>> x, y, out = Component("x1", 0, 1), Component("x2", 0, 2), Component("out", 0, 0)
>>> print(Define("p", (Product(0.5, (x, y)), Product(-1.0, (x,))), paths=(3,)))
p = 0.5 * x1[0].1 * x2[0].2 - x1[0].1
>>> print(Accumulate(out, (Product(1.0, (Local("p"),)),)))
out[0].0 += p
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tpgen.form.call import Slot


@dataclass(frozen=True)
class Component:
    """One component of one segment of an operand, at the row and the copies at hand."""

    operand: str
    segment: int
    index: int = 0

    def __str__(self) -> str:
        return f"{self.operand}[{self.segment}].{self.index}"


@dataclass(frozen=True)
class TableEntry:
    """A number that was computed once per row (and copy), before the channels: of what is given at some levels."""

    table: int
    index: int
    levels: int = 0

    def __str__(self) -> str:
        return f"T{self.table}[{self.index}]{Slot('', self.levels)}"


class Local(NamedTuple):
    """A value that a statement has named.

    It is a tuple, as products are: a sweep makes and compares tens of thousands of them.
    """

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


def sum_text(terms: Sum) -> str:
    return " + ".join(map(str, terms)).replace("+ -", "- ") if terms else "0"


class _Computed:
    """A statement as the sum that it computes, without terms where it computes none."""

    terms: Sum

    @property
    def factors(self) -> Iterator[Value]:
        """Values that the sum is made of, each as often as it stands there."""
        return (value for term in self.terms for value in term.factors)


@dataclass(frozen=True)
class Load(_Computed):
    """Read a component of a given operand; it is a value from here on."""

    component: Component
    paths: tuple[int, ...] = ()

    terms = ()  # no field: a load computes nothing

    def __str__(self) -> str:
        return f"load {self.component}"


@dataclass(frozen=True)
class Tabulate(_Computed):
    """Compute an entry of a table, once per row (and copy)."""

    entry: TableEntry
    terms: Sum
    paths: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.entry} = {sum_text(self.terms)}"


@dataclass(frozen=True)
class Define(_Computed):
    """Name a sum of products."""

    name: str
    terms: Sum
    paths: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} = {sum_text(self.terms)}"


@dataclass(frozen=True)
class Accumulate(_Computed):
    """Add a sum of products to a component of an open operand, or of what a later stage reads.

    It is summed over whatever copies that does not have.
    """

    component: Component
    terms: Sum
    paths: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.component} += {sum_text(self.terms)}"


Statement = Load | Tabulate | Define | Accumulate


class TextOfPaths:
    """A value that prints itself line by line, and knows which paths each line serves."""

    @property
    def lines(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The text, and for every line the paths that it serves (none: those that all share)."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(text for text, _ in self.lines)


@dataclass(frozen=True)
class SweepStage:
    """A part of a path's program: statements, and the letters of the copies that they are done for."""

    letters: str
    statements: tuple[Statement, ...]

    def __str__(self) -> str:
        lines = [f"  for {', '.join(self.letters)}:"] if self.letters else ["  once:"]
        return "\n".join([*lines, *(f"    {s}" for s in self.statements)])
