"""Verification of modules."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from tpgen.base.errors import InputError, a_kind, check_known
from tpgen.base.notebook import Shown, div_lines
from tpgen.base.progress import ProgressOption, step_reporter
from tpgen.base.text import table
from tpgen.compiler.backends import BACKENDS, check_backend
from tpgen.compiler.config import Config
from tpgen.networks.bypass import bypassing_programs
from tpgen.networks.conversion.convert import conversion_report
from tpgen.networks.conversion.operations.splines import disable_splines, find_largest_spline_error, has_splined_nets
from tpgen.networks.conversion.proof import LIMIT as PROVEN
from tpgen.nn.modules import build_module, list_size_keywords
from tpgen.planner.plan import Plan
from tpgen.tools.verification.derivatives import (
    DERIVATIVE_LIMIT,
    FREED,
    OF_TORCH,
    is_freed_graph_error,
    replace_norms_by_formulas,
)
from tpgen.tools.verification.findings import (
    COLUMNS,
    FAILED,
    NOT_COMPARED,
    PASSED,
    ROUNDING,
    LawFinding,
    count_statuses_as_text,
    format_finding_as_table_row,
    format_findings_as_html,
    judge_comparison,
    tolerance_of,
)
from tpgen.tools.verification.laws import Law
from tpgen.tools.verification.modules import build_tested_tpgen_module
from tpgen.tools.verification.networks import build_tested_network, copy_tensors_in_arguments
from tpgen.tools.verification.potentials import SLOPE
from tpgen.tools.verification.precision import copy_in_float64
from tpgen.tools.verification.runs import has_running_statistics, is_random, is_random_in_training_alone
from tpgen.tools.verification.subject import ModuleUnderTest
from tpgen.tools.verification.table import LAWS, UNSEEN, is_network

STOCK = "stock"  # the law of a conversion, which is asked of two networks
LAW_NAMES = (*LAWS, STOCK)
COUPLINGS = "as of couplings rounded to float32: build it under torch.set_default_dtype(torch.float64)"
OF_HIGHER_ORDER = ("second order", "third order", "Hessian")  # forces have one more than their network's energy
BY_DIFFERENCES = ("first order", *OF_HIGHER_ORDER)
OF_NETS = (*BY_DIFFERENCES, "parameters", "compiled")  # laws that ask for what splines of weights have not
# Laws under which random numbers of a call stand elsewhere, as those of dropout do.
BY_PLACE = (
    "precision",
    "permutation",
    "edges",
    "images",
    "basis",
    "copies",
    "batch",
    "smooth",
    "conservation",
    "compiled",
    "history",
)
IN_EVALUATION = "in evaluation: calls in training draw random numbers"
OF_STATISTICS = "in evaluation: calls in training normalise by rows of all graphs"
ELSEWHERE = "results follow random numbers, of which the law `repeated` tells: under this one they stand elsewhere"
REMEMBERS = "history is broken: other rows may follow from it"
WITHOUT_SPLINES = "of the network without splines, which are for inference"


@dataclass(frozen=True)
class Verification(Shown):
    """Report: findings of all laws on a module."""

    kind: str
    title: str
    settings: str
    dtype: str
    device: str
    seconds: float
    findings: tuple[LawFinding, ...]
    mode: str = ""  # of a network, as it was given
    asked: tuple[str, ...] = ()  # laws that were asked for by name, and that of turning where nothing was said of it

    @property
    def passed(self) -> bool:
        """Whether a comparison passed, none failed, and named laws were compared."""
        return (
            not self.failed
            and not self._asked_not_compared
            and any(finding.status == PASSED for finding in self.findings)
        )

    @property
    def _asked_not_compared(self) -> tuple[str, ...]:
        return tuple(name for name in self.not_compared if name in self.asked)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of broken laws."""
        return tuple(dict.fromkeys(f.law for f in self.findings if f.status == FAILED))

    @property
    def not_compared(self) -> tuple[str, ...]:
        """Names of laws without any comparison."""
        compared = {f.law for f in self.findings if f.status != NOT_COMPARED}
        return tuple(dict.fromkeys(f.law for f in self.findings if f.law not in compared))

    @property
    def _remarked(self) -> tuple[str, ...]:
        partly = (f.law for f in self.findings if f.status == NOT_COMPARED and f.law not in self.not_compared)
        return tuple(dict.fromkeys(partly))

    @property
    def verdict(self) -> str:
        """Verdict in a few words."""
        if self.failed:
            return f"BROKEN: {', '.join(self.failed)}"
        if not any(finding.status == PASSED for finding in self.findings):
            return "nothing was compared"
        rest = [name for name in self.not_compared if name not in self._asked_not_compared]
        parts = (
            ("; not compared, and so not passed: ", self._asked_not_compared),
            ("; not compared: ", rest),
            ("; see what is said of ", self._remarked),
        )
        held = "every law that was compared holds" if self.not_compared else "every law holds"
        return held + "".join(f"{said}{', '.join(names)}" for said, names in parts if names)

    def finding(self, law: str, part: str = "") -> LawFinding:
        return next(f for f in self.findings if (f.law, f.part) == (law, part))

    def worst(self) -> tuple[LawFinding, ...]:
        """Each law's finding of largest error over tolerance."""
        found: dict[str, LawFinding] = {}
        for finding in self.findings:
            if finding.law not in found or _error_over_tolerance(finding) > _error_over_tolerance(found[finding.law]):
                found[finding.law] = finding
        return tuple(found.values())

    def to_json(self) -> str:
        """Findings as strict JSON; infinite and NaN errors are texts."""
        fields = {**asdict(self), "passed": self.passed, "failed": self.failed}
        for finding in fields["findings"]:
            for name in ("absolute", "relative"):
                if finding[name] is not None and not abs(finding[name]) < float("inf"):
                    finding[name] = str(finding[name])
        return json.dumps(fields, allow_nan=False)

    def shown(self) -> tuple[LawFinding, ...]:
        """Each law's worst finding and parts without comparison."""
        worst = self.worst()
        left = [f for f in self.findings if f.status == NOT_COMPARED and f not in worst]
        return tuple(f for one in worst for f in (one, *(also for also in left if also.law == one.law)))

    def __str__(self) -> str:
        rows = [COLUMNS, *(format_finding_as_table_row(finding) for finding in self.shown())]
        return "\n".join([*self._format_report_heading_lines(), "", table(rows), "", self._format_report_summary()])

    def _repr_html_(self) -> str:
        return (
            div_lines(*self._format_report_heading_lines())
            + format_findings_as_html(self.shown())
            + div_lines(self._format_report_summary())
        )

    def _format_report_heading_lines(self) -> tuple[str, str, str]:
        return (
            f"{self.kind} {self.title}: {self.verdict}",
            self.settings,
            f"{self.dtype} on {self.device}, {self.seconds:.1f} s",
        )

    def _format_report_summary(self) -> str:
        unseen = UNSEEN.get(self.kind, "").format(mode=self.mode)
        cause = f"\n{REMEMBERS}" * ("history" in self.failed and len(self.failed) > 1)
        return f"largest error of each law; of all comparisons {count_statuses_as_text(self.findings)}{cause}{unseen}"


def _error_over_tolerance(finding: LawFinding) -> float:
    # failures without an error come first, findings that were not compared last
    if finding.relative is None or finding.tolerance is None:
        return float("inf") if finding.status == FAILED else -1.0
    share = finding.relative / finding.tolerance if finding.tolerance else finding.relative
    return share if share == share else float("inf")


def verify(
    subject: Any,
    inputs: Sequence[Any] | None = None,
    *,
    irreps_in: Any = None,
    irreps_out: Any = None,
    only: str | Iterable[str] | None = None,
    without: str | Iterable[str] = (),
    rows: int = 8,
    backend: str = "aot_eager",
    progress: ProgressOption = None,
) -> Verification:
    """Check whether a module obeys laws, as of equivariance, on its device and in its dtype.

    Parameters
    ----------
    subject
        a product, convolution, linear layer, polynomial or symmetric contraction, a plan, or any network.
    inputs
        arguments of a network's call, as a tuple.
    irreps_in, irreps_out
        how a network's floating inputs and results rotate, as a list or a mapping from names: irreps,
        ``cartesian_points`` (which translations move), ``cartesian_vectors``, ``cartesian_tensors`` or None.  Known
        names, such as ``positions`` and ``forces``, need no entry.  A network without rotating tensors has not passed,
        unless ``only`` names other laws.
    only
        names of `LAWS`, or "stock"; default: all.  Named laws must be compared to pass.
    without
        laws to leave out, such as "compiled", the slowest.
    rows
        number of random rows, for modules of tpgen.
    backend
        backend of `torch.compile`.
    progress
        True for a bar, or a function of each law's name.

    Raises `InputError` for unsuitable arguments.  A broken law is a failed finding.  A report without comparisons has
    not passed.

    >>> from tpgen.nn.tensor_product import TensorProduct
    >>> product = TensorProduct("4x1o", "1o", "4x1e", [(0, 0, 0, "uvu", True)], strategy="einsum")
    >>> report = verify(product, only=["definition", "equivariant", "third order"])
    >>> report.passed, report.finding("equivariant", "parity").status
    (True, 'passed')
    """
    chosen = _choose_law_names(only, without)
    made = _build_tested_module(subject, inputs, irreps_in, irreps_out, rows, backend)
    tolerance_of(made.dtype)  # or nothing could be judged
    start = time.perf_counter()
    findings = _run_laws(chosen, made, inputs or (), progress)
    # laws without which nothing has passed
    asked: tuple[str, ...] = ("equivariant",) * made.undeclared + ("forces",) * bool(
        made.unsaid or (made.inexact and made.forces)
    )
    if only is not None:
        why, asked = f"no law of a {made.kind} like this one", tuple(chosen)
        findings += [
            LawFinding(name, "", NOT_COMPARED, why=why) for name in chosen if not _is_law_applicable(name, made)
        ]
    took, dtype = time.perf_counter() - start, str(made.dtype).removeprefix("torch.")
    where, mode = str(made.device), "training" if made.module.training else "evaluation"
    return Verification(made.kind, made.title, made.settings, dtype, where, took, tuple(findings), mode, asked)


def _choose_law_names(only: str | Iterable[str] | None, without: str | Iterable[str]) -> list[str]:
    chosen, left_out = ([n] if isinstance(n, str) else list(n) for n in (LAW_NAMES if only is None else only, without))
    check_known("law", [*chosen, *left_out], LAW_NAMES, InputError)
    return [name for name in chosen if name not in left_out]


def _is_law_applicable(law_name: str, subject: ModuleUnderTest) -> Any:
    if law_name == STOCK:
        return is_network(subject) and bool(conversion_report(subject.module).replaced)
    return LAWS[law_name].applies(subject)


def _build_tested_module(
    module_or_plan: Any, inputs: Any, irreps_in: Any, irreps_out: Any, row_count: int, backend: str
) -> ModuleUnderTest:
    if row_count < 1:
        raise InputError(f"rows: a verification needs one row at least, got {row_count}")
    check_known("backend", [backend], [name for name in BACKENDS if name not in ("eager", "script")], InputError)
    check_backend(Config(backend=backend))
    if isinstance(module_or_plan, Plan):
        module_or_plan = build_module(module_or_plan, **list_size_keywords(module_or_plan))
    if not isinstance(module_or_plan, nn.Module):
        raise InputError(
            f"give a torch.nn.Module or a plan, got {a_kind(module_or_plan)}: a function goes into the forward of one"
        )
    made = build_tested_tpgen_module(module_or_plan, row_count)
    if made is None:
        if inputs is None:
            raise InputError(
                f"{type(module_or_plan).__name__} is no module of tpgen's: give the arguments of a call, as in "
                "verify(network, (x,))"
            )
        made = build_tested_network(module_or_plan, inputs, irreps_in, irreps_out)
    elif (inputs, irreps_in, irreps_out) != (None, None, None):
        raise InputError(f"inputs and irreps are for networks: a {made.kind} brings its own")
    return replace(made, backend=backend)


@bypassing_programs()
def _run_laws(
    law_names: Sequence[str], subject: ModuleUnderTest, network_inputs: Sequence[Any], progress: ProgressOption
) -> list[LawFinding]:
    findings: list[LawFinding] = []
    there = [name for name in law_names if _is_law_applicable(name, subject)]
    with step_reporter(progress, len(there)) as begin:
        for name in there:
            begin(name)
            findings += (
                _compare_with_unconverted_network(subject, network_inputs)
                if name == STOCK
                else _compare_and_judge_law(name, LAWS[name], subject)
            )
    return findings


def _compare_and_judge_law(
    law_name: str, law: Law, subject: ModuleUnderTest, norms_by_formula: bool = False
) -> list[LawFinding]:
    # an error that the module raises breaks this law alone
    tolerance = law.slack * subject.slack * tolerance_of(subject.dtype) if law.limit is None else law.limit
    if law_name in BY_DIFFERENCES and subject.reference is None:
        tolerance = DERIVATIVE_LIMIT
    by_nets = law_name in OF_NETS and has_splined_nets(subject.module)
    if law.slopes:  # differences see that slopes of splines have corners
        tolerance = max(tolerance, find_largest_spline_error(subject.module))
    if why := law.lacks(subject):
        return [LawFinding(law_name, "", NOT_COMPARED, why=why)]
    if why := _reason_to_compare_in_evaluation(law_name, subject):
        try:
            calm = subject.with_copy_in_evaluation_mode()
        except Exception as error:  # as of a network that cannot be copied
            return [LawFinding(law_name, "", NOT_COMPARED, why=str(error))]
        return [replace(f, why=f.why or why) for f in _compare_and_judge_law(law_name, law, calm)]
    try:
        with disable_splines(subject.module) if by_nets else nullcontext():
            outcomes: Mapping[str, Any] = law.compare(_copy_module_as_is_in_float64(subject) if by_nets else subject)
    except Exception as error:
        outcomes = {"": FREED if is_freed_graph_error(error) else error}
    floors = {part: _allowed_absolute_rounding_error(law, part, subject) if tolerance else 0.0 for part in outcomes}
    found = [judge_comparison(law_name, part, outcome, tolerance, floors[part]) for part, outcome in outcomes.items()]
    if law_name == "equivariant" and subject.dtype == torch.float64:
        found = [
            replace(f, why="; ".join(filter(None, (COUPLINGS, f.why))))
            if f.status == FAILED and _is_float32_rounding(f)
            else f
            for f in found
        ]
    if not any(f.status == FAILED for f in found):
        return [replace(f, why=f.why or WITHOUT_SPLINES) for f in found] if by_nets else found
    if law_name in BY_PLACE and is_random(subject):
        return [LawFinding(law_name, "", NOT_COMPARED, why=ELSEWHERE)]
    if law_name in OF_HIGHER_ORDER and not norms_by_formula and is_network(subject):
        with replace_norms_by_formulas():
            again = _compare_and_judge_law(law_name, law, subject, norms_by_formula=True)
        return found if any(f.status == FAILED for f in again) else [replace(f, why=OF_TORCH) for f in again]
    return [replace(f, why=f.why or WITHOUT_SPLINES) for f in found] if by_nets else found


def _reason_to_compare_in_evaluation(law_name: str, subject: ModuleUnderTest) -> str:
    if law_name in BY_PLACE and is_random_in_training_alone(subject):
        return IN_EVALUATION
    if law_name == "batch" and subject.module.training and has_running_statistics(subject.module):
        return OF_STATISTICS
    return ""


def _is_float32_rounding(finding: LawFinding) -> bool:
    return finding.relative is not None and finding.relative < torch.finfo(torch.float32).eps * 10


def _copy_module_as_is_in_float64(subject: ModuleUnderTest) -> ModuleUnderTest:
    return replace(subject, exact=lambda: copy_in_float64(subject.module))


def _allowed_absolute_rounding_error(law: Law, part_name: str, subject: ModuleUnderTest) -> float:
    if not law.floored:
        return ROUNDING
    if law.slopes:
        return max(ROUNDING, subject.floors.get(SLOPE, 0.0))
    exact = 1.0 if law.limit is None else torch.finfo(torch.float64).eps / torch.finfo(subject.dtype).eps
    return max(ROUNDING, exact * subject.floors.get(part_name.rpartition(", ")[2], 0.0))


def _compare_with_unconverted_network(subject: ModuleUnderTest, network_inputs: Sequence[Any]) -> list[LawFinding]:
    proof = conversion_report(subject.module, prove=copy_tensors_in_arguments(network_inputs)).proof
    assert proof is not None
    found, how = [], WITHOUT_SPLINES if has_splined_nets(subject.module) else ""
    for d in proof.differences:
        status, why = (PASSED, how) if d.relative <= PROVEN else (FAILED, d.where)
        found.append(LawFinding(STOCK, d.what, status, d.absolute, d.relative, PROVEN, why))
    return found
