"""A part of a path's program that is done for every copy of some letters."""

from __future__ import annotations

from dataclasses import dataclass

from tpgen.kernels.sweep.statements import Accumulate, Component, Define, Load, Product, Reduce, Statement, Value
from tpgen.kernels.sweep.terms import PathTerm


@dataclass(frozen=True)
class Stage:
    """Statements, and the letters of the copies that they are done for."""

    letters: str
    statements: tuple[Statement, ...]

    def __str__(self) -> str:
        lines = [f"  for {', '.join(self.letters)}:"] if self.letters else ["  once:"]
        return "\n".join([*lines, *(f"    {s}" for s in self.statements)])


class Lines:
    """Collects the statements of a stage of one path, spelling operands' components for it."""

    def __init__(self, term: PathTerm) -> None:
        self.term, self._paths = term, (term.path,)
        self._made: list[Statement] = []

    def at(self, operand: str, index: int = 0) -> Component:
        return Component(operand, self.term.segment(operand), index)

    def load(self, operand: str, indices: list[int]) -> None:
        self._made += [Load(self.at(operand, n), self._paths) for n in indices]

    def define(self, name: str, *terms: Product) -> None:
        self._made.append(Define(name, terms, self._paths))

    def reduce(self, name: str, over: str, *terms: Product) -> None:
        self._made.append(Reduce(name, over, terms, self._paths))

    def accumulate(self, component: Component, *terms: Product) -> None:
        self._made.append(Accumulate(component, terms, self._paths))

    def stage(self, letters: str) -> Stage:
        return Stage(letters, tuple(self._made))


def product(*factors: Value | None, coefficient: float = 1.0) -> Product:
    """A product of the values that are there."""
    return Product(coefficient, tuple(f for f in factors if f is not None))
