"""What layers and shapes are to reach: narrow multiplicities, high degrees, linear layers, symmetric contractions."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import linear
from benchmarks.goals import Figure, Findings, Goal, Unit, at_least, at_most
from benchmarks.measures import cold_directions, roof, speed
from benchmarks.problems import OURS
from tpgen.base.clock import with_threads
from tpgen.base.errors import BackendError
from tpgen.base.text import duration

ROOT = Path(__file__).resolve().parents[1]
_PASSES = {"forward": "forward", "fwd+bwd": "backward"}  # as the scripts call them, as goals do
_STEPS = {"forward": "forward", "fwd+bwd": "backward", "force training": "force"}
_ROUNDS = 3  # a call of mace-torch takes seconds


def linear_layer(unit: Unit) -> Findings:
    """A linear layer against e3nn scripted, and against its bare matrix products; on one thread."""
    shape, rows = unit.subject.rsplit(", ", 1)
    figures = []
    with with_threads(1):
        for task, steps in linear.tasks(linear.SHAPES[shape], torch.float32, int(rows)):
            e3nn, mm, ours = linear.medians(steps, unit.seconds)
            note = f"{duration(ours)}, e3nn/script {duration(e3nn)}, bare products {duration(mm)}"
            figures.append(Figure(_PASSES[task], unit.subject, e3nn / ours, f"{note}: they have {e3nn / mm:.2f}×"))
            figures.append(Figure(f"{_PASSES[task]} / mm", unit.subject, ours / mm, note))
    return Findings(tuple(figures))


def contraction(unit: Unit, clients: Path) -> Findings:
    """A symmetric contraction against mace-torch's own, in mace-torch's environment; on one thread."""
    elements, rows = unit.subject.split(", ")
    python = clients / "mace" / "bin" / "python"
    if not python.exists():
        raise BackendError(f"there is no {python.name} of mace-torch's environment: make clients")
    with TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [str(python), "-W", "ignore", "-m", "benchmarks.contraction", "--no-einsum", "--threads", "1"]
        command += ["--rounds", str(_ROUNDS), "--json", str(found)]
        command += ["--elements", elements.split()[0], "--rows", rows.split()[0]]
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode:
            raise BackendError((done.stderr.strip().splitlines() or ["(no output)"])[-1])
        return Findings(tuple(_contraction_figure(unit, **row) for row in json.loads(found.read_text())))


def _contraction_figure(unit: Unit, task: str, seconds: dict[str, float], **_case: int) -> Figure:
    ours, theirs = seconds["tpgen"], seconds["mace-torch"]
    note = f"{duration(ours)}, mace-torch {duration(theirs)}"
    return Figure(_STEPS[task], unit.subject, theirs / ours, note)


def _named(suite: str) -> tuple[str, ...]:
    return tuple(name for name, problem in OURS.items() if problem.suite == suite)


def layer_goals(clients: Path) -> dict[str, Goal]:
    """By name; ``clients`` is the folder of the environments that `make clients` makes."""
    goals = (
        Goal(
            "narrow",
            "channelwise with multiplicities that fill no whole vectors, against e3nn",
            {"forward": at_least(8), "backward": at_least(8)},
            _named("narrow"),
            speed,
        ),
        Goal(
            "degrees",
            "16 copies of every degree, against the longer of a copy and the multiply-adds",
            {"forward": at_most(2), "backward": at_most(2)},
            _named("degrees"),
            roof,
        ),
        Goal(
            "degrees-build",
            "cold build of one kernel of many paths",
            {"forward": at_most(3, "s"), "backward": at_most(3, "s")},
            ("degrees-5", "degrees-6"),
            cold_directions,
        ),
        Goal(
            "linear",
            "linear layers, against e3nn scripted and against bare matrix products",
            {
                "forward": at_least(1.5),
                "forward / mm": at_most(1.2),
                "backward": at_least(1.5),
                "backward / mm": at_most(1.2),
            },
            tuple(f"{shape}, {rows}" for shape in linear.SHAPES for rows in (1000, 20000)),
            linear_layer,
        ),
        Goal(
            "contraction",
            "MACE's symmetric contraction, 128 channels, correlation 3, against mace-torch",
            {"forward": at_least(40), "backward": at_least(40), "force": at_least(40)},
            tuple(f"{elements} elements, {rows} nodes" for elements in (2, 10) for rows in (64, 512)),
            partial(contraction, clients=clients),
        ),
    )
    return {goal.name: goal for goal in goals}
