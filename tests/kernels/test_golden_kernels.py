"""Golden files: the generated C++ of a dozen kernels, for a machine that is fixed here.

A move keeps them to the byte.  A change that is meant: read it, then accept it with ``--accept-golden``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tpgen.form.form import form_of
from tpgen.kernels.cpp.generate import generate
from tpgen.kernels.placement.place import place
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.kernels.placement.values import Target
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, elementwise, fully_connected
from tpgen.planner.product import make_plan

FOLDER = Path(__file__).parent / "golden"
SINGLE, DOUBLE, HALF = Target("float32", 16, 32), Target("float64", 4, 16), Target("bfloat16", 8, 16)
NEON = Target("float32", 4, 32)


def channels(shared: bool = False) -> Plan:
    return channelwise("16x0e + 16x1o", "0e + 1o + 2e", "0e + 1o", shared_weights=shared)


def narrow() -> Plan:
    return channelwise("20x0e + 6x1o", "0e + 1o", "0e + 1o", shared_weights=False)


def connected(shared: bool = True) -> Plan:
    return fully_connected("1x0e + 2x1o", "1x0e + 2x1o", "3x0e + 2x1o", shared_weights=shared)


def mixed_modes() -> Plan:
    instructions = [(0, 0, 0, "uvuv", False), (0, 0, 1, "uvv", True), (0, 0, 1, "uvu", True)]
    return make_plan("16x1o", "16x1o", "256x0e + 16x1e", instructions)


def pairs() -> Plan:
    return make_plan("4x1o", "4x1o", "6x0e + 3x1e", [(0, 0, 0, "uvu<v", True), (0, 0, 1, "u<vw", True)])


def linear(shared: bool | str = True) -> Plan:
    return make_linear_plan("16x0e + 6x1o", "32x0e + 4x1o + 1x0o", shared_weights=shared)


@dataclass(frozen=True)
class Kernel:
    plan: Callable[[], Plan]
    opened: tuple[str, ...] = ("out",)
    target: Target = SINGLE
    layout: str = "mul_ir"
    indexed: bool = False


GOLDEN = {
    "channel-forward": Kernel(channels),
    "channel-backward": Kernel(channels, ("x1", "x2", "w")),
    "channel-backward-ir_mul": Kernel(channels, ("x1", "x2", "w"), layout="ir_mul"),
    "channel-shared-weights": Kernel(lambda: channels(shared=True), ("x2", "w"), DOUBLE),
    "channel-narrow-bfloat16": Kernel(narrow, target=HALF),
    "channel-elementwise": Kernel(lambda: elementwise("16x1o", "16x1o"), ("x1", "out"), DOUBLE),
    "channel-narrow-neon": Kernel(narrow, target=NEON),
    "channel-mixed-modes": Kernel(mixed_modes, ("x1", "w", "out")),
    "conv-forward": Kernel(channels, indexed=True),
    "conv-backward": Kernel(channels, ("x1", "x2", "w"), indexed=True, target=DOUBLE),
    "batch-forward": Kernel(connected),
    "batch-backward": Kernel(connected, ("x1", "x2", "w"), DOUBLE),
    "batch-row-weights": Kernel(lambda: connected(shared=False), ("x1", "w"), layout="ir_mul"),
    "batch-conv-bfloat16": Kernel(connected, target=HALF, indexed=True),
    "batch-pairs": Kernel(pairs, ("x1", "w"), DOUBLE),
    "matrix-forward": Kernel(linear),
    "matrix-forward-neon": Kernel(linear, target=NEON),
    "matrix-backward": Kernel(linear, ("x1", "w"), DOUBLE, "ir_mul"),
    "matrix-elements-forward": Kernel(lambda: linear(shared="element")),
    "matrix-elements-backward": Kernel(lambda: linear(shared="element"), ("x1", "w"), DOUBLE),
    "matrix-row-weights": Kernel(lambda: linear(shared=False), ("x1", "w", "out"), HALF),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_generated_text(name: str, request: pytest.FixtureRequest) -> None:
    kernel = GOLDEN[name]
    schedule = plan_schedule(form_of(kernel.plan(), kernel.layout), kernel.target)
    text = generate(place(schedule, kernel.opened, kernel.indexed)).text
    file = FOLDER / f"{name}.cpp"
    if request.config.getoption("--accept-golden"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text, f"{file.name} differs; the head of this file says how to accept"


def test_every_golden_file_is_of_a_test() -> None:
    assert {file.stem for file in FOLDER.glob("*")} == set(GOLDEN)
