"""The result of `tpgen.explain`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path as FilePath

from tpgen.base.notebook import Shown, div_lines, html_table
from tpgen.base.text import duration, quantity, table
from tpgen.compiler.config import RequestOptions
from tpgen.tools.inspection.costs.explained import ExplanationValues, PathExplanation
from tpgen.tools.inspection.costs.pictures import draw_explanation
from tpgen.tools.inspection.costs.roofline import Ceilings
from tpgen.tools.inspection.costs.roofline_picture import draw_roofline_svg

ROWS = 1000  # of a batch, unless given
SECONDS = 0.25  # for each measured time


class ExplainedOptions(RequestOptions, total=False):
    """Keyword options of `explain`."""

    nodes: int | None
    ceilings: Ceilings | None


@dataclass(frozen=True)
class Explanation(Shown, ExplanationValues):
    """Result of `explain`, as text, HTML, JSON or picture."""

    def to_json(self) -> str:
        """All values as JSON; null if unmeasured."""
        derived = {name: getattr(self, name) for name in ("intensity", "predicted_seconds", "bound")}
        return json.dumps({**asdict(self), **derived}, indent=1)

    def plot(self, path: str | FilePath) -> None:
        """Draw costs and roofline into a picture file."""
        draw_explanation(self, path)

    def __str__(self) -> str:
        totals = _align_facts(describe_product_totals(self))
        return "\n".join([*_header_lines(self), "", table(*_table_rows_and_left_columns(self)), "", *totals])

    def _repr_html_(self) -> str:
        rows, left = _table_rows_and_left_columns(self)
        bars: dict[str, Sequence[float]] = {
            "flops": [p.flops for p in self.paths],
            "bytes": [p.bytes for p in self.paths],
            "alone": [p.seconds or 0.0 for p in self.paths],
        }
        head, facts = div_lines(*_header_lines(self)), div_lines(*_align_facts(describe_product_totals(self)))
        return head + html_table(rows, left, bars) + facts + draw_roofline_svg(self)


# A column in which no path has anything to say is left out.
_COLUMNS: dict[str, Callable[[PathExplanation], str]] = {
    "path": lambda p: str(p.index),
    **{name: attrgetter(name) for name in ("in1", "in2", "in3", "in4", "out", "mode", "constant")},
    "paths": lambda p: str(len(p.entries) or ""),
    "weights": lambda p: p.weights or "-",
    "coefficient": lambda p: "" if p.constant else f"{p.coefficient:.5g}",
    "= irrep × path × variance × weight": lambda p: (
        " × ".join(f"{value:.4g}" for value in p.factors.values()) if len(p.factors) > 1 else ""
    ),
    "coupling": lambda p: f"{p.nonzeros}/{p.dense} {100 * p.density:.0f} %" if p.dense else "",
    "monomials": lambda p: str(p.monomials or ""),
    "flops": lambda p: f"{p.flops:,}",
    "bytes": lambda p: f"{p.bytes:,}",
    "alone": lambda p: "" if p.seconds is None else duration(p.seconds),
    "written as": lambda p: p.how,
}
_LEFT = {"in1", "in2", "in3", "in4", "out", "mode", "constant", "= irrep × path × variance × weight", "written as"}
_HIDDEN_WHEN_EMPTY = ("in3", "in4", "constant", "paths", "monomials", "alone")  # of nothing at all


def _header_lines(explanation: Explanation) -> list[str]:
    dropped = f", {explanation.dropped} empty dropped" if explanation.dropped else ""
    normalization = f"{explanation.normalization} normalisation, " if explanation.normalization else ""
    return [
        f"{explanation.product}   (plan {explanation.digest}, {len(explanation.paths)} {explanation.noun}s{dropped})",
        f"{normalization}{explanation.dtype}, layout {'/'.join(dict.fromkeys(explanation.layout))}, "
        f"{explanation.device}, backend {explanation.backend}",
        f"strategy {explanation.strategy}: {explanation.reason}",
    ]


def _table_rows_and_left_columns(explanation: Explanation) -> tuple[list[list[str]], list[int]]:
    cells = {name: [cell(path) for path in explanation.paths] for name, cell in _COLUMNS.items()}
    columns = {
        name: column for name, column in cells.items() if any(column) or not (column or name in _HIDDEN_WHEN_EMPTY)
    }
    heads = [explanation.noun if name == "path" else name for name in columns]
    return [heads, *map(list, zip(*columns.values(), strict=True))], [n for n, h in enumerate(columns) if h in _LEFT]


def describe_product_totals(explanation: Explanation) -> dict[str, str]:
    """Total costs, ceilings and times in words, by name."""
    facts = {
        f"for {explanation.batch}": f"{quantity(explanation.flops, 'FLOP')}, {quantity(explanation.bytes, 'B')} "
        f"with each operand once: {explanation.intensity:.2f} FLOP/B",
        "peak memory": f"{quantity(explanation.peak_bytes, 'B')} besides the operands, "
        f"{quantity(explanation.training_bytes, 'B')} forward+backward, by shapes",
        "ceilings": str(explanation.ceilings) if explanation.ceilings else "none",
    }
    if explanation.operations:
        operations = ", ".join(f"{n:,} {name}" for name, n in explanation.operations.items())
        facts = {
            "monomials": f"{explanation.monomials} with {explanation.coefficients} different coefficients",
            "operations": f"{operations}, of a row and channel in the sweep",
            **facts,
        }
    if explanation.ceilings:
        facts["predicted"] = (
            f"{duration(explanation.predicted_seconds)} forward at least: bound by {explanation.bound} "
            f"(the ridge is at {explanation.ceilings.ridge:.1f} FLOP/B)"
        )
    facts["measured"] = _describe_measured_times(explanation)
    if explanation.ceilings and explanation.ceilings.warning:
        facts["warning"] = explanation.ceilings.warning
    return facts


def _align_facts(facts: dict[str, str]) -> list[str]:
    width = max(map(len, facts))
    return [f"{name:{width}}  {text}" for name, text in facts.items()]


def _describe_measured_times(explanation: Explanation) -> str:
    if explanation.forward_seconds is None or explanation.backward_seconds is None:
        return "nothing; measure=True (--measure) runs it"
    share = (explanation.predicted_seconds or 0) / explanation.forward_seconds
    # a ceiling is what operands reach that lie in no cache: it can be beaten, and then it says little
    against = f"{100 * share:.0f} % of the ceiling" if share <= 1 else "faster than predicted (operands in a cache?)"
    forward, backward = duration(explanation.forward_seconds), duration(explanation.backward_seconds)
    return f"{forward} forward, {against}; {backward} forward+backward"
