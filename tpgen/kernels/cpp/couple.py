"""The coupling of one path on vectors that are all at hand: ``w * sum C[i,j,k] x[i] y[j] g[k]``, differentiated."""

from __future__ import annotations

from dataclasses import dataclass

from tpgen.kernels.cpp.text import Writer, times, total
from tpgen.kernels.schedule.values import Entry


@dataclass(frozen=True)
class Names:
    """Arrays of vectors, by the operand they belong to; empty where an operand is absent."""

    x1: str
    x2: str
    w: str
    out: str

    def of(self, operand: str) -> str:
        return str(getattr(self, operand))


_LETTERS = {"x1": "i", "x2": "j", "out": "k"}


def couple(
    w: Writer, entries: tuple[Entry, ...], opened: tuple[str, ...], names: Names, dtype: str
) -> dict[str, dict[int, str]]:
    """Write the sums for every open slot; returns the expression of each result vector, by slot and component."""
    results: dict[str, dict[int, str]] = {}
    weighted = bool(names.w)
    gradients = [o for o in ("x1", "x2") if o in opened]
    scale = f"{names.w}[0] * " if weighted else ""
    if "out" in opened or "w" in opened:
        _sums(w, entries, "x1", "x2", "out", names, "c", dtype)
        columns = sorted({e.k for e in entries})
        if "out" in opened:
            results["out"] = {k: f"{scale}c{k}" for k in columns}
        if "w" in opened:
            results["w"] = {0: total([f"c{k} * {names.out}[{k}]" for k in columns])}
    if gradients:
        for k in sorted({e.k for e in entries}):
            w.line(f"const vec h{k} = {scale}{names.out}[{k}];")
    for operand in gradients:
        other = "x2" if operand == "x1" else "x1"
        _sums(w, entries, other, "out", operand, names, f"d{operand[1]}_", dtype)
        results[operand] = {n: f"d{operand[1]}_{n}" for n in sorted({e.at(_LETTERS[operand]) for e in entries})}
    return results


def _sums(
    w: Writer, entries: tuple[Entry, ...], left: str, right: str, target: str, names: Names, prefix: str, dtype: str
) -> None:
    """``prefix[t] = sum C left right``: every product of two components once, then the sums."""
    a, b, t = _LETTERS[left], _LETTERS[right], _LETTERS[target]

    def factor(operand: str, n: int) -> str:
        return f"h{n}" if operand == "out" else f"{names.of(operand)}[{n}]"

    for m, n in sorted({(e.at(a), e.at(b)) for e in entries}):
        w.line(f"const vec {prefix}{a}{m}{b}{n} = {factor(left, m)} * {factor(right, n)};")
    for target_index in sorted({e.at(t) for e in entries}):
        terms = [times(e.value, f"{prefix}{a}{e.at(a)}{b}{e.at(b)}", dtype) for e in entries if e.at(t) == target_index]
        w.line(f"const vec {prefix}{target_index} = {total(terms)};")
