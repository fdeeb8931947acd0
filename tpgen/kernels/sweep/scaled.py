"""A path whose vectors run over copies that one input does not have: that input stands in a table of each row.

With ``T[a, k] = sum_b C[a, b, k] x[b]`` of the tabulated input, and a running over the other one,

    P[k] = sum_a x[a] T[a, k]        out[k] += w P[k]
    Q[a] = sum_k T[a, k] g[k]        dx[a]  += w Q[a]       dw = sum_a x[a] Q[a]
    S[a, k] = sum over channels of x[a] w g[k]

where S, folded with the coupling, is the gradient of the tabulated input.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tpgen.kernels.sweep.stage import Lines, Stage, product
from tpgen.kernels.sweep.statements import Local, Product, TableEntry, Tabulate
from tpgen.kernels.sweep.terms import INDEX, PathTerm


@dataclass(frozen=True)
class Table:
    """Sums of one coupling with one segment of an input: a number for every (a, k) that is not always zero.

    Paths with the same coupling, segment and coefficient share one.
    """

    number: int
    operand: str  # the tabulated input
    terms: tuple[PathTerm, ...]  # that share it

    @property
    def vector(self) -> str:
        """The other input."""
        return "x2" if self.operand == "x1" else "x1"

    @property
    def letter(self) -> str:
        """The irrep axis of the other input."""
        return INDEX[self.vector]

    @property
    def paths(self) -> tuple[int, ...]:
        return tuple(t.path for t in self.terms)

    @cached_property
    def places(self) -> dict[tuple[int, int], int]:
        """Where each (a, k) stands."""
        pairs = {(e.at(self.letter), e.k) for e in self.terms[0].entries}
        return {pair: n for n, pair in enumerate(sorted(pairs))}

    @property
    def statements(self) -> tuple[Tabulate, ...]:
        return tuple(
            Tabulate(TableEntry(self.number, n), self._sum(a, k), self.paths) for (a, k), n in self.places.items()
        )

    def _sum(self, a: int, k: int) -> tuple[Product, ...]:
        at, index = Lines(self.terms[0]).at, INDEX[self.operand]
        return tuple(
            product(at(self.operand, e.at(index)), coefficient=e.value)
            for e in self.terms[0].entries
            if (e.at(self.letter), e.k) == (a, k)
        )


def make_tables(terms: tuple[PathTerm, ...], channels: tuple[str, ...]) -> tuple[Table, ...]:
    """The tables of a form, whatever is open; a path whose inputs both have the channels has none."""
    shared: dict[tuple, list[PathTerm]] = {}
    for term, channel in zip(terms, channels, strict=True):
        operand = tabulated_input(term, channel)
        if operand:
            shared.setdefault((operand, term.segment(operand), term.entries), []).append(term)
    return tuple(Table(n, key[0], tuple(users)) for n, (key, users) in enumerate(shared.items()))


def tabulated_input(term: PathTerm, channel: str) -> str | None:
    """The input that does not have the channels."""
    return next((leg.operand for leg in term.legs if leg.operand in ("x1", "x2") and channel not in leg.letters), None)


def scaled(term: PathTerm, table: Table, channel: str, opened: tuple[str, ...]) -> tuple[Stage, ...]:
    """Channels inside; the sums over them are folded behind, once for every other copy."""
    outside = "".join(a for a, _ in term.copies if a != channel)
    lines, fold = Lines(term), Lines(term)
    _channels(lines, table, channel, opened)
    if table.operand not in opened:
        return (lines.stage(outside + channel),)
    _fold(fold, table)
    return (lines.stage(outside + channel), fold.stage(outside))


def _channels(lines: Lines, table: Table, channel: str, opened: tuple[str, ...]) -> None:
    term, vector = lines.term, table.vector
    rows, columns = term.indices(vector), term.indices("out")
    dw = "w" in opened and term.weighted
    by_q = vector in opened or (dw and "out" not in opened)
    _read(lines, vector, opened)
    weight = lines.at("w") if term.weighted else None
    if "out" in opened or (dw and not by_q):
        for k in columns:
            pairs = [a for a in rows if (a, k) in table.places]
            lines.define(f"p{k}", *(product(lines.at(vector, a), _entry(table, a, k)) for a in pairs))
    if by_q:
        for a in rows:
            pairs = [k for k in columns if (a, k) in table.places]
            lines.define(f"q{a}", *(product(lines.at("out", k), _entry(table, a, k)) for k in pairs))
    if "out" in opened:
        for k in columns:
            lines.accumulate(lines.at("out", k), product(weight, Local(f"p{k}")))
    if vector in opened:
        for a in rows:
            lines.accumulate(lines.at(vector, a), product(weight, Local(f"q{a}")))
    if dw and by_q:
        lines.accumulate(lines.at("w"), *(product(lines.at(vector, a), Local(f"q{a}")) for a in rows))
    elif dw:
        lines.accumulate(lines.at("w"), *(product(Local(f"p{k}"), lines.at("out", k)) for k in columns))
    if table.operand in opened:
        for k in columns:
            lines.define(f"h{k}", product(weight, lines.at("out", k)))
        for (a, k), n in table.places.items():
            lines.reduce(f"s{n}", channel, product(lines.at(vector, a), Local(f"h{k}")))


def _read(lines: Lines, vector: str, opened: tuple[str, ...]) -> None:
    """What some open slot needs."""
    for operand in (vector, "out", "w"):
        if lines.term.leg(operand) and any(slot != operand for slot in opened):
            lines.load(operand, lines.term.indices(operand))


def _entry(table: Table, a: int, k: int) -> TableEntry:
    return TableEntry(table.number, table.places[a, k])


def _fold(lines: Lines, table: Table) -> None:
    """The gradient of the tabulated input, from the sums over channels."""
    term, operand = lines.term, table.operand
    for b in term.indices(operand):
        sums = [
            product(Local(f"s{table.places[e.at(table.letter), e.k]}"), coefficient=e.value)
            for e in term.entries
            if e.at(INDEX[operand]) == b
        ]
        lines.accumulate(lines.at(operand, b), *sums)
