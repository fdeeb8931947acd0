"""Steps of `make gpu`: convolutions, polynomials and whole networks, and tools that watch kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import click

from benchmarks import gpu_polynomials, gpu_tools
from benchmarks.gpu_clock import Clock
from benchmarks.gpu_convolutions import convolution_rows, convolution_table
from benchmarks.gpu_networks import PROJECTS, network_rows, network_table
from benchmarks.gpu_report import Report, Row, Run, guarded, keep
from tpgen.planner.problems import PROBLEMS


def convolutions(report: Report, run: Run, clock: Clock) -> None:
    """Convolutions of known and of fresh edges, beside other libraries'."""
    for name in run.problems:
        if not clock.left:
            report.leave_out(f"convolutions of {name}", "time is up")
        elif PROBLEMS[name].suite == "channelwise":
            keep(report, report.convolutions, convolution_rows(name, run.rows[0], report.device, run.seconds), clock)
    click.echo(convolution_table(report.convolutions))


def polynomials(report: Report, run: Run, clock: Clock) -> None:
    """Named polynomials, each call by itself."""
    for name, task in product(gpu_polynomials.POLYNOMIALS, gpu_polynomials.TASKS):
        if not clock.left:
            report.leave_out(f"{task} of {name}", "time is up")
            continue
        made = partial(gpu_polynomials.polynomial_row, name, task, run.rows[0], report.device, run.seconds)
        guarded(report, f"{task} of {name}", partial(_polynomial, report, made, clock))
    click.echo(gpu_polynomials.polynomial_table(report.polynomials))


def _polynomial(report: Report, make: Callable[[], Row], clock: Clock) -> None:
    keep(report, report.polynomials, [make()], clock)


def networks(report: Report, run: Run, clock: Clock) -> None:
    """Steps of whole networks, of those projects that are installed."""
    for project in PROJECTS:
        if not clock.left:
            report.leave_out(f"steps of {project}", "time is up")
            continue
        keep(report, report.networks, network_rows(project, run.atoms, report.device, run.seconds), clock)
    click.echo(network_table(report.networks))


def tools(report: Report, run: Run, clock: Clock) -> None:
    """Let NVIDIA's tools watch small problems."""
    for name in gpu_tools.TOOLS:
        passed, words = gpu_tools.ask(name, report.device, clock.left) if clock.left else (None, "time is up")
        report.tools[name] = words
        if passed is None:
            report.leave_out(name, words.splitlines()[-1] if words else "it said nothing")
        else:
            report.check(name, passed, "" if passed else words)
