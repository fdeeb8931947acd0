"""The result of `tpgen.explain`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path as FilePath

from tpgen.base.notebook import Shown, div_lines, html_table
from tpgen.base.text import duration, quantity, table
from tpgen.compiler.config import RequestOptions
from tpgen.tools.inspection.costs.pictures import draw_explanation
from tpgen.tools.inspection.costs.roofline import Ceilings
from tpgen.tools.inspection.costs.roofline_picture import draw_roofline_svg

ROWS = 1000  # of a batch, unless given
SECONDS = 0.25  # for each measured time


class ExplainedOptions(RequestOptions, total=False):
    """Request options, nodes and ceilings."""

    nodes: int | None
    ceilings: Ceilings | None


@dataclass(frozen=True)
class PathExplanation:
    """Segments, coefficient, costs per row and code of a path or polynomial term."""

    index: int
    in1: str
    in2: str
    out: str
    mode: str
    weight: tuple[int, int] | None  # start and stop in the flat weight
    weight_shape: tuple[int, ...]
    coefficient: float
    factors: dict[str, float]  # numbers that multiply to the coefficient
    nonzeros: int
    dense: int
    flops: int
    bytes: int
    strategy: str
    how: str
    seconds: float | None = None  # the path alone, measured
    in3: str = ""
    in4: str = ""
    operand: str = ""  # which of several tensors of weights it reads
    constant: str = ""  # where it comes from, if it is no 3j symbol
    entries: tuple[int, ...] = ()  # of the constants of a term that are not zero, by path
    monomials: int = 0  # products of components, each once

    @property
    def couples(self) -> str:
        """Segments, as ``in1 × in2 → out``."""
        return f"{' × '.join(filter(None, (self.in1, self.in2, self.in3, self.in4)))} → {self.out}"

    @property
    def density(self) -> float:
        """Share of nonzero coupling entries."""
        return self.nonzeros / self.dense if self.dense else 1.0

    @property
    def weights(self) -> str:
        """Range of weights as text; empty without."""
        return f"{self.operand} {self.weight[0]}:{self.weight[1]}".strip() if self.weight else ""


@dataclass(frozen=True)
class Explanation(Shown):
    """A product's costs by path as text, HTML, JSON or picture; times are seconds for the batch."""

    product: str
    digest: str
    normalization: str
    rows: int
    dtype: str
    device: str
    layout: tuple[str, ...]
    backend: str
    strategy: str
    reason: str
    paths: tuple[PathExplanation, ...]
    dropped: int
    flops: int  # of the batch
    bytes: int  # of the batch: each operand once
    peak_bytes: int  # of a call without gradients, beside its operands
    training_bytes: int  # of one with all gradients
    ceilings: Ceilings | None
    forward_seconds: float | None = None  # measured
    backward_seconds: float | None = None  # measured, forward and backward
    nodes: int | None = None  # of a convolution, whose rows are edges
    noun: str = "path"  # for a row of the table
    channels: int = 0  # of a polynomial
    elements: int = 0  # of its weights
    monomials: int = 0  # of its form: pairs of a product of components and an output
    coefficients: int = 0  # different numbers among what multiplies them
    operations: Mapping[str, int] = field(default_factory=dict)  # of a row and channel in its sweep, for each call

    @property
    def batch(self) -> str:
        """The batch in words."""
        rows = f"{self.rows:,} rows" if self.nodes is None else f"{self.rows:,} edges of {self.nodes:,} nodes"
        channels = f" of {self.channels} channels" if self.channels else ""
        return rows + channels + (f", {self.elements} elements" if self.elements > 1 else "")

    @property
    def points(self) -> list[tuple[PathExplanation, float, float]]:
        """Each path with operations per byte and per second."""
        ceilings, rows = self.ceilings, self.rows
        if ceilings is None:
            return []
        live = [p for p in self.paths if p.flops]
        times = [p.seconds or ceilings.seconds(rows * p.flops, rows * p.bytes) for p in live]
        return [(p, p.flops / p.bytes, rows * p.flops / seconds) for p, seconds in zip(live, times, strict=True)]

    @property
    def rates(self) -> dict[str, float]:
        """Operations per second: ``predicted``, ``measured``."""
        times = {"predicted": self.predicted_seconds, "measured": self.forward_seconds}
        return {name: self.flops / seconds for name, seconds in times.items() if seconds}

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def predicted_seconds(self) -> float | None:
        """Least forward seconds under the ceilings."""
        return self.ceilings.seconds(self.flops, self.bytes) if self.ceilings else None

    @property
    def bound(self) -> str | None:
        """Limiting resource: ``memory`` or ``arithmetic``."""
        if not self.ceilings:
            return None
        return "memory" if self.intensity < self.ceilings.ridge else "arithmetic"

    def to_json(self) -> str:
        """Return all values as JSON; unmeasured ones are null."""
        derived = {name: getattr(self, name) for name in ("intensity", "predicted_seconds", "bound")}
        return json.dumps({**asdict(self), **derived}, indent=1)

    def plot(self, path: str | FilePath) -> None:
        """Draw costs and roofline into a file; raises `TpgenError` without matplotlib."""
        draw_explanation(self, path)

    def __str__(self) -> str:
        totals = _align_facts(describe_product_totals(self))
        return "\n".join([*_head_lines(self), "", table(*_table_cells(self)), "", *totals])

    def _repr_html_(self) -> str:
        rows, left = _table_cells(self)
        bars: dict[str, Sequence[float]] = {
            "flops": [p.flops for p in self.paths],
            "bytes": [p.bytes for p in self.paths],
            "alone": [p.seconds or 0.0 for p in self.paths],
        }
        head, facts = div_lines(*_head_lines(self)), div_lines(*_align_facts(describe_product_totals(self)))
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


def _head_lines(found: Explanation) -> list[str]:
    dropped = f", {found.dropped} empty dropped" if found.dropped else ""
    normalization = f"{found.normalization} normalisation, " if found.normalization else ""
    return [
        f"{found.product}   (plan {found.digest}, {len(found.paths)} {found.noun}s{dropped})",
        f"{normalization}{found.dtype}, layout {'/'.join(dict.fromkeys(found.layout))}, "
        f"{found.device}, backend {found.backend}",
        f"strategy {found.strategy}: {found.reason}",
    ]


def _table_cells(found: Explanation) -> tuple[list[list[str]], list[int]]:
    cells = {name: [cell(path) for path in found.paths] for name, cell in _COLUMNS.items()}
    columns = {
        name: column for name, column in cells.items() if any(column) or not (column or name in _HIDDEN_WHEN_EMPTY)
    }
    heads = [found.noun if name == "path" else name for name in columns]
    return [heads, *map(list, zip(*columns.values(), strict=True))], [n for n, h in enumerate(columns) if h in _LEFT]


def describe_product_totals(found: Explanation) -> dict[str, str]:
    """Return texts on the whole product by name."""
    facts = {
        f"for {found.batch}": f"{quantity(found.flops, 'FLOP')}, {quantity(found.bytes, 'B')} with each operand "
        f"once: {found.intensity:.2f} FLOP/B",
        "peak memory": f"{quantity(found.peak_bytes, 'B')} besides the operands, {quantity(found.training_bytes, 'B')} "
        "forward+backward, by shapes",
        "ceilings": str(found.ceilings) if found.ceilings else "none",
    }
    if found.operations:
        operations = ", ".join(f"{n:,} {name}" for name, n in found.operations.items())
        facts = {
            "monomials": f"{found.monomials} with {found.coefficients} different coefficients",
            "operations": f"{operations}, of a row and channel in the sweep",
            **facts,
        }
    if found.ceilings:
        facts["predicted"] = (
            f"{duration(found.predicted_seconds)} forward at least: bound by {found.bound} "
            f"(the ridge is at {found.ceilings.ridge:.1f} FLOP/B)"
        )
    facts["measured"] = _measured_text(found)
    if found.ceilings and found.ceilings.warning:
        facts["warning"] = found.ceilings.warning
    return facts


def _align_facts(facts: dict[str, str]) -> list[str]:
    width = max(map(len, facts))
    return [f"{name:{width}}  {text}" for name, text in facts.items()]


def _measured_text(found: Explanation) -> str:
    if found.forward_seconds is None or found.backward_seconds is None:
        return "nothing; measure=True (--measure) runs it"
    share = (found.predicted_seconds or 0) / found.forward_seconds
    # a ceiling is what operands reach that lie in no cache: it can be beaten, and then it says little
    against = f"{100 * share:.0f} % of the ceiling" if share <= 1 else "faster than predicted (operands in a cache?)"
    return f"{duration(found.forward_seconds)} forward, {against}; {duration(found.backward_seconds)} forward+backward"
