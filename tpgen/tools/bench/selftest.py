"""Self-test for bug reports."""

from __future__ import annotations

import json
import platform
import time
import warnings
from dataclasses import asdict, dataclass

import torch

from tpgen.base.errors import TpgenError
from tpgen.base.notebook import Shown, div_lines
from tpgen.base.progress import ProgressOption, step_reporter
from tpgen.base.text import duration, table
from tpgen.kernels.build.build import cache_info
from tpgen.kernels.build.compiler import find_compiler, list_compilers, why_no_compiler
from tpgen.kernels.build.processor import cpu_features, instruction_set
from tpgen.nn.modules import build_module, list_size_keywords
from tpgen.planner.problems import LINEARS, POLYNOMIALS, PROBLEMS
from tpgen.tools.bench.contenders import select_contenders
from tpgen.tools.bench.records import Environment, read_environment
from tpgen.tools.bench.run import run_benchmarks, select_problems
from tpgen.tools.verification.findings import FAILED
from tpgen.tools.verification.verify import verify

# products with vectors over rows and over channels, linear layers and polynomials; the last are in float64
CHECKED = {
    "mace-medium": torch.float32,
    "nequip-aspirin": torch.float32,
    "nequip-lips": torch.float32,
    "diffdock-l1": torch.float32,
    "elementwise": torch.float32,
    "mace-readout": torch.float32,
    "nequip-linear": torch.float32,
    "harmonics": torch.float32,
    "small-contraction": torch.float64,
    "article": torch.float64,
}
CHECKED_LAWS = ("definition", "first order", "second order", "threads")
TIMED = "mace-medium"
_SECONDS = 2.0


@dataclass(frozen=True)
class _CheckResult:
    name: str
    dtype: str
    passed: bool
    error: float | None
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class ProductTiming:
    """Seconds of e3nn and tpgen, forward and backward, on one thread."""

    name: str
    rows: int
    e3nn: float | None
    tpgen: float | None


@dataclass(frozen=True)
class Selftest(Shown):
    """Result of `selftest`: machine, checks and timing."""

    environment: Environment
    libc: str
    features: str
    vectors: str
    compiler: str  # that kernels are compiled with, or why there is none
    runtime: str  # of OpenMP
    found: tuple[str, ...]  # all compilers
    cache: str
    checks: tuple[_CheckResult, ...]
    timing: ProductTiming
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every product obeys its laws."""
        return all(check.passed for check in self.checks)

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps({**asdict(self), "passed": self.passed}, allow_nan=False)

    def __str__(self) -> str:
        heads = ("product", "dtype", "result", "error / tolerance", "time", "why")
        rows = [
            (
                c.name,
                c.dtype,
                "passed" if c.passed else "failed",
                _error_over_tolerance_text(c.error),
                duration(c.seconds),
                c.why,
            )
            for c in self.checks
        ]
        return "\n".join([table(self._list_machine_facts()), "", table([heads, *rows]), "", *self._summary_lines()])

    def _repr_html_(self) -> str:
        return div_lines(*str(self).splitlines())

    def _list_machine_facts(self) -> list[tuple[str, str]]:
        at = self.environment
        return [
            ("versions", f"tpgen {at.tpgen}, torch {at.torch}, e3nn {at.e3nn}, Python {at.python}"),
            ("system", f"{at.system}, {self.libc}"),
            ("processor", f"{at.cpu}, {at.cores} cores, {at.threads} threads"),
            ("vectors", self.vectors),
            ("GPU", at.gpu or "none"),
            ("compiler", self.compiler),
            ("compilers found", "; ".join(self.found) or "none"),
            ("OpenMP", self.runtime or "none: kernels run on one thread"),
            ("cache", self.cache),
        ]

    def _summary_lines(self) -> list[str]:
        t = self.timing
        times = f"{TIMED}, {t.rows} rows, forward and backward: e3nn {duration(t.e3nn)}, tpgen {duration(t.tpgen)}"
        ratio = f", {t.e3nn / t.tpgen:.1f} times" if t.e3nn and t.tpgen else ""
        right = sum(check.passed for check in self.checks)
        return [times + ratio, f"{right} of {len(self.checks)} products are right; {self.seconds:.0f} s"]


def _error_over_tolerance_text(error: float | None) -> str:
    return "-" if error is None else f"{error:.2g}"


def selftest(progress: ProgressOption = None) -> Selftest:
    """Check ten products, layers and polynomials by laws, and time one beside e3nn.

    Compilation of kernels takes a minute.
    """
    start = time.perf_counter()
    with step_reporter(progress, len(CHECKED) + 1) as begin:
        checks = []
        for name, dtype in CHECKED.items():
            begin(name)
            checks.append(_verify_problem_by_name(name, dtype))
        begin("timing")
        timing = _time_product_beside_e3nn()
    by, at = find_compiler(), instruction_set()
    return Selftest(
        read_environment(),
        " ".join(filter(None, platform.libc_ver())) or platform.version(),
        cpu_features(),
        f"{at.name}: {at.registers} registers of {at.size} bytes",
        f"{by}, {by.version}" if by else why_no_compiler(),
        by.runtime if by else "",
        tuple(f"{program}: {version}" for program, version in list_compilers()),
        str(cache_info()),
        tuple(checks),
        timing,
        time.perf_counter() - start,
    )


def _verify_problem_by_name(name: str, dtype: torch.dtype) -> _CheckResult:
    problem = {**PROBLEMS, **LINEARS, **POLYNOMIALS}[name]
    sizes = list_size_keywords(problem.plan, min(problem.channels, 3), min(problem.elements, 2))
    strategy = "kernel" if find_compiler() else "auto"
    start, named = time.perf_counter(), str(dtype).removeprefix("torch.")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = verify(build_module(problem.plan, **sizes, strategy=strategy).to(dtype), rows=4, only=CHECKED_LAWS)
        except TpgenError as error:
            return _CheckResult(name, named, False, None, time.perf_counter() - start, str(error))
    broken = [f"{f.law}: {f.why or f.status}" for f in found.findings if f.status == FAILED]
    told_by_us = [str(w.message) for w in said if issubclass(w.category, UserWarning)]  # as of a kernel that failed
    errors = [f.relative / f.tolerance for f in found.findings if f.relative is not None and f.tolerance]
    largest = max(errors, default=None)
    finite = largest if largest is not None and largest < float("inf") else None
    return _CheckResult(
        name, named, found.passed, finite, time.perf_counter() - start, "; ".join([*broken, *told_by_us])
    )


def _time_product_beside_e3nn() -> ProductTiming:
    (problem,) = select_problems([TIMED])
    contenders = select_contenders(["e3nn/eager", "e3nn/script", "tpgen-auto/eager"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each is in the records
        report = run_benchmarks([problem], contenders, ["backward"], seconds=_SECONDS)
    medians = {record.contender: record.median for record in report.records}
    stock = [median for name, median in medians.items() if name.startswith("e3nn") and median]
    return ProductTiming(TIMED, report.records[0].rows, min(stock, default=None), medians.get("tpgen-auto/eager"))
