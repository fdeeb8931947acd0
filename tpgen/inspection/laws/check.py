"""Check a product against the laws that it must obey: `check_product` returns a `CheckReport`.

A law compares two tensors that must be equal.  All comparisons are made in float64 on the CPU, of inputs that the dtype
under test can hold, so an error is one that the product made.  What cannot be compared says why.

>>> from tpgen.planner.plan import make_plan
>>> plan = make_plan("4x1o", "1o", "4x1e", [(0, 0, 0, "uvu", True)])
>>> report = check_product(plan, dtype=torch.float64)
>>> report.passed, report.finding("gradient", "w").status
(True, 'passed')
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log10
from typing import TypeVar

import torch
from torch import Tensor

from tpgen.errors import InputError, unknown
from tpgen.form.form import Layout
from tpgen.inspection.laws.laws import LAWS, Pair, sample
from tpgen.inspection.subject import refused
from tpgen.nn.tensor_product import TensorProduct
from tpgen.notebook import Shown, html_table, lines
from tpgen.planner.plan import Plan
from tpgen.text import table

# Largest error of one product, relative to the largest entry of the tensor that it is in: some five to ten times what
# the named problems show.  A wrong term of a product makes errors of the order of 1.
TOLERANCES: dict[torch.dtype, float] = {
    torch.float64: 1e-12,
    torch.float32: 5e-6,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
}


def tolerance_of(dtype: torch.dtype) -> float:
    """The tolerance of one product; raises `InputError` for a dtype that has none."""
    if dtype not in TOLERANCES:
        raise InputError(unknown("dtype", str(dtype), map(str, TOLERANCES)))
    return TOLERANCES[dtype]


PASSED, FAILED, NOT_COMPARED = "passed", "failed", "not compared"


@dataclass(frozen=True)
class Finding:
    """What one law says about one part of a product: its largest errors, or why it says nothing."""

    law: str
    part: str
    status: str
    absolute: float | None = None
    relative: float | None = None
    tolerance: float | None = None
    why: str = ""


@dataclass(frozen=True)
class CheckReport(Shown):
    """Every law's findings about one product, written and run in one way."""

    product: str
    digest: str
    layout: tuple[str, ...]
    strategy: str
    backend: str
    dtype: str
    device: str
    rows: int
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether no comparison failed."""
        return all(finding.status != FAILED for finding in self.findings)

    def finding(self, law: str, part: str = "") -> Finding:
        """The finding of a law about a part (``""`` where the law has one part)."""
        return next(f for f in self.findings if (f.law, f.part) == (law, part))

    def to_json(self) -> str:
        """The report as JSON text; an error that is not a number is written as text, which strict JSON asks for."""
        fields = {**asdict(self), "passed": self.passed}
        for finding in fields["findings"]:
            for name in ("absolute", "relative"):
                if finding[name] is not None and not abs(finding[name]) < float("inf"):
                    finding[name] = str(finding[name])
        return json.dumps(fields, allow_nan=False)

    @property
    def title(self) -> str:
        layout = self.layout[0] if len(set(self.layout)) == 1 else ",".join(self.layout)
        return (
            f"{self.product}: {self.strategy}, {self.backend}, {layout}, {self.dtype}, {self.device}, {self.rows} rows"
        )

    def __str__(self) -> str:
        rows = [COLUMNS, *(finding_cells(finding) for finding in self.findings)]
        return "\n".join([self.title, "", table(rows), "", verdict(self)])

    def _repr_html_(self) -> str:
        return lines(f"{self.title}: {verdict(self)}") + findings_html(self.findings)


COLUMNS = ("law", "of", "status", "absolute", "relative", "tolerance", "why")


def findings_html(findings: Sequence[Finding]) -> str:
    """Findings for a notebook: a bar says how much of its tolerance an error takes, in powers of ten."""
    rows = [COLUMNS, *map(finding_cells, findings)]
    return html_table(rows, left=(0, 1, 2, 6), bars={4: [*map(_used, findings)]})


_POWERS = 16  # below a tolerance by so many powers of ten, an error has no bar


def _used(finding: Finding) -> float:
    if not finding.relative or not finding.tolerance or finding.relative <= 0 or finding.tolerance <= 0:
        return 0.0
    return min(max(_POWERS + log10(finding.relative / finding.tolerance), 0.0), _POWERS)


def finding_cells(finding: Finding) -> tuple[str, ...]:
    """The cells of a finding's row: law, part, status, errors, tolerance, reason."""
    numbers = (finding.absolute, finding.relative, finding.tolerance)
    return (
        finding.law,
        finding.part,
        finding.status,
        *("-" if n is None else f"{n:.1e}" for n in numbers),
        finding.why,
    )


def verdict(report: CheckReport) -> str:
    """One line: how many comparisons passed, failed and could not be made."""
    return counted(report.findings)


def counted(findings: Sequence[Finding]) -> str:
    """How many findings there are of each status.

    >>> counted([Finding("linear", "x1", PASSED)])
    '1 passed, 0 failed'
    """
    count = {s: sum(f.status == s for f in findings) for s in (PASSED, FAILED, NOT_COMPARED)}
    return ", ".join(f"{n} {status}" for status, n in count.items() if n or status != NOT_COMPARED)


def check_product(
    plan: Plan,
    layout: Layout = "mul_ir",
    strategy: str = "auto",
    backend: str = "eager",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    rows: int = 8,
    progress: Callable[[str], None] | None = None,
) -> CheckReport:
    """Build the product of a plan as asked and check it; see `check_module`."""
    product = TensorProduct.from_plan(plan, internal_weights=False, layout=layout, strategy=strategy, backend=backend)
    return check_module(product.to(device=device, dtype=dtype), rows, progress)


def check_module(product: TensorProduct, rows: int = 8, progress: Callable[[str], None] | None = None) -> CheckReport:
    """Check a product of two inputs, in its dtype and on its device, on a random batch of ``rows``.

    Laws: it equals the slow definition and e3nn, `right` is the same product, it is equivariant and linear in each
    operand, its first and second derivatives are those of the definition.  ``progress`` is called with each law's name.

    Raises `InputError` for a dtype that has no tolerance, and for no rows at all, `TpgenError` for what is no product.
    """
    if not isinstance(product, TensorProduct):
        raise refused("give a tpgen TensorProduct", product)
    dtype, device = product.output_mask.dtype, product.output_mask.device
    allowed = tolerance_of(dtype)
    if rows < 1:
        raise InputError(f"rows: a check needs one row at least, got {rows}")
    subject = sample(product, rows)
    findings: list[Finding] = []
    for name, law in LAWS.items():
        if progress:
            progress(name)
        tolerance = law.slack * allowed
        findings += [judge(name, part, outcome, tolerance) for part, outcome in outcomes(law.compare, subject).items()]
    return CheckReport(
        product=f"{product.irreps_in1} x {product.irreps_in2} -> {product.irreps_out}",
        digest=product.plan.digest,
        layout=product.layout,
        strategy=product.choice.strategy,
        backend=product.backend,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        rows=rows,
        findings=tuple(findings),
    )


Outcome = Pair | str | RuntimeError
S = TypeVar("S")  # what a law is about


def outcomes(compare: Callable[[S], Mapping[str, Pair | str]], subject: S) -> Mapping[str, Outcome]:
    """What a law compares; a product that breaks down under a law fails it, and the other laws go on."""
    try:
        return compare(subject)
    except RuntimeError as error:
        return {"": error}


def judge(law: str, part: str, outcome: Outcome, tolerance: float) -> Finding:
    """The finding of a comparison."""
    if isinstance(outcome, str):
        return Finding(law, part, NOT_COMPARED, why=outcome)
    if isinstance(outcome, RuntimeError):
        lines = str(outcome).strip().splitlines() or [""]
        return Finding(law, part, FAILED, tolerance=tolerance, why=f"{type(outcome).__name__}: {lines[0][:200]}")
    got, expected = outcome
    if got.shape != expected.shape:
        why = f"the shape is {tuple(got.shape)} where {tuple(expected.shape)} was expected"
        return Finding(law, part, FAILED, tolerance=tolerance, why=why)
    absolute = _largest(got - expected)
    scale = _largest(expected)
    relative = absolute / scale if scale > 0.0 else absolute
    # written so that an error which is not a number fails
    return Finding(law, part, PASSED if relative <= tolerance else FAILED, absolute, relative, tolerance)


def _largest(x: Tensor) -> float:
    return float(x.detach().abs().max()) if x.numel() else 0.0
