"""Blocks, warps and shared memory: everything is done once, and nothing stands in the place of something else."""

from __future__ import annotations

import pytest

from tpgen.base.errors import EmitError
from tpgen.form.form import form_of
from tpgen.kernels.cuda.channel_placement import CudaChannelPlacement
from tpgen.kernels.cuda.chips import CHIPS, LANES, chip_of
from tpgen.kernels.cuda.placement import cuda_target, place_cuda
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import PROBLEMS, find_problem

FORWARD, BACKWARD = ("out",), ("x1", "x2", "w")
CHANNELWISE = [name for name, problem in PROBLEMS.items() if problem.suite == "channelwise"]


def placed(
    name: str, opened: tuple[str, ...], indexed: bool = False, arch: int = 90, layout: str = "mul_ir"
) -> CudaChannelPlacement:
    schedule = plan_schedule(form_of(find_problem(name).plan, layout), cuda_target("float32"))
    return place_cuda(schedule, opened, chip_of(arch), indexed)


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("opened", [FORWARD, BACKWARD, ("w",)])
@pytest.mark.parametrize("name", ["mixed-mul", "mace-large", "elementwise"])
def test_every_channel_of_every_row_is_computed_once(name: str, opened: tuple[str, ...], indexed: bool) -> None:
    placement = placed(name, opened, indexed)
    units = [unit for warp in placement.work for unit in warp]
    assert sorted(units, key=id) == sorted(placement.work_units, key=id)
    for group in placement.groups:
        mine = {(u.chunk, u.rows) for u in units if u.work is group}
        sets = 1 if placement.serial else placement.count_row_sets(group)
        assert mine == {(chunk, rows) for chunk in range(group.chunks) for rows in range(sets)}
        assert group.chunks * LANES >= group.channels > (group.chunks - 1) * LANES
        assert placement.serial or placement.count_row_sets(group) * group.rows == placement.rows
    assert sorted(p.term.path for g in placement.groups for p in g.paths) == sorted(
        p.term.path for p in placement.sweep.paths
    )


def test_no_warp_has_much_more_than_another() -> None:
    costs = [sum(unit.work.cost for unit in warp) for warp in placed("nequip-toluene", BACKWARD).work]
    assert max(costs) < 1.3 * min(costs)


@pytest.mark.parametrize("arch", CHIPS)
def test_areas_stand_side_by_side_and_fit(arch: int) -> None:
    placement = placed("mixed-mul", BACKWARD, arch=arch)
    places = sorted(placement.areas.values())
    assert places[0] >= 8 * placement.stage_count
    assert all(place % 32 == 0 for place in (*places, *placement.stage.values()))
    assert places[-1] < placement.first_stage_offset
    assert placement.shared <= placement.chip.block_shared


def test_a_row_that_does_not_fit_is_refused() -> None:
    plan = channelwise("4096x0e+4096x1o", "0e+1o+2e", "0e+1o+2e", shared_weights=False)
    schedule = plan_schedule(form_of(plan, "mul_ir"), cuda_target("float32"))
    with pytest.raises(
        EmitError, match=r"a row of this product needs \d+ bytes of shared memory, and a block of sm_90"
    ):
        place_cuda(schedule, FORWARD, chip_of(90))


@pytest.mark.parametrize("arch", [80, 90])
def test_gradients_come_by_receiver_where_the_cache_loses_cotangents(arch: int) -> None:
    """The cotangents of these two problems are long, and those of 2,000 nodes fill the cache."""
    by_receiver = {name: p for name in CHANNELWISE if (p := placed(name, BACKWARD, True, arch)).held}
    assert set(by_receiver) == {"mace-large", "nequip-toluene"}
    for p in by_receiver.values():
        assert (p.by, p.owner, p.scattered) == ("out", None, ("x1",))
    assert placed("mace-medium", BACKWARD, indexed=True, arch=70).held == "out", "an older chip has a small cache"


def test_a_step_is_the_usual_one_where_that_has_room() -> None:
    for name in CHANNELWISE:
        p = placed(name, BACKWARD)
        assert (p.rows, p.warps) == (p.default_rows, p.default_warps)
