"""Check and measure the kernels of this machine's GPU, in less than eight minutes: `make gpu`.

It needs nothing but tpgen and torch with CUDA.  Of several GPUs it takes the first; CUDA_VISIBLE_DEVICES chooses
another.  Send the JSON that it writes, also where it stops before its end: everything else is in there.  With
`--device cpu` it does what can be done without a GPU, which tests the script.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from threading import Timer

import click
import torch
from rich.console import Console

from benchmarks import article, gpu_checks, gpu_device_checks
from benchmarks.gpu_build import FORCES, Wanted, build_all, wanted_of
from benchmarks.gpu_checks import Finding
from benchmarks.gpu_clock import Clock, copy_bandwidth, launch_seconds, seconds_of
from benchmarks.gpu_compile import ARCHITECTURES, compile_rows, compile_table
from benchmarks.gpu_device_checks import product_of
from benchmarks.gpu_goals import ROWS, goals
from benchmarks.gpu_report import ATOMS, Report, Run, guarded
from benchmarks.gpu_rivals import rival_rows
from benchmarks.gpu_steps import convolutions, networks, polynomials, tools
from benchmarks.gpu_times import TASKS, Case, measured, product_of_rows, times_table
from benchmarks.page import merge_reports
from tpgen.kernels.cuda.driver import capability, driver_cuda_version
from tpgen.kernels.cuda.nvrtc import find_nvrtc
from tpgen.kernels.runtime.ops import why_kernel_unsupported
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import PROBLEMS
from tpgen.tools.bench.records import Record, Settings, read_environment
from tpgen.tools.bench.records import Report as Records
from tpgen.tools.bench.run import select_problems
from tpgen.tools.bench.tables import ReportTables, plot_report

MINUTES = 7.5
_GRACE = 25  # seconds behind these, after which something hangs
LAYOUTS = ("mul_ir", "ir_mul")
CHECKS = gpu_checks.CHECKS | gpu_device_checks.CHECKS


@click.command(help=__doc__)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--rows", multiple=True, type=int, default=(ROWS, 2000), show_default=True, help="Rows to measure at.")
@click.option("--seconds", default=0.15, show_default=True, help="Measuring time of one task.")
@click.option("--calls", default=300, show_default=True, help="Timed calls of the article's table.")
@click.option("--atoms", default=ATOMS, show_default=True, help="Atoms of whole networks.")
@click.option("--minutes", default=MINUTES, show_default=True, help="What does not fit into these is left out.")
@click.option("--json", "json_to", type=click.Path(path_type=Path), default=Path("out/gpu.json"), show_default=True)
@click.option("--only", "names", multiple=True, help="Measure this problem only; may be repeated.")
def main(
    device: str,
    rows: tuple[int, ...],
    seconds: float,
    calls: int,
    atoms: int,
    minutes: float,
    json_to: Path,
    names: tuple[str, ...],
) -> None:
    report, clock = Report(device, file=json_to), Clock(60 * minutes)
    if device == "cuda" and (reason := why_kernel_unsupported(channelwise("32x0e", "0e", "0e"), device=device)):
        raise click.ClickException(f"no kernel can run here: {reason}")
    channelwise_ones = tuple(name for name, problem in PROBLEMS.items() if problem.suite == "channelwise")
    run = Run(names or (*channelwise_ones, "diffdock-l1", "article"), rows, seconds, calls, json_to.parent, atoms)
    json_to.parent.mkdir(parents=True, exist_ok=True)
    click.echo(f"all that is found goes to {json_to.resolve()}: send that file, also where this stops before its end")
    watch = Timer(60 * minutes + _GRACE, partial(hangs, report))
    watch.daemon = True
    if report.on_gpu:
        watch.start()
    try:
        _all_steps(report, run, clock)
        guarded(report, "summary", lambda: click.echo(summary(report)))
    finally:
        watch.cancel()
        report.save()
    click.echo(f"written to {json_to.resolve()}, after {clock.spent:.0f} s: send that file")
    if not report.passed:
        raise click.ClickException("some check failed: the file says which, and why")


def _all_steps(report: Report, run: Run, clock: Clock) -> None:
    for number, (name, (share, step)) in enumerate(STEPS.items(), 1):
        click.echo(f"-- {number} of {len(STEPS)}: {name}; {clock.left:.0f} s left")
        if clock.left:
            guarded(report, name, partial(step, report, run, clock.until(share)))
        else:
            report.leave_out(name, "time is up")
        if report.on_gpu and (reason := dead()):
            report.leave_out("what comes after", f"this process has lost the GPU: {reason}")
        report.save()
        if report.on_gpu and dead():
            break


def hangs(report: Report) -> None:
    """End a process that waits for what never comes, as a kernel that hangs; nothing else would."""
    report.check(f"{report.doing} ends", False, "it did not: a kernel hangs, or it takes longer than all may take")
    if report.file:
        click.echo(f"written to {report.file.resolve()}: send that file")
    os._exit(1)


def summary(report: Report) -> str:
    """What a reader wants to know first: what failed, what was left out, and which goals are reached."""
    failed = [check["what"] for check in report.checks if not check["passed"]]
    lines = [f"-- {len(report.checks) - len(failed)} of {len(report.checks)} checks passed"]
    lines += [f"   failed: {what}" for what in failed]
    if report.left_out:
        lines.append(f"-- left out: {len(report.left_out)}, from {report.left_out[0]}")
    found = goals(report.times, report.rivals, report.launch)
    report.goals = [asdict(goal) for goal in found]
    return "\n".join([*lines, *(f"-- {goal}" for goal in found)])


def machine(report: Report, run: Run, clock: Clock) -> None:
    """What the figures are of, the bandwidth of a copy among it."""
    nvrtc = find_nvrtc(cuda=driver_cuda_version())
    report.machine = {
        **asdict(read_environment()),
        "cuda of torch": torch.version.cuda,
        "cuda of the driver": driver_cuda_version(),
        "nvrtc": nvrtc and ".".join(map(str, nvrtc.version)),
    }
    if report.on_gpu:
        here = torch.cuda.current_device()
        properties = torch.cuda.get_device_properties(here)
        report.machine |= {"gpu": properties.name, "capability": capability(here), "memory": properties.total_memory}
    report.machine["copy bytes per second"] = copy_bandwidth(report.device)
    click.echo(json.dumps(report.machine, indent=1))


def building(report: Report, run: Run, clock: Clock) -> None:
    """Compile the kernels of the measurements, then of the checks: one after the other that would take minutes."""
    if not report.on_gpu:
        report.leave_out("compiling kernels before", "needs a GPU")
        return
    kernels = [*_measured_kernels(run), *gpu_checks.kernels_to_build()]
    ready = build_all(kernels, report.machine["capability"], clock.left)
    click.echo(f"   {ready} of {len(kernels)} kernels ready")


def _measured_kernels(run: Run) -> Iterator[Wanted]:
    for name, layout, indexed in product(run.problems, LAYOUTS, (False, True)):
        yield from wanted_of(PROBLEMS[name].plan, layout, torch.float32, FORCES, indexed)


def checks(report: Report, run: Run, clock: Clock) -> None:
    """All checks; each may fail by itself.  They leave time for the measurements."""
    for name, check in CHECKS.items():
        if not clock.left:
            report.leave_out(name, "time is up")
            continue
        if name in gpu_device_checks.CHECKS and not report.on_gpu:
            report.leave_out(name, "needs a GPU")
            continue
        guarded(report, name, partial(_run_check, report, clock, name, check))
        if report.on_gpu and (reason := dead()):
            report.leave_out("what comes after", f"this process has lost the GPU: {reason}")
            return


def _run_check(report: Report, clock: Clock, name: str, check: Callable[[str], Iterator[Finding]]) -> None:
    for what, passed, note in check(report.device):
        report.doing = f"{name}, what comes after {what},"
        report.check(what, passed, note)
        if not clock.left:
            report.leave_out(f"{name} after {what}", "time is up")
            return


def dead() -> str | None:
    """Why the GPU answers no more, as after an illegal access; None where it does."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def times(report: Report, run: Run, clock: Clock) -> None:
    """What a launch costs, and the named problems, as long as there is time."""
    if report.on_gpu:
        guarded(report, "launch", partial(launching, report))
    for rows in run.rows:
        for name in run.problems:
            for layout in LAYOUTS:
                _measure_case(report, run, clock, Case(name, rows, layout, report.device))
    click.echo(times_table(report.times))


def launching(report: Report) -> None:
    """A product of one row: in a CUDA graph, beside a kernel that does nothing, and from Python."""
    given, text = product_of("mace-medium", 1, report.device)
    call = partial(product_of_rows, *given, description=text)
    mine, empty = launch_seconds(call)
    report.launch = {"call": mine, "empty kernel": empty, "eager": seconds_of(call, report.device, 0.3)}


def picture(report: Report, name: str, draw: Callable[[], object]) -> None:
    """Pictures are the one thing that needs matplotlib; without it the figures are in the JSON."""
    if find_spec("matplotlib"):
        draw()
    else:
        report.leave_out(name, "needs matplotlib (pip install matplotlib)")


def _measure_case(report: Report, run: Run, clock: Clock, case: Case) -> None:
    """All tasks of a problem, each by itself: compiling one may take seconds."""
    if not clock.left:
        report.leave_out(str(case), "time is up")
        return
    click.echo(f"   {case}; {clock.left:.0f} s left")
    for task in TASKS:
        if not clock.left:
            report.leave_out(f"{task} of {case}", "time is up")
        else:
            guarded(report, f"{task} of {case}", partial(_measure, report, run, case, task))


def _measure(report: Report, run: Run, case: Case, task: str) -> None:
    report.times.append(measured(case, task, report.device, run.seconds, report.machine))
    report.save()


def rivals(report: Report, run: Run, clock: Clock) -> None:
    """e3nn, cuEquivariance and OpenEquivariance where they are installed: forward, backward and a force step."""
    records: list[Record] = []
    for name in run.problems:
        if not clock.left:
            report.leave_out(f"{name} beside others", "time is up")
            continue
        (problem,) = select_problems([name])
        for record, more in rival_rows(problem, run.rows[0], report.device, run.seconds, clock):
            records.append(record)
            report.rivals.append(asdict(record) | more)
            report.save()
    made = Records(read_environment(), Settings("float32", report.device, run.seconds), tuple(records))
    Console().print(ReportTables(made))
    picture(report, "gpu-rivals.png", partial(plot_report, made, run.folder / "gpu-rivals.png"))


def articles(report: Report, run: Run, clock: Clock) -> None:
    """The comparison that tpgen grew out of, its GPU columns first; torch.compile takes up to a minute for a column."""
    found: dict[str, list[Records]] = {}
    for column in sorted(article.COLUMNS, key=lambda column: (bool(column.backend), column.device == "cpu")):
        if not clock.left:
            report.leave_out(f"the article's column {column.title}", "time is up")
            continue
        for device, made in article.measure("forward", run.calls, progress=False, columns=[column]).items():
            found.setdefault(device, []).append(made)
    whole = {device: merge_reports(made)[0] for device, made in found.items()}
    report.article = [asdict(record) for made in whole.values() for record in made.records]
    click.echo(article.table(whole, "forward", run.calls).write_markdown())
    picture(report, "gpu-article.png", partial(article.plot, whole, "forward", run.folder / "gpu-article.png"))


def compiling(report: Report, run: Run, clock: Clock) -> None:
    """How long NVRTC takes for each kernel, in seconds of a processor: for this GPU, without one for two others."""
    if find_nvrtc() is None:
        report.leave_out("how long it compiles", "needs NVRTC")
        return
    for name, arch in product(run.problems, [report.machine["capability"]] if report.on_gpu else ARCHITECTURES):
        if not clock.left:
            report.leave_out(f"compiling {name} for sm_{arch}", "time is up")
            continue
        report.compiled.extend(compile_rows(name, arch))
    click.echo(compile_table(report.compiled))


# What each step does, and the share of the time after which it leaves out the rest.
STEPS: dict[str, tuple[float, Callable[[Report, Run, Clock], None]]] = {
    "this machine": (1.0, machine),
    "compile": (0.16, building),
    "is it right": (0.36, checks),
    "how fast is it": (0.57, times),
    "convolutions": (0.66, convolutions),
    "polynomials": (0.71, polynomials),
    "beside others": (0.81, rivals),
    "whole networks": (0.88, networks),
    "tools": (0.94, tools),
    "the article": (0.97, articles),
    "how long it compiles": (1.0, compiling),
}


if __name__ == "__main__":
    main()
