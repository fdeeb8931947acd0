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
    """Allowed relative error of a product in a dtype; raises `InputError` for unknown dtypes."""
    if dtype not in TOLERANCES:
        raise InputError(unknown("dtype", str(dtype), map(str, TOLERANCES)))
    return TOLERANCES[dtype]


ROUNDING = 1e-15  # absolute: smaller differences are of zeros, as a pseudoscalar of a planar molecule is
NO_POINTS = "no input is said to be points"
PASSED, FAILED, NOT_COMPARED = "passed", "failed", "not compared"
GotAndExpected = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class GotAndExpectedWithRemark:
    """Tensors to compare, with a remark for the report."""

    pair: GotAndExpected
    why: str
    of_failure: bool = False  # the remark is of a failure alone


GotAndExpectedOrReason = (
    GotAndExpected | GotAndExpectedWithRemark | str | Exception
)  # got and expected, or why it was not compared, or how it broke down


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


def judge_comparison(
    law_name: str, part_name: str, comparison: GotAndExpectedOrReason, tolerance: float, absolute_floor: float = 0.0
) -> LawFinding:
    """Judge by relative tolerance; absolute errors up to ``absolute_floor`` pass."""
    if isinstance(comparison, (str, NotCompared)):
        return LawFinding(law_name, part_name, NOT_COMPARED, why=str(comparison))
    if isinstance(comparison, GotAndExpectedWithRemark):
        found = judge_comparison(law_name, part_name, comparison.pair, tolerance, absolute_floor)
        if comparison.of_failure and found.status == PASSED:
            return found
        return replace(found, why="; ".join(filter(None, (found.why, comparison.why))))
    if isinstance(comparison, Exception):
        lines = str(comparison).strip().splitlines() or [""]
        return LawFinding(
            law_name, part_name, FAILED, tolerance=tolerance, why=f"{type(comparison).__name__}: {lines[0][:200]}"
        )
    got, expected = comparison
    if got.shape != expected.shape:
        why = f"the shape is {tuple(got.shape)} where {tuple(expected.shape)} was expected"
        return LawFinding(law_name, part_name, FAILED, tolerance=tolerance, why=why)
    if not got.numel():
        return LawFinding(
            law_name, part_name, NOT_COMPARED, why=f"the shape is {tuple(got.shape)}: there is nothing in it"
        )
    absolute, scale = largest_entry(got - expected), largest_entry(expected)
    relative = absolute / scale if scale > 0.0 else absolute
    # written so that an error which is not a number fails
    holds = relative <= tolerance or absolute <= absolute_floor
    return LawFinding(law_name, part_name, PASSED if holds else FAILED, absolute, relative, tolerance)


def largest_entry(x: Tensor) -> float:
    """Largest absolute value in a tensor; 0 without entries."""
    return float(x.detach().abs().max()) if x.numel() else 0.0


def largest_difference(x: Tensor, y: Tensor) -> float:
    """Largest absolute difference of two tensors; infinite for different shapes."""
    return largest_entry(x - y) if x.shape == y.shape else float("inf")


COLUMNS = ("law", "of", "status", "absolute", "relative", "tolerance", "why")


def format_finding_as_table_row(finding: LawFinding) -> tuple[str, ...]:
    numbers = (finding.absolute, finding.relative, finding.tolerance)
    errors = ("-" if n is None else f"{n:.1e}" for n in numbers)
    return (finding.law, finding.part, finding.status, *errors, finding.why)


def format_findings_as_html(findings: Sequence[LawFinding]) -> str:
    """An HTML table of findings, and a chart of errors."""
    rows = [COLUMNS, *map(format_finding_as_table_row, findings)]
    errors = [(" ".join(filter(None, (f.law, f.part))), f.relative, f.tolerance) for f in findings]
    return html_table(
        rows, left=(0, 1, 2, 6), bars={"relative": [*map(_bar_length_by_log_of_error_over_tolerance, findings)]}
    ) + draw_error_scale(errors)


_POWERS = 16  # below a tolerance by so many powers of ten, an error has no bar


def _bar_length_by_log_of_error_over_tolerance(finding: LawFinding) -> float:
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
