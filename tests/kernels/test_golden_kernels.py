"""Golden files: the generated C++ of a dozen kernels, for a machine that is fixed here.

Headers and the text before all kernels stand in each as one line: two files show that text.  A move keeps the files to
the byte.  A change that is meant: read it, then accept it with ``--accept-golden``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.golden import check_golden, without_headers, without_prelude
from tpgen.form.form import form_of
from tpgen.kernels.cpp.generate import generate
from tpgen.kernels.cpp.prelude import prelude_text
from tpgen.kernels.placement.planning import place, plan_schedule
from tpgen.kernels.placement.values import Target
from tpgen.kernels.rows import EDGES, ELEMENTS, RowRules
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, elementwise, fully_connected
from tpgen.planner.product import make_plan

FOLDER = Path(__file__).parent / "golden"
# as of AVX-512, AVX2 (twice) and NEON
SINGLE, DOUBLE, HALF = Target("float32", 16, 32), Target("float64", 4, 16), Target("bfloat16", 8, 16)
NEON = Target("float32", 4, 32)


def channels(shared: bool = False) -> Plan:
    return channelwise("16x1o", "0e + 1o", "0e + 1o", shared_weights=shared)


def dots(shared: bool = False) -> Plan:
    return channelwise("16x1o", "1o", "0e", shared_weights=shared)


def vectors(shared: bool = True) -> Plan:
    return fully_connected("2x1o", "1x1o", "3x0e", shared_weights=shared)


def narrow() -> Plan:
    return channelwise("20x0e + 6x1o", "1o", "0e + 1o", shared_weights=False)


def connected() -> Plan:
    return fully_connected("1x0e + 2x1o", "2x1o", "3x0e + 2x1o", shared_weights=True)


def mixed_modes() -> Plan:
    instructions = [(0, 0, 0, "uvuv", False), (0, 0, 1, "uvv", True), (0, 0, 1, "uvu", True)]
    return make_plan("16x1o", "16x1o", "256x0e + 16x1e", instructions)


def pairs() -> Plan:
    instructions = [(0, 0, 0, "uvu<v", True), (0, 0, 1, "u<vw", True), (0, 0, 2, "uuw", True)]
    return make_plan("4x1o", "4x1o", "6x0e + 3x1e + 2x0e", instructions)


def linear(shared: bool | str = True) -> Plan:
    return make_linear_plan("16x0e + 6x1o", "32x0e + 4x1o + 1x0o", shared_weights=shared)


@dataclass(frozen=True)
class Kernel:
    plan: Callable[[], Plan]
    opened: tuple[str, ...] = ("out",)
    target: Target = SINGLE
    layout: str = "mul_ir"
    rules: RowRules = ()


GOLDEN = {
    "channel-forward": Kernel(channels),
    "channel-backward": Kernel(dots, ("x1", "x2", "w")),
    "channel-forward-ir_mul": Kernel(channels, layout="ir_mul"),
    "channel-shared-weights": Kernel(lambda: dots(shared=True), ("x2", "w"), DOUBLE),
    "channel-narrow-bfloat16": Kernel(narrow, target=HALF),
    "channel-elementwise": Kernel(lambda: elementwise("16x1o", "16x1o", ["1e"]), ("x1",), DOUBLE),
    "channel-narrow-neon": Kernel(narrow, target=NEON),
    "channel-mixed-modes": Kernel(mixed_modes),
    "conv-forward": Kernel(dots, target=NEON, rules=EDGES),
    "conv-backward": Kernel(dots, ("x1", "x2", "w"), rules=EDGES, target=DOUBLE),
    "batch-forward": Kernel(connected),
    "batch-backward": Kernel(vectors, ("x1", "x2", "w"), DOUBLE),
    "batch-row-weights": Kernel(lambda: vectors(shared=False), ("w",), layout="ir_mul"),
    "batch-conv-bfloat16": Kernel(vectors, target=HALF, rules=EDGES),
    "batch-pairs": Kernel(pairs, ("w",), DOUBLE),
    "matrix-forward": Kernel(linear),
    "matrix-forward-neon": Kernel(linear, target=NEON),
    "matrix-backward": Kernel(linear, ("x1", "w"), DOUBLE, "ir_mul"),
    "matrix-elements-forward": Kernel(lambda: linear(shared="element"), rules=(ELEMENTS,)),
    "matrix-elements-backward": Kernel(lambda: linear(shared="element"), ("x1", "w"), DOUBLE, rules=(ELEMENTS,)),
    "matrix-row-weights": Kernel(lambda: linear(shared=False), ("x1", "w", "out"), HALF),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_generated_text(name: str, request: pytest.FixtureRequest) -> None:
    kernel = GOLDEN[name]
    schedule = plan_schedule(form_of(kernel.plan(), kernel.layout), kernel.target)
    p = place(schedule, kernel.opened, kernel.rules)
    before = prelude_text(schedule.target, p.transposed_segments, getattr(schedule, "rows", 0))
    text = without_headers(without_prelude(generate(p).text, before), "cpp")
    check_golden(FOLDER / f"{name}.cpp", text, request)


# target, components and items of segments, rows in a tile
PRELUDES = {"prelude-float64": (DOUBLE, {(3, 4)}, 4), "prelude-bfloat16": (HALF, {(3, 2)}, 0)}


@pytest.mark.parametrize("name", PRELUDES)
def test_text_before_all_kernels(name: str, request: pytest.FixtureRequest) -> None:
    check_golden(FOLDER / f"{name}.cpp", without_headers(prelude_text(*PRELUDES[name]), "cpp") + "\n", request)


def test_every_golden_file_is_of_a_test() -> None:
    assert {file.stem for file in FOLDER.glob("*")} == {*GOLDEN, *PRELUDES}
