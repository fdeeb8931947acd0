"""Golden files: the text of every stage for a few products.

A difference is a bug, or an intended change of what is emitted.  If it is intended, read it, then accept it with::

    python -m pytest tests/emitter/test_golden.py --accept-golden
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.golden import check_golden
from tpgen.emitter.emit import DIRECTIONS, emit_plan
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected, tensor_square
from tpgen.planner.product import make_plan

FOLDER = Path(__file__).parent / "golden"


def vectors() -> Plan:
    return make_plan("4x1o", "1x1o", "4x0e + 4x1e", [(0, 0, 0, "uvu", True), (0, 0, 1, "uvu", True)])


def dots() -> Plan:
    return make_plan("4x1o", "1x1o", "4x0e", [(0, 0, 0, "uvu", True)])


# name: plan, direction, strategy, layout
GOLDEN: dict[str, tuple[Callable[[], Plan], str, str, str]] = {
    "vectors-forward-einsum": (vectors, "forward", "einsum", "mul_ir"),
    "vectors-forward-unrolled": (vectors, "forward", "unrolled", "mul_ir"),
    "dots-grad_x2-unrolled-ir_mul": (dots, "grad_x2", "unrolled", "ir_mul"),
    "dots-grad_w-einsum": (dots, "grad_w", "einsum", "mul_ir"),
    "dots-right-einsum": (dots, "right", "einsum", "mul_ir"),
    "channelwise-forward-grouped": (
        lambda: channelwise("8x1o", "0e + 1o", "0e + 1o"), "forward", "grouped", "mul_ir",
    ),
    "connected-forward-grouped": (
        lambda: fully_connected("1x0e + 2x1o", "2x1o", "1x0e + 2x1o"), "forward", "grouped", "mul_ir",
    ),
    "square-forward-einsum": (lambda: tensor_square("3x1o", "2x0e"), "forward", "einsum", "mul_ir"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_emitted_text(name: str, request: pytest.FixtureRequest) -> None:
    make, direction, strategy, layout = GOLDEN[name]
    plan = make()
    emission = emit_plan(plan, direction, strategy, layout)
    text = f"{plan}\n\n{DIRECTIONS[direction](plan, layout)}\n\n{emission}\n\n{emission.code.strip()}\n"
    check_golden(FOLDER / f"{name}.txt", text, request)


def test_every_golden_file_is_of_a_test() -> None:
    assert {file.stem for file in FOLDER.glob("*")} == set(GOLDEN)
