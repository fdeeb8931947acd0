"""An explanation as text: a title, a table of the paths, the totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tpgen.notebook import html_table, lines
from tpgen.text import duration, quantity, table

if TYPE_CHECKING:
    from tpgen.inspection.costs.explanation import Explanation, PathExplanation

# A column in which no path has anything to say is left out.
_COLUMNS: dict[str, Callable[[PathExplanation], str]] = {
    "path": lambda p: str(p.index),
    "in1": lambda p: p.in1,
    "in2": lambda p: p.in2,
    "out": lambda p: p.out,
    "mode": lambda p: p.mode,
    "weights": lambda p: f"{p.weight[0]}:{p.weight[1]}" if p.weight else "-",
    "coefficient": lambda p: f"{p.coefficient:.5g}",
    "= irrep × path × variance × weight": lambda p: _product(p.factors.values()),
    "coupling": lambda p: f"{p.nonzeros}/{p.dense} {100 * p.density:.0f} %" if p.dense else "",
    "flops": lambda p: f"{p.flops:,}",
    "bytes": lambda p: f"{p.bytes:,}",
    "alone": lambda p: "" if p.seconds is None else duration(p.seconds),
    "written as": lambda p: p.how,
}
_LEFT = {"in1", "in2", "out", "mode", "= irrep × path × variance × weight", "written as"}


def explanation_text(found: Explanation) -> str:
    """The whole text; times that were not measured have no column."""
    return "\n".join([*_head(found), "", _table(found), "", *_aligned(totals(found))])


def _head(found: Explanation) -> list[str]:
    dropped = f", {found.dropped} empty dropped" if found.dropped else ""
    return [
        f"{found.product}   (plan {found.digest}, {len(found.paths)} paths{dropped})",
        f"{found.normalization} normalisation, {found.dtype}, layout {'/'.join(dict.fromkeys(found.layout))}, "
        f"{found.device}, backend {found.backend}",
        f"strategy {found.strategy}: {found.reason}",
    ]


def explanation_html(found: Explanation, picture: str = "") -> str:
    """The same for a notebook: bars say how operations, bytes and time divide among the paths."""
    rows, left = _rows(found)
    values: dict[str, Sequence[float]] = {
        "flops": [p.flops for p in found.paths],
        "bytes": [p.bytes for p in found.paths],
        "alone": [p.seconds or 0.0 for p in found.paths],
    }
    bars = {rows[0].index(name): value for name, value in values.items() if name in rows[0]}
    return lines(*_head(found)) + html_table(rows, left, bars) + lines(*_aligned(totals(found))) + picture


def _product(factors: Iterable[float]) -> str:
    values = list(factors)
    return " × ".join(f"{value:.4g}" for value in values) if len(values) > 1 else ""


def _table(found: Explanation) -> str:
    return table(*_rows(found))


def _rows(found: Explanation) -> tuple[list[list[str]], list[int]]:
    """The cells, heads first, and which columns are set to the left."""
    cells = {name: [cell(path) for path in found.paths] for name, cell in _COLUMNS.items()}
    columns = {name: column for name, column in cells.items() if any(column) or not (column or name == "alone")}
    rows = [list(columns), *map(list, zip(*columns.values(), strict=True))]
    return rows, [n for n, name in enumerate(columns) if name in _LEFT]


def totals(found: Explanation) -> dict[str, str]:
    """What is said of the product as a whole, by name."""
    batch = f"{found.rows:,} rows" if found.nodes is None else f"{found.rows:,} edges of {found.nodes:,} nodes"
    facts = {
        f"for {batch}": f"{quantity(found.flops, 'FLOP')}, {quantity(found.bytes, 'B')} with each operand "
        f"once: {found.intensity:.2f} FLOP/B",
        "peak memory": f"{quantity(found.peak_bytes, 'B')} besides the operands, {quantity(found.training_bytes, 'B')} "
        "forward+backward, by shapes",
        "ceilings": str(found.ceilings) if found.ceilings else "none",
    }
    if found.ceilings:
        facts["predicted"] = (
            f"{duration(found.predicted_seconds)} forward at least: bound by {found.bound} "
            f"(the ridge is at {found.ceilings.ridge:.1f} FLOP/B)"
        )
    if found.on_gpu:
        facts[f"on {found.on_gpu.gpu}"] = found.on_gpu.least(found.flops, found.bytes)
    facts["measured"] = _measured(found)
    if found.ceilings and found.ceilings.warning:
        facts["warning"] = found.ceilings.warning
    return facts


def _aligned(facts: dict[str, str]) -> list[str]:
    width = max(map(len, facts))
    return [f"{name:{width}}  {text}" for name, text in facts.items()]


def _measured(found: Explanation) -> str:
    if found.forward_seconds is None or found.backward_seconds is None:
        return "nothing; measure=True (--measure) runs it"
    share = (found.predicted_seconds or 0) / found.forward_seconds
    # a ceiling is what operands reach that lie in no cache: it can be beaten, and then it says little
    against = f"{100 * share:.0f} % of the ceiling" if share <= 1 else "faster than predicted (operands in a cache?)"
    return f"{duration(found.forward_seconds)} forward, {against}; {duration(found.backward_seconds)} forward+backward"
