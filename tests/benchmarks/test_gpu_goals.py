"""What `make gpu` says of the goals."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu_goals import Goal, goals

Row = dict[str, Any]


def timed(task: str, share: float, problem: str = "mace-medium", rows: int = 40_000, held: bool = True) -> Row:
    return {
        "problem": problem, "layout": "mul_ir", "task": task, "rows": rows, "held": held, "share of copy": share
    }  # fmt: skip


def rival(
    contender: str, median: float | None, task: str = "forward", reason: str = "", held: bool = True, eager: float = 1.0
) -> Row:
    return {
        "problem": "mace-large", "task": task, "contender": contender, "median": median, "reason": reason,
        "held": held, "eager": eager,
    }  # fmt: skip


def found(times: list[Row] = [], rivals: list[Row] = [], launch: Row = {}) -> list[Goal]:  # noqa: B006
    return goals(times, rivals, launch)


def test_shares_count_channelwise_problems_of_many_rows_without_python() -> None:
    counted = [timed("forward", 0.9), timed("backward", 0.7), timed("conv forward", 0.7)]
    others = [
        timed("forward", 0.1, rows=2000),
        timed("forward", 0.1, problem="article"),
        timed("forward", 0.1, problem="diffdock-l1"),
        timed("conv forward", 0.1, held=False),
    ]
    products, convolutions, *_ = found([*counted, *others])
    assert (products.reached, convolutions.reached) == (False, True)
    assert products.note == "1 of 2, the least 70%: mace-medium mul_ir backward"
    assert convolutions.note == "1 of 1, the least 70%: mace-medium mul_ir conv forward"


@pytest.mark.parametrize(("call", "reached"), [(4e-6, True), (6e-6, False)])
def test_an_empty_kernel_is_no_part_of_what_a_launch_costs(call: float, reached: bool) -> None:
    goal = found(launch={"call": call, "empty kernel": 2e-6, "eager": 3e-5})[2]
    assert goal.reached is reached
    assert "2.0 us an empty kernel, 30.0 us a call from Python" in goal.note


def test_the_better_layout_of_either_counts() -> None:
    rows = [
        rival("tpgen-auto/eager", 4.0), rival("tpgen-auto-ir_mul/eager", 2.0),
        rival("cuequivariance/eager", 9.0), rival("cuequivariance-ir_mul/eager", 3.0),
        rival("tpgen-auto/eager", 3.0, "backward"), rival("cuequivariance/eager", 1.5, "backward"),
        rival("openequivariance/eager", None, reason="not installed"), rival("e3nn/script", 32.0),
    ]  # fmt: skip
    *_, cue, open_equivariance, e3nn = found(rivals=rows)
    assert cue.note == "1 of 2, the least 0.50 times: mace-large backward"
    assert (cue.reached, open_equivariance.reached, e3nn.reached) == (False, None, True)
    assert open_equivariance.note == "not installed"
    assert e3nn.note.startswith("16.0 times over 1 tasks")


def test_times_from_python_are_compared_with_such() -> None:
    rows = [rival("tpgen-auto/eager", 1.0, eager=4.0), rival("cuequivariance/eager", 6.0, held=False, eager=6.0)]
    assert found(rivals=rows)[3].note == "1 of 1, the least 1.50 times: mace-large forward"


def test_what_was_not_measured_is_said() -> None:
    assert [goal.reached for goal in found()] == [None] * 6
    assert all("not measured, " in str(goal) for goal in found())
