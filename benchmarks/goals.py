"""Goals: what is to be reached, how it is measured, and what was found, on disk and back.

A goal is a name, targets by part (often a task) and a function; `measure_goals` runs what the folder does not hold yet.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tpgen.base.errors import TpgenError, unknown
from tpgen.base.progress import Progress, progress_bar
from tpgen.tools.bench.records import Environment, build_dataclass_from_json, read_environment

SCHEMA = 1


@dataclass(frozen=True)
class Target:
    """A bound on a figure; ``sign`` says on which side the figure must lie."""

    sign: str
    bound: float
    unit: str = "×"

    def met(self, value: float) -> bool:
        return _SIDES[self.sign](value, self.bound)

    def worst(self, values: Iterable[float]) -> float:
        return min(values) if self.sign == "≥" else max(values)

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}{self.unit if self.unit == '×' else ' ' + self.unit}"


def at_least(bound: float) -> Target:
    return Target("≥", bound)


def at_most(bound: float, unit: str = "×") -> Target:
    return Target("≤", bound, unit)


_SIDES: dict[str, Callable[[float, float], bool]] = {"≥": operator.ge, "≤": operator.le}


@dataclass(frozen=True)
class Figure:
    """One number of one part of a goal; no ``value`` where it could not be had, and the note says why."""

    part: str
    what: str
    value: float | None
    note: str = ""


@dataclass(frozen=True)
class Point:
    """A kernel for the roofline: what it does, and how long that took beside a copy of as many bytes."""

    problem: str
    direction: str
    layout: str
    seconds: float
    copy_seconds: float
    bytes: int
    flops: int


@dataclass(frozen=True)
class Findings:
    """What one measurement found; ``fma`` is the machine's rate of multiply-adds, in FLOP/s."""

    figures: tuple[Figure, ...]
    points: tuple[Point, ...] = ()
    fma: float | None = None


@dataclass(frozen=True)
class Outcome:
    """The findings of a goal on a subject, with the machine."""

    goal: str
    subject: str
    environment: Environment
    seconds: float
    findings: Findings


@dataclass(frozen=True)
class Unit:
    """One subject of one goal, and how to measure it."""

    goal: Goal
    subject: str
    seconds: float  # of interleaved timing for one task
    inductor: bool  # whether e3nn compiled by Inductor is among the rivals
    show: Progress = field(default_factory=Progress, repr=False)

    @property
    def file(self) -> str:
        return record_name(self.goal.name, self.subject)


@dataclass(frozen=True)
class Goal:
    """A row of the table: ``targets`` by part, and the function that measures one of the ``subjects``."""

    name: str
    about: str
    targets: Mapping[str, Target]
    subjects: tuple[str, ...]
    measure: Callable[[Unit], Findings] = field(repr=False)


def select_goals(goals: Mapping[str, Goal], names: Iterable[str]) -> tuple[Goal, ...]:
    """The goals of those names, in their own order; all for no names.  A `TpgenError` lists them for another name."""
    wanted = tuple(names) or tuple(goals)
    for name in wanted:
        if name not in goals:
            raise TpgenError(unknown("row", name, goals))
    return tuple(goal for name, goal in goals.items() if name in wanted)


def measure_goals(
    goals: Iterable[Goal], folder: Path, seconds: float, inductor: bool = True, progress: bool = False
) -> None:
    """Measure every subject of every goal that the folder does not hold; each is written as soon as it is found.

    What raises is a finding too, figures without values, and is tried again by the next run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    units = [Unit(goal, subject, seconds, inductor) for goal in goals for subject in goal.subjects]
    with progress_bar(len(units)) if progress else nullcontext(Progress()) as show:
        for unit in units:
            if not _measured_before(folder / unit.file):
                title = f"{unit.goal.name}: {unit.subject}"
                show.begin_activity(title)
                findings = _measured(Unit(unit.goal, unit.subject, seconds, inductor, _Part(show, unit.goal.name)))
                save_outcome(Outcome(unit.goal.name, unit.subject, read_environment(), seconds, findings), folder)
            show.finish_step()


def _measured_before(path: Path) -> bool:
    return path.exists() and all(figure.value is not None for figure in load_outcome(path).findings.figures)


def _measured(unit: Unit) -> Findings:
    try:
        return unit.goal.measure(unit)
    except Exception as error:  # the other rows are still worth having
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]
        return Findings(tuple(Figure(part, unit.subject, None, reason) for part in unit.goal.targets))


class _Part(Progress):
    """Progress inside a step of something larger: told on, but it ends no step."""

    def __init__(self, whole: Progress, name: str) -> None:
        self._whole, self._name = whole, name

    def begin_activity(self, what: str) -> None:
        self._whole.begin_activity(f"{self._name}: {what}")


def record_name(goal: str, subject: str) -> str:
    """The file of an outcome.

    >>> record_name("linear", "mace 128x0e+128x1o, 1000")
    'linear--mace-128x0e+128x1o-1000.json'
    """
    return f"{goal}--{'-'.join(subject.replace(',', '').replace('(', '').replace(')', '').split())}.json"


# --- on disk --------------------------------------------------------------------------------------------------------


def save_outcome(outcome: Outcome, folder: Path) -> None:
    """Write an outcome; the file appears when it is whole, so a run may be stopped at any time."""
    target = folder / record_name(outcome.goal, outcome.subject)
    partial = target.with_suffix(".part")
    partial.write_text(json.dumps({"schema": SCHEMA, **asdict(outcome)}, indent=1) + "\n")
    partial.replace(target)


def load_outcome(path: Path) -> Outcome:
    """Read what `save_outcome` wrote; a `TpgenError` says what is wrong with the file."""
    try:
        data = json.loads(path.read_text())
        if data["schema"] != SCHEMA:
            raise TpgenError(f"{path}: has schema {data['schema']!r}, this version reads {SCHEMA}")
        found = data["findings"]
        findings = Findings(
            tuple(build_dataclass_from_json(Figure, figure) for figure in found["figures"]),
            tuple(build_dataclass_from_json(Point, point) for point in found["points"]),
            found["fma"],
        )
        machine = build_dataclass_from_json(Environment, data["environment"])
        return Outcome(data["goal"], data["subject"], machine, data["seconds"], findings)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise TpgenError(f"{path} is no measured row ({error}); `python -m benchmarks.kernels` writes them") from None


def load_outcomes(folder: Path) -> tuple[Outcome, ...]:
    """All outcomes of a folder, by name of file."""
    return tuple(load_outcome(path) for path in sorted(folder.glob("*.json")))
