"""What `make gpu` finds and is to do, and how each step writes it down."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.gpu_clock import Clock

Row = dict[str, Any]
ATOMS = 1000  # of whole networks


@dataclass
class Report:
    """What was found, as it is written down."""

    device: str
    machine: Row = field(default_factory=dict)
    checks: list[Row] = field(default_factory=list)
    times: list[Row] = field(default_factory=list)
    convolutions: list[Row] = field(default_factory=list)
    polynomials: list[Row] = field(default_factory=list)
    rivals: list[Row] = field(default_factory=list)
    networks: list[Row] = field(default_factory=list)
    tools: Row = field(default_factory=dict)
    article: list[Row] = field(default_factory=list)
    compiled: list[Row] = field(default_factory=list)
    launch: Row = field(default_factory=dict)
    goals: list[Row] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # where something of this script failed, in full
    left_out: list[str] = field(default_factory=list)
    doing: str = ""  # what was begun last: where the process dies or hangs, that is what it died of
    file: Path | None = None

    def save(self) -> None:
        """Write all of it; whoever ends this process in the midst of that leaves the file as it was."""
        if self.file:
            made = self.file.with_suffix(".part")
            made.write_text(json.dumps(asdict(replace(self, file=None)), indent=1) + "\n")
            made.replace(self.file)

    def check(self, what: str, passed: bool, note: str = "") -> None:
        self.checks.append({"what": what, "passed": passed, "note": note})
        self.save()
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
class Run:
    """What a run is to do."""

    problems: tuple[str, ...]
    rows: tuple[int, ...]
    seconds: float
    calls: int
    folder: Path
    atoms: int = ATOMS


def guarded(report: Report, name: str, step: Callable[[], object]) -> None:
    """One step; what goes wrong is written down, and the others go on."""
    report.doing = name
    try:
        step()
    except Exception as error:
        report.faults.append(traceback.format_exc())
        report.check(name, False, f"{type(error).__name__}: {error}")


def keep(report: Report, to: list[Row], rows: Iterable[Row], clock: Clock) -> None:
    """Write rows down as they come, as long as there is time."""
    for row in rows:
        to.append(row)
        report.save()
        if not clock.left:
            return
