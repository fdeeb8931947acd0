"""An einsum as a value.

>>> factors = (Factor("x1", "zui"), Factor("x2", "zj"), Factor(Coupling(1, 1, 1), "ijk"))
>>> c = Contraction(factors, "zuk", (("u", 8),), 0.5)
>>> c.equation
'zui,zj,ijk->zuk'
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import opt_einsum

from tpgen.base.remember import remembered
from tpgen.planner.coupling import wigner_3j

BATCH = "z"
PLANNING_ROWS = 64  # the batch for which orders of contraction are compared; see `plan_pairwise_contractions`


@dataclass(frozen=True)
class Coupling:
    """Constant einsum factor: real Wigner 3j symbol."""

    l1: int
    l2: int
    l3: int

    @property
    def name(self) -> str:
        return f"_w3j_{self.l1}_{self.l2}_{self.l3}"

    def array(self) -> np.ndarray:
        return wigner_3j(self.l1, self.l2, self.l3)


@dataclass(frozen=True)
class Delta:
    """Constant einsum factor: identity matrix, which equates two letters."""

    size: int

    @property
    def name(self) -> str:
        return f"_eye_{self.size}"

    def array(self) -> np.ndarray:
        return np.eye(self.size)


@dataclass(frozen=True)
class Pairs:
    """Constant einsum factor ``[p, a]``, one-hot: a is the first (or second) copy of pair p = (u < v)."""

    size: int
    second: bool

    @property
    def name(self) -> str:
        return f"_pairs_{'v' if self.second else 'u'}_{self.size}"

    def index(self) -> np.ndarray:
        """First (or second) copy of every pair."""
        return np.triu_indices(self.size, 1)[int(self.second)]

    def array(self) -> np.ndarray:
        return np.eye(self.size)[self.index()]


@dataclass(frozen=True)
class Ones:
    """Constant einsum factor: ones, for an output axis of no operand."""

    size: int

    @property
    def name(self) -> str:
        return f"_ones_{self.size}"

    def array(self) -> np.ndarray:
        return np.ones(self.size)


Constant = Coupling | Delta | Pairs | Ones


@dataclass(frozen=True)
class Factor:
    """Factor of an einsum: constant, or segment of an operand."""

    source: str | Constant
    letters: str


@dataclass(frozen=True)
class Contraction:
    """``coefficient * einsum(equation, *factors)``; the letter of the batch is ``z``."""

    factors: tuple[Factor, ...]
    output: str
    sizes: tuple[tuple[str, int], ...]
    coefficient: float = 1.0

    @property
    def equation(self) -> str:
        return ",".join(f.letters for f in self.factors) + "->" + self.output

    def size(self, letters: Iterable[str]) -> int:
        """Product of the letters' axis sizes; the batch counts 1."""
        sizes = dict(self.sizes)
        return prod(sizes.get(a, 1) for a in letters)

    def shape(self, letters: str) -> tuple[int, ...]:
        """The letters' axis sizes, without batch."""
        sizes = dict(self.sizes)
        return tuple(sizes[a] for a in letters if a != BATCH)

    def find(self, kind: type) -> Factor | None:
        """First factor whose source is a ``kind``, or None."""
        return next((f for f in self.factors if isinstance(f.source, kind)), None)

    def drop_factor(self, factor: Factor, **changes: Any) -> Contraction:
        """Contraction without a factor, and with changed fields."""
        index = self.factors.index(factor)
        return replace(self, factors=self.factors[:index] + self.factors[index + 1 :], **changes)

    def rename_axes(self, letters: dict[str, str]) -> Contraction:
        """Replace axis letters; an empty replacement drops the axis."""

        def rename_letters(text: str) -> str:
            return "".join(letters.get(a, a) for a in text)

        return replace(
            self,
            factors=tuple(replace(f, letters=rename_letters(f.letters)) for f in self.factors),
            output=rename_letters(self.output),
            sizes=tuple((a, n) for a, n in self.sizes if letters.get(a, a) == a),
        )

    def __str__(self) -> str:
        names = ", ".join(f.source if isinstance(f.source, str) else f.source.name for f in self.factors)
        return f"{self.coefficient:.6g} * einsum('{self.equation}', {names})"


@dataclass(frozen=True)
class _ContractionStep:
    positions: tuple[int, ...]
    letters: str


@remembered("cheapest orders of contraction")
def _find_cheapest_order_and_flops(
    factors: tuple[str, ...], output: str, sizes: tuple[tuple[str, int], ...]
) -> tuple[list, float]:
    known = {BATCH: PLANNING_ROWS, **dict(sizes)}
    shapes = [tuple(known[a] for a in letters) for letters in factors]
    equation = ",".join(factors) + "->" + output
    path, info = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="optimal")
    return path, float(info.opt_cost)


def count_flops(c: Contraction) -> float:
    """Operations in the cheapest order, for `PLANNING_ROWS` rows."""
    return _find_cheapest_order_and_flops(tuple(f.letters for f in c.factors), c.output, c.sizes)[1]


@remembered("steps of contractions")
def plan_pairwise_contractions(
    factors: tuple[str, ...], output: str, sizes: tuple[tuple[str, int], ...]
) -> tuple[_ContractionStep, ...]:
    """Cheapest order of pairwise contractions, for every batch size."""
    # all intermediates that matter carry the batch axis, so all costs grow with the batch in step
    path, _ = _find_cheapest_order_and_flops(factors, output, sizes)
    remaining, steps = list(factors), []
    for number, positions in enumerate(path):
        taken = [remaining[p] for p in positions]
        remaining = [letters for p, letters in enumerate(remaining) if p not in positions]
        if number == len(path) - 1:
            letters = output
        else:
            needed = set(output).union(*remaining)
            letters = "".join(a for a in dict.fromkeys("".join(taken)) if a in needed)
        remaining.append(letters)
        steps.append(_ContractionStep(tuple(positions), letters))
    return tuple(steps)
