"""Check and measure the kernels of this machine's GPU, in less than eight minutes: `make gpu`.

It needs nothing but tpgen and torch with CUDA.  Of several GPUs it takes the first; CUDA_VISIBLE_DEVICES chooses
another.  Send the JSON that it writes: everything else is in there.  With `--device cpu` it does what can be done
without a GPU, which tests the script.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import click
import torch
from rich.console import Console

from benchmarks import article
from benchmarks.gpu_checks import CHECKS, ON_A_GPU, Finding
from benchmarks.gpu_compile import ARCHITECTURES, compile_rows, compile_table
from benchmarks.gpu_times import TASKS, Case, Clock, Row, copy_bandwidth, measured, shares_figure, times_table
from tpgen.benchmarking.contenders import select_contenders
from tpgen.benchmarking.environment import environment
from tpgen.benchmarking.plots import plot_report
from tpgen.benchmarking.records import merge_reports
from tpgen.benchmarking.run import run_benchmarks, select_problems
from tpgen.inspection.figures import save_figure
from tpgen.kernels.cuda.driver import capability, cuda_taken
from tpgen.kernels.cuda.nvrtc import find_nvrtc
from tpgen.kernels.operators.ops import kernel_supported
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import PROBLEMS

MINUTES = 7.5
FOR_MEASUREMENTS = 0.4  # of the time
GOALS = {"products": 0.80, "convolutions": 0.60}  # of a copy's bandwidth, to reach on channelwise problems
RIVALS = ("e3nn/script", "cuequivariance/*", "openequivariance/*", "tpgen-auto/eager")
LAYOUTS = ("mul_ir", "ir_mul")


@dataclass
class Report:
    """What was found, as it is written down."""

    device: str
    machine: Row = field(default_factory=dict)
    checks: list[Row] = field(default_factory=list)
    times: list[Row] = field(default_factory=list)
    rivals: list[Row] = field(default_factory=list)
    article: list[Row] = field(default_factory=list)
    compiled: list[Row] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # where something of this script failed, in full
    left_out: list[str] = field(default_factory=list)

    def check(self, what: str, passed: bool, note: str = "") -> None:
        self.checks.append({"what": what, "passed": passed, "note": note})
        click.echo(f"{'ok  ' if passed else 'FAIL'} {what}{': ' if note else ''}{note}")

    def leave_out(self, what: str, why: str) -> None:
        self.left_out.append(f"{what}: {why}")
        click.echo(f"left out {what}: {why}")

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def passed(self) -> bool:
        return all(check["passed"] for check in self.checks)


@dataclass(frozen=True)
class Wanted:
    """What a run is to do."""

    problems: tuple[str, ...]
    rows: tuple[int, ...]
    seconds: float
    calls: int
    folder: Path


@click.command(help=__doc__)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--rows", multiple=True, type=int, default=(40000, 2000), show_default=True, help="Rows to measure at.")
@click.option("--seconds", default=0.15, show_default=True, help="Measuring time of one task.")
@click.option("--calls", default=300, show_default=True, help="Timed calls of the article's table.")
@click.option("--minutes", default=MINUTES, show_default=True, help="What does not fit into these is left out.")
@click.option("--json", "json_to", type=click.Path(path_type=Path), default=Path("out/gpu.json"), show_default=True)
@click.option("--only", "names", multiple=True, help="Measure this problem only; may be repeated.")
def main(
    device: str,
    rows: tuple[int, ...],
    seconds: float,
    calls: int,
    minutes: float,
    json_to: Path,
    names: tuple[str, ...],
) -> None:
    report, clock = Report(device), Clock(60 * minutes)
    if device == "cuda" and (reason := kernel_supported(channelwise("32x0e", "0e", "0e"), device=device)):
        raise click.ClickException(f"no kernel can run here: {reason}")
    channelwise_ones = tuple(name for name, problem in PROBLEMS.items() if problem.suite == "channelwise")
    wanted = Wanted(names or (*channelwise_ones, "diffdock-l1", "article"), rows, seconds, calls, json_to.parent)
    json_to.parent.mkdir(parents=True, exist_ok=True)
    for number, (name, step) in enumerate(STEPS.items(), 1):
        click.echo(f"-- {number} of {len(STEPS)}: {name}; {clock.left:.0f} s left")
        if clock.left:
            guarded(report, name, partial(step, report, wanted, clock))
        else:
            report.leave_out(name, "time is up")
        if report.on_gpu and (reason := dead()):
            report.leave_out("what comes after", f"this process has lost the GPU: {reason}")
        json_to.write_text(json.dumps(asdict(report), indent=1) + "\n")
        if report.on_gpu and dead():
            break
    click.echo(summary(report))
    click.echo(f"written to {json_to.resolve()}, after {clock.spent:.0f} s: send that file")
    if not report.passed:
        raise click.ClickException("some check failed: the file says which, and why")


def summary(report: Report) -> str:
    """What a reader wants to know first: what failed, what was left out, and the shares that were reached."""
    failed = [check["what"] for check in report.checks if not check["passed"]]
    lines = [f"-- {len(report.checks) - len(failed)} of {len(report.checks)} checks passed"]
    lines += [f"   failed: {what}" for what in failed]
    if report.left_out:
        lines.append(f"-- left out: {len(report.left_out)}, from {report.left_out[0]}")
    for kind, goal in GOALS.items():
        shares = [row["share of copy"] for row in report.times if "share of copy" in row and _kind(row) == kind]
        if shares:
            enough = sum(share >= goal for share in shares)
            lines.append(f"-- {enough} of {len(shares)} {kind} reach {goal:.0%} of a copy's bandwidth")
    return "\n".join(lines)


def _kind(row: Row) -> str:
    return "convolutions" if row["task"].startswith("conv") else "products"


def guarded(report: Report, name: str, step: Callable[[], object]) -> None:
    """One step; what goes wrong is written down, and the others go on."""
    try:
        step()
    except Exception as error:
        report.faults.append(traceback.format_exc())
        report.check(name, False, f"{type(error).__name__}: {error}")


def machine(report: Report, wanted: Wanted, clock: Clock) -> None:
    """What the figures are of, the bandwidth of a copy among it."""
    nvrtc = find_nvrtc(cuda=cuda_taken())
    report.machine = {
        **asdict(environment()),
        "cuda of torch": torch.version.cuda,
        "cuda of the driver": cuda_taken(),
        "nvrtc": nvrtc and ".".join(map(str, nvrtc.version)),
    }
    if report.on_gpu:
        here = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(here)
        report.machine |= {"gpu": properties.name, "capability": capability(here), "memory": properties.total_memory}
    report.machine["copy bytes per second"] = copy_bandwidth(report.device)
    click.echo(json.dumps(report.machine, indent=1))


def checks(report: Report, wanted: Wanted, clock: Clock) -> None:
    """All checks; each may fail by itself.  They leave time for the measurements."""
    for name, check in CHECKS.items():
        if clock.left <= clock.seconds * FOR_MEASUREMENTS:
            report.leave_out(name, "time is up")
            continue
        if name in ON_A_GPU and not report.on_gpu:
            report.leave_out(name, "needs a GPU")
            continue
        guarded(report, name, partial(_run_check, report, clock, name, check))
        if report.on_gpu and (reason := dead()):
            report.leave_out("what comes after", f"this process has lost the GPU: {reason}")
            return


def _run_check(report: Report, clock: Clock, name: str, check: Callable[[str], Iterator[Finding]]) -> None:
    for what, passed, note in check(report.device):
        report.check(what, passed, note)
        if clock.left <= clock.seconds * FOR_MEASUREMENTS:
            report.leave_out(f"{name} after {what}", "time is up")
            return


def dead() -> str | None:
    """Why the GPU answers no more, as after an illegal access; None where it does."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def times(report: Report, wanted: Wanted, clock: Clock) -> None:
    """The named problems, as long as there is time for those that follow."""
    for rows in wanted.rows:
        for name in wanted.problems:
            for layout in LAYOUTS:
                _measure_case(report, wanted, clock, Case(name, rows, layout, report.device))
    click.echo(times_table(report.times))
    picture(
        report, "gpu-shares.png", lambda: save_figure(shares_figure(report.times), wanted.folder / "gpu-shares.png")
    )


def picture(report: Report, name: str, draw: Callable[[], object]) -> None:
    """Pictures are the one thing that needs matplotlib; without it the figures are in the JSON."""
    if find_spec("matplotlib"):
        draw()
    else:
        report.leave_out(name, "needs matplotlib (pip install matplotlib)")


def _measure_case(report: Report, wanted: Wanted, clock: Clock, case: Case) -> None:
    """All tasks of a problem, each by itself: compiling one may take seconds."""
    if clock.left < clock.seconds / 3:
        report.leave_out(str(case), "time is up")
        return
    click.echo(f"   {case}; {clock.left:.0f} s left")
    for task in TASKS:
        if clock.left < clock.seconds / 3:
            report.leave_out(f"{task} of {case}", "time is up")
        else:
            guarded(report, f"{task} of {case}", partial(_measure, report, wanted, case, task))


def _measure(report: Report, wanted: Wanted, case: Case, task: str) -> None:
    report.times.append(measured(case, task, report.device, wanted.seconds, report.machine))


def rivals(report: Report, wanted: Wanted, clock: Clock) -> None:
    """e3nn, cuEquivariance and OpenEquivariance where they are installed: forward, backward and a force step."""
    contenders = select_contenders(RIVALS)
    found = []
    for name in wanted.problems:
        if clock.left < clock.seconds / 8:
            report.leave_out(f"{name} beside others", "time is up")
            continue
        made = run_benchmarks(
            select_problems([name]), contenders, device=report.device, seconds=wanted.seconds * 4, rows=wanted.rows[0]
        )
        found.append(made)
        report.rivals += [asdict(record) for record in made.records]
        Console().print(made.table())
    for made in merge_reports(found):
        picture(report, "gpu-rivals.png", partial(plot_report, made, wanted.folder / "gpu-rivals.png"))


def articles(report: Report, wanted: Wanted, clock: Clock) -> None:
    """The comparison that tpgen grew out of, with its GPU columns; torch.compile takes a minute for its own."""
    compiled = clock.left > clock.seconds / 4
    if not compiled:
        report.leave_out("the article's columns with torch.compile", "time is up")
    columns = [column for column in article.COLUMNS if compiled or not column.backend]
    found = article.measure("forward", wanted.calls, progress=False, columns=columns)
    report.article = [asdict(record) for made in found.values() for record in made.records]
    click.echo(article.table(found, "forward", wanted.calls).markdown())
    picture(report, "gpu-article.png", partial(article.plot, found, "forward", wanted.folder / "gpu-article.png"))


def compiling(report: Report, wanted: Wanted, clock: Clock) -> None:
    """How long NVRTC takes for each kernel, in seconds of a processor: for this GPU, without one for two others."""
    if find_nvrtc() is None:
        report.leave_out("how long it compiles", "needs NVRTC")
        return
    for name, arch in product(wanted.problems, [report.machine["capability"]] if report.on_gpu else ARCHITECTURES):
        if not clock.left:
            report.leave_out(f"compiling {name} for sm_{arch}", "time is up")
            continue
        report.compiled.extend(compile_rows(name, arch))
    click.echo(compile_table(report.compiled))


STEPS: dict[str, Callable[[Report, Wanted, Clock], None]] = {
    "this machine": machine,
    "is it right": checks,
    "how fast is it": times,
    "beside others": rivals,
    "the article": articles,
    "how long it compiles": compiling,
}


if __name__ == "__main__":
    main()
