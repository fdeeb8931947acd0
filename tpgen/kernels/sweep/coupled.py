"""The coupling of one path on components that are all at hand: ``w * sum C[i,j,k] x[i] y[j] g[k]``, differentiated."""

from __future__ import annotations

from tpgen.kernels.sweep.stage import Lines, Stage, product
from tpgen.kernels.sweep.statements import Local, Value
from tpgen.kernels.sweep.terms import INDEX, PathTerm, given_slots


def coupled(term: PathTerm, opened: tuple[str, ...], order: tuple[str, ...]) -> tuple[Stage, ...]:
    """One stage over all copies; what is given is read in that order."""
    lines = Lines(term)
    for operand in order:
        if term.leg(operand) and operand in given_slots(opened):
            lines.load(operand, term.indices(operand))
    couple(lines, tuple(o for o in opened if term.leg(o)), weighted=term.weighted)
    return (lines.stage("".join(a for a, _ in term.copies)),)


def couple(lines: Lines, opened: tuple[str, ...], weighted: bool) -> None:
    """The sums for every open slot, then their contributions."""
    gradients = tuple(o for o in ("x1", "x2") if o in opened)
    weight = lines.at("w") if weighted else None
    columns = lines.term.indices("out")
    if "out" in opened or "w" in opened:
        couple_inputs(lines)
    if gradients:
        for k in columns:
            lines.define(f"h{k}", product(weight, lines.at("out", k)))
        couple_gradients(lines, gradients)
    if "out" in opened:
        for k in columns:
            lines.accumulate(lines.at("out", k), product(weight, Local(f"c{k}")))
    if "w" in opened:
        lines.accumulate(lines.at("w"), *(product(Local(f"c{k}"), lines.at("out", k)) for k in columns))
    accumulate_gradients(lines, gradients)


def couple_inputs(lines: Lines) -> None:
    """``c[k] = sum C x1[i] x2[j]``"""
    _sums(lines, "x1", "x2", "out", "c")


def couple_gradients(lines: Lines, gradients: tuple[str, ...]) -> None:
    """``d1_[i] = sum C x2[j] h[k]``, and the same for x2."""
    for operand in gradients:
        _sums(lines, "x2" if operand == "x1" else "x1", "out", operand, f"d{operand[1]}_")


def accumulate_gradients(lines: Lines, gradients: tuple[str, ...]) -> None:
    for operand in gradients:
        for n in lines.term.indices(operand):
            lines.accumulate(lines.at(operand, n), product(Local(f"d{operand[1]}_{n}")))


def _sums(lines: Lines, left: str, right: str, target: str, prefix: str) -> None:
    """``prefix[t] = sum C left right``: every product of two components once, then the sums."""
    a, b, t = INDEX[left], INDEX[right], INDEX[target]

    def factor(operand: str, n: int) -> Value:
        return Local(f"h{n}") if operand == "out" else lines.at(operand, n)

    entries = lines.term.entries
    for m, n in sorted({(e.at(a), e.at(b)) for e in entries}):
        lines.define(f"{prefix}{a}{m}{b}{n}", product(factor(left, m), factor(right, n)))
    for at in lines.term.indices(target):
        terms = [
            product(Local(f"{prefix}{a}{e.at(a)}{b}{e.at(b)}"), coefficient=e.value) for e in entries if e.at(t) == at
        ]
        lines.define(f"{prefix}{at}", *terms)
