"""Tables ``T[a, k] = sum_b C[a, b, k] x[b]`` of inputs without channels, once a row.

A path is then ``sum w x[a] T[a, k] g[k]`` in every channel.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpgen.base.locks import cached_property
from tpgen.form.form import Term
from tpgen.kernels.sweep.statements import Accumulate, Component, Product, TableEntry, Tabulate
from tpgen.kernels.sweep.terms import INDEX, S


@dataclass(frozen=True)
class Table:
    """One coupling contracted with one segment of an input, shared by paths."""

    number: int
    operand: str  # the tabulated input
    terms: tuple[Term, ...]  # that share it

    @property
    def vector(self) -> str:
        """Name of the other input."""
        return "x2" if self.operand == "x1" else "x1"

    @property
    def letter(self) -> str:
        """Irrep axis of the other input."""
        return INDEX[self.vector]

    @property
    def paths(self) -> tuple[int, ...]:
        return tuple(t.path for t in self.terms)

    @cached_property
    def places(self) -> dict[tuple[int, int], int]:
        """Index of table entry (a, k): component a of the other input, k of the output."""
        pairs = {(e.at(self.letter), e.k) for e in self.terms[0].entries}
        return {pair: n for n, pair in enumerate(sorted(pairs))}

    @property
    def statements(self) -> tuple[Tabulate, ...]:
        """Statements that compute the table's entries."""
        term, index, letter = self.terms[0], INDEX[self.operand], self.letter
        segment, sums = term.segment(self.operand), [list[Product]() for _ in self.places]
        for e in term.entries:
            factor = Component(self.operand, segment, e.at(index))
            sums[self.places[e.at(letter), e.k]].append(Product(e.value, (factor,)))
        return tuple(Tabulate(TableEntry(self.number, n), tuple(s), self.paths) for n, s in enumerate(sums))


def make_tables(terms: tuple[Term, ...], channels: tuple[str, ...]) -> tuple[Table, ...]:
    """Tables of a form's paths; none for paths with channels in both inputs."""
    shared: dict[tuple, list[Term]] = {}
    for term, channel in zip(terms, channels, strict=True):
        for leg in [leg for leg in term.legs if leg.operand in ("x1", "x2") and channel not in leg.letters][:1]:
            shared.setdefault((leg.operand, leg.segment, term.entries), []).append(term)
    return tuple(Table(n, key[0], tuple(users)) for n, (key, users) in enumerate(shared.items()))


def make_tabulated_gradient(term: Term, table: Table) -> tuple[Accumulate, ...]:
    """Statements of the tabulated input's gradient, from sums over channels."""
    operand, index = table.operand, INDEX[table.operand]

    def sums_of_component(b: int) -> tuple[Product, ...]:
        found = ((table.places[e.at(table.letter), e.k], e.value) for e in term.entries if e.at(index) == b)
        return tuple(Product(value, (Component(S, term.path, n),)) for n, value in found)

    places = {b: Component(operand, term.segment(operand), b) for b in sorted({e.at(index) for e in term.entries})}
    return tuple(Accumulate(place, sums_of_component(b), (term.path,)) for b, place in places.items())
