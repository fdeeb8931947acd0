"""Findings of laws, with errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log10

import torch
from torch import Tensor

from tpgen.base.drawing.charts import draw_error_scale
from tpgen.base.errors import InputError, unknown
from tpgen.base.notebook import html_table

# Largest error of one product, relative to the largest entry of the tensor that it is in: some five to ten times what
# the named problems show.  A wrong term of a product makes errors of the order of 1.
TOLERANCES: dict[torch.dtype, float] = {
    torch.float64: 1e-12,
    torch.float32: 5e-6,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
}


def tolerance_of(dtype: torch.dtype) -> float:
    """A product's tolerance in a dtype; raises `InputError` for unknown dtypes."""
    if dtype not in TOLERANCES:
        raise InputError(unknown("dtype", str(dtype), map(str, TOLERANCES)))
    return TOLERANCES[dtype]


PASSED, FAILED, NOT_COMPARED = "passed", "failed", "not compared"
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Noted:
    """Tensors to compare, with a remark."""

    pair: Pair
    why: str
    of_failure: bool = False  # the remark is of a failure alone


Outcome = Pair | Noted | str | Exception  # got and expected, or why it was not compared, or how it broke down


class NotCompared(Exception):
    """A law cannot be compared; the message says why."""


@dataclass(frozen=True)
class LawFinding:
    """A law's verdict on one part: largest errors, or why nothing was compared."""

    law: str
    part: str
    status: str
    absolute: float | None = None
    relative: float | None = None
    tolerance: float | None = None
    why: str = ""


def judge_outcome(law: str, part: str, outcome: Outcome, tolerance: float, floor: float = 0.0) -> LawFinding:
    """Judge an outcome; errors up to ``floor`` pass."""
    if isinstance(outcome, (str, NotCompared)):
        return LawFinding(law, part, NOT_COMPARED, why=str(outcome))
    if isinstance(outcome, Noted):
        found = judge_outcome(law, part, outcome.pair, tolerance, floor)
        if outcome.of_failure and found.status == PASSED:
            return found
        return replace(found, why="; ".join(filter(None, (found.why, outcome.why))))
    if isinstance(outcome, Exception):
        lines = str(outcome).strip().splitlines() or [""]
        return LawFinding(law, part, FAILED, tolerance=tolerance, why=f"{type(outcome).__name__}: {lines[0][:200]}")
    got, expected = outcome
    if got.shape != expected.shape:
        why = f"the shape is {tuple(got.shape)} where {tuple(expected.shape)} was expected"
        return LawFinding(law, part, FAILED, tolerance=tolerance, why=why)
    if not got.numel():
        return LawFinding(law, part, NOT_COMPARED, why=f"the shape is {tuple(got.shape)}: there is nothing in it")
    absolute, scale = largest_entry(got - expected), largest_entry(expected)
    relative = absolute / scale if scale > 0.0 else absolute
    # written so that an error which is not a number fails
    holds = relative <= tolerance or absolute <= floor
    return LawFinding(law, part, PASSED if holds else FAILED, absolute, relative, tolerance)


def largest_entry(x: Tensor) -> float:
    """Largest absolute value in a tensor; 0 without entries."""
    return float(x.detach().abs().max()) if x.numel() else 0.0


def largest_difference(x: Tensor, y: Tensor) -> float:
    """Largest absolute difference of two tensors; infinite for different shapes."""
    return largest_entry(x - y) if x.shape == y.shape else float("inf")


COLUMNS = ("law", "of", "status", "absolute", "relative", "tolerance", "why")


def list_finding_cells(finding: LawFinding) -> tuple[str, ...]:
    """A finding's table row."""
    numbers = (finding.absolute, finding.relative, finding.tolerance)
    errors = ("-" if n is None else f"{n:.1e}" for n in numbers)
    return (finding.law, finding.part, finding.status, *errors, finding.why)


def write_findings_html(findings: Sequence[LawFinding]) -> str:
    """An HTML table of findings, and a chart of errors."""
    rows = [COLUMNS, *map(list_finding_cells, findings)]
    errors = [(" ".join(filter(None, (f.law, f.part))), f.relative, f.tolerance) for f in findings]
    return html_table(
        rows, left=(0, 1, 2, 6), bars={"relative": [*map(_log_share_of_tolerance, findings)]}
    ) + draw_error_scale(errors)


_POWERS = 16  # below a tolerance by so many powers of ten, an error has no bar


def _log_share_of_tolerance(finding: LawFinding) -> float:
    if not finding.relative or not finding.tolerance or finding.relative <= 0 or finding.tolerance <= 0:
        return 0.0
    return min(max(_POWERS + log10(finding.relative / finding.tolerance), 0.0), _POWERS)


def count_statuses_as_text(findings: Sequence[LawFinding]) -> str:
    """Numbers of findings by status as text.

    >>> count_statuses_as_text([LawFinding("linear", "x1", PASSED)])
    '1 passed, 0 failed'
    """
    count = {s: sum(f.status == s for f in findings) for s in (PASSED, FAILED, NOT_COMPARED)}
    return ", ".join(f"{n} {status}" for status, n in count.items() if n or status != NOT_COMPARED)
