r"""The plan of an equivariant polynomial: which tensors meet in which terms, with which constants.

.. math::
    \text{out}_k = \sum_{\text{terms}} \sum_p w_p \sum_{i \ldots j} U^{p}_{k, i \ldots j}\; t_{a, i} \cdots t_{b, j}

for every row and every channel.  A term binds tensors, the same one as often as it likes; its constant is either
generated (`tpgen.planner.generalized`) or a table.  Weights, if a term has them, are one number per path and channel.
"""

from __future__ import annotations

import hashlib
import json
import keyword
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from e3nn.o3 import Irreps

from tpgen.errors import PlanError, unknown
from tpgen.notebook import Shown
from tpgen.planner.equivariance import check_equivariant
from tpgen.planner.generalized import MAX_DEGREE, Entries, independent, symmetrized_couplings
from tpgen.remember import Shelf

FORMAT = "tpgen.polynomial/1"
OUT = "out"
_TAKEN = ("self", "torch", "index")  # by generated programs
# Where the number of one component of one channel stands in a row.
LAYOUTS = {
    "mul_ir": "segment by segment, in each one channel after the other (e3nn's)",
    "ir_mul": "component by component, in each one channel after the other",
    "channel": "channel by channel, in each all components (MACE's [row, channel, component])",
}


@dataclass(frozen=True)
class Operand:
    """A tensor of a polynomial: the irreps of one channel, and how rows and channels stand in memory.

    ``channels``: False where one copy serves all channels, such as spherical harmonics.
    ``weights``: True for weights, whose first axis is not rows but elements (1: shared by all rows).
    """

    name: str
    irreps: Irreps
    layout: str = "mul_ir"
    channels: bool = True
    weights: bool = False

    @property
    def dim(self) -> int:
        return int(self.irreps.dim)

    def __str__(self) -> str:
        kind = "weights" if self.weights else "row" if self.channels else "row, one copy for all channels"
        return f"{self.name}: {self.irreps} ({kind}, {self.layout})"


@dataclass(frozen=True)
class PolynomialTerm:
    """One sum of products: the tensors it binds, the segment of the output it reaches, its weights and constants.

    ``table`` holds ``((k, i, ..., j), value)`` for each path, with k a component of the whole output; None where
    couplings to the segment ``i_out`` are generated.  ``basis`` says which: ``chained`` (all of MACE's paths, in its
    order), ``natural`` (those through parities (-1)^l, as MACE in degree 4) or ``independent``.
    """

    inputs: tuple[str, ...]
    i_out: int | None = None
    weight: str | None = None
    basis: str = "independent"
    table: tuple[tuple[tuple[tuple[int, ...], float], ...], ...] | None = None


BASES = ("independent", "chained", "natural")


@dataclass(frozen=True)
class PolynomialPlan(Shown):
    """An equivariant polynomial; made by `make_polynomial_plan`, which checks it."""

    operands: tuple[Operand, ...]
    terms: tuple[PolynomialTerm, ...]

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.name != OUT and not o.weights)

    @cached_property
    def weights(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.weights)

    @cached_property
    def out(self) -> Operand:
        return self.operands[-1]

    def operand(self, name: str) -> Operand:
        return next(o for o in self.operands if o.name == name)

    @cached_property
    def paths(self) -> tuple[tuple[Entries, ...], ...]:
        """The constants of every term: for each path, (k, i, ..., j) -> value."""
        return tuple(tuple(self._paths(term)) for term in self.terms)

    def _paths(self, term: PolynomialTerm) -> list[Entries]:
        if term.table is not None:
            return [dict(path) for path in term.table]
        assert term.i_out is not None
        start = self.out.irreps.slices()[term.i_out].start
        factors = [self.operand(name).irreps for name in term.inputs]
        found = generated(tuple(map(str, factors)), str(self.out.irreps[term.i_out].ir), term.inputs, term.basis)
        return [{(k + start, *rest): value for (k, *rest), value in path.items()} for path in found]

    def to_json(self) -> str:
        """The plan as one line of JSON, keys in a fixed order; `polynomial_from_json` reads it."""
        return self._json

    @cached_property
    def _json(self) -> str:
        return json.dumps(_fields(self), ensure_ascii=True, allow_nan=False, separators=(",", ":"))

    @cached_property
    def digest(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the JSON text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def __str__(self) -> str:
        lines = [str(o) for o in self.operands]
        for term, paths in zip(self.terms, self.paths, strict=True):
            target = OUT if term.i_out is None else f"{OUT}[{term.i_out}] {self.out.irreps[term.i_out]}"
            weighted = f" x {term.weight}" if term.weight else ""
            entries = sum(map(len, paths))
            constant = "table" if term.table is not None else f"{term.basis} couplings"
            lines.append(
                f"{' x '.join(term.inputs)}{weighted} -> {target} | {len(paths)} paths, {entries} entries, {constant}"
            )
        return "\n".join(lines)


_known: Shelf[tuple, list[Entries]] = Shelf("couplings of polynomials")


def generated(factors: tuple[str, ...], output: str, same: tuple[str, ...], basis: str) -> list[Entries]:
    """Generated couplings, kept for the next plan of this process."""
    key = (factors, output, tuple(same.index(s) for s in same), basis)
    known = _known.get(key)
    if known is None:
        found = symmetrized_couplings(factors, output, same, natural=basis == "natural")
        known = _known[key] = independent(found) if basis == "independent" else found
    return known


def make_polynomial_plan(operands: Iterable[Operand], terms: Iterable[PolynomialTerm]) -> PolynomialPlan:
    """Check a polynomial and complete it: weights get as many scalars as their term has paths.

    ``operands`` are the inputs and, last, ``out``.  Raises `PlanError` that names the operand or the term.

    >>> x, out = Operand("x", Irreps("0e+1o")), Operand("out", Irreps("0e"))
    >>> print(make_polynomial_plan([x, out], [PolynomialTerm(("x", "x"), 0, weight="w")]))
    x: 1x0e+1x1o (row, mul_ir)
    w: 2x0e (weights, ir_mul)
    out: 1x0e (row, mul_ir)
    x x x x w -> out[0] 1x0e | 2 paths, 4 entries, independent couplings
    """
    *inputs, out = operands
    terms = tuple(terms)
    if out.name != OUT:
        raise PlanError(f"the last operand must be {OUT!r}, got {out.name!r}")
    names = _check_operands((*inputs, out))
    if not terms:
        raise PlanError("terms: give one at least: a polynomial without any is zero")
    for n, term in enumerate(terms):
        _check_term(n, term, names)
        _check_table(n, term, names)
    plan = PolynomialPlan((*inputs, out), terms)
    for n, (term, paths) in enumerate(zip(terms, plan.paths, strict=True)):
        if not any(paths):
            raise PlanError(
                f"term {n} ({' x '.join(term.inputs)} -> {_target(term, out)}): no equivariant map exists "
                "(every coupling vanishes): drop the term, or change its output irrep"
            )
        if term.table is not None:
            check_equivariant(f"term {n}", [names[i].irreps for i in term.inputs], out.irreps, paths)
    weights = _weights(plan)
    return PolynomialPlan((*inputs, *weights, out), terms)


def _check_operands(operands: Sequence[Operand]) -> dict[str, Operand]:
    names: dict[str, Operand] = {}
    for o in operands:
        if not _names(o.name):
            raise PlanError(
                f"operand {o.name!r}: a name must be an identifier of ASCII letters, digits and _, "
                f"no keyword of Python, and none of {', '.join(_TAKEN)}"
            )
        if o.name in names:
            raise PlanError(
                f"operand {o.name!r} is given twice: names must differ; to repeat a tensor, repeat its name in a term"
            )
        if o.layout not in LAYOUTS:
            raise PlanError(f"operand {o.name!r}: {unknown('layout', o.layout, LAYOUTS)}")
        if o.dim == 0:
            raise PlanError(f"operand {o.name!r}: its irreps are empty; leave it out")
        names[o.name] = o
    if not names[OUT].channels:
        raise PlanError(f"operand {OUT!r}: the output has a number for every channel; it cannot be shared by them")
    return names


def _names(text: Any) -> bool:
    """Whether a text can name an operand, in programs too."""
    plain = isinstance(text, str) and text.isidentifier() and text.isascii()
    return plain and not keyword.iskeyword(text) and text not in _TAKEN


def _target(term: PolynomialTerm, out: Operand) -> str:
    return OUT if term.i_out is None else f"{out.irreps[term.i_out].ir}"


def _check_term(n: int, term: PolynomialTerm, names: Mapping[str, Operand]) -> None:
    inputs = [name for name in names if name != OUT]
    if isinstance(term.inputs, str):
        raise PlanError(f"term {n}: must have a tuple of names, such as {(term.inputs,)}, got {term.inputs!r}")
    if not 1 <= len(term.inputs) <= MAX_DEGREE:
        raise PlanError(f"term {n}: the degree must be 1 to {MAX_DEGREE}, got {len(term.inputs)} inputs")
    for name in term.inputs:
        if name not in inputs:
            raise PlanError(f"term {n}: {unknown('tensor', name, inputs)}")
    if term.basis not in BASES:
        raise PlanError(f"term {n}: {unknown('basis', term.basis, BASES)}")
    segments = len(names[OUT].irreps)
    if term.table is None and (term.i_out is None or not 0 <= term.i_out < segments):
        raise PlanError(f"term {n}: i_out must be 0 to {segments - 1}, the segments of the output, got {term.i_out}")
    if term.weight is not None and (not _names(term.weight) or term.weight in names):
        raise PlanError(
            f"term {n}: {term.weight!r} cannot name its weights: it must be an identifier that no tensor has"
        )


def _check_table(n: int, term: PolynomialTerm, names: Mapping[str, Operand]) -> None:
    sizes = [names[OUT].dim, *(names[name].dim for name in term.inputs)]
    for path in term.table or ():
        twice = [index for index, count in Counter(index for index, _ in path).items() if count > 1]
        if twice:
            raise PlanError(f"term {n}: the entry {twice[0]} is there twice: give one, with the sum of both values")
        for index, value in path:
            if len(index) != len(sizes):
                raise PlanError(
                    f"term {n}: an entry has {len(sizes)} indices (the output's, then one for each of "
                    f"{', '.join(term.inputs)}), got {index}"
                )
            for axis, (i, size) in enumerate(zip(index, sizes, strict=True)):
                if not 0 <= i < size:
                    name = (OUT, *term.inputs)[axis]
                    raise PlanError(f"term {n}: index {i} of {name} is out of range: it has components 0 to {size - 1}")
            if value != value or abs(value) == float("inf"):
                raise PlanError(f"term {n}: the entry {index} must be a finite number, got {value}")
    if term.table is not None and not any(value for path in term.table for _, value in path):
        raise PlanError(f"term {n}: every entry of its table is zero: leave the term out")


def _weights(plan: PolynomialPlan) -> list[Operand]:
    """One operand of weights for each name, with the paths of all its terms."""
    counts: dict[str, int] = {}
    for term, paths in zip(plan.terms, plan.paths, strict=True):
        if term.weight is not None and counts.setdefault(term.weight, len(paths)) != len(paths):
            raise PlanError(
                f"weights {term.weight!r}: terms that share them must have equally many paths, "
                f"got {counts[term.weight]} and {len(paths)}: give them names of their own"
            )
    return [Operand(name, Irreps(f"{count}x0e"), "ir_mul", weights=True) for name, count in counts.items()]


def table_of(entries: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    """A path's entries as a value, from a mapping or pairs; sorted.  Raises `PlanError` for what is no entry."""
    pairs = entries.items() if isinstance(entries, Mapping) else entries
    return tuple(sorted(_entry(index, value) for index, value in pairs))


def _entry(index: Any, value: Any) -> tuple[tuple[int, ...], float]:
    try:
        return tuple(operator.index(i) for i in index), float(value)
    except (TypeError, ValueError):
        raise PlanError(
            f"table: an entry is whole numbers (k, i, ..., j) and a number, got {str(index)[:40]}: {str(value)[:40]}"
        ) from None


def _fields(plan: PolynomialPlan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "operands": [[o.name, str(o.irreps), o.layout, o.channels] for o in plan.operands if not o.weights],
        "terms": [
            [list(t.inputs), t.i_out, t.weight, t.basis, None if t.table is None else [*map(_listed, t.table)]]
            for t in plan.terms
        ],
    }


def _listed(path: tuple[tuple[tuple[int, ...], float], ...]) -> list:
    return [[list(index), value] for index, value in path]
