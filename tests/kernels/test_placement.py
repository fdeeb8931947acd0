"""What a placement says of itself, and the order in which its paths write."""

from __future__ import annotations

import pytest

from tpgen.base.errors import EmitError
from tpgen.form.form import form_of
from tpgen.kernels.placement.channel import ChannelPlacement
from tpgen.kernels.placement.planning import Placement, place, plan_schedule
from tpgen.kernels.placement.values import Target
from tpgen.kernels.rows import EDGES, RowRules
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected

TARGET = Target("float32", 16, 32)


def placed(plan: Plan, *opened: str, rules: RowRules = ()) -> Placement:
    return place(plan_schedule(form_of(plan), TARGET), opened, rules)


def test_a_form_is_scheduled_once_for_a_target() -> None:
    first, again = (placed(channelwise("16x0e", "0e", "0e"), *o) for o in (("out",), ("x1", "w")))
    assert first.schedule is again.schedule


def test_a_channel_placement_says_where_things_stand() -> None:
    text = str(placed(channelwise("16x0e+16x1o", "0e+1o", "0e", shared_weights=False), "w", "x1"))
    assert text.startswith("channel placement: opens x1, w; 16 lanes of float32\n  blocks of 112 rows, tiles of 16\n")
    assert "scratch: t_x2[64], T[64], 128 numbers a thread" in text  # each segment is written once, in memory
    assert "path 0: 1 x 1 vectors; x1[0] read and stored in memory, w[0] read and stored in memory, out[0] " in text
    assert "x1[1] read and stored in tiles of memory" in text


def test_a_batch_placement_says_how_copies_mix() -> None:
    plan = fully_connected("16x0e+16x1o", "16x0e", "16x0e+16x1o", shared_weights=True)
    text = str(placed(plan, "w", "out"))
    assert text.startswith(
        "batch placement: opens w, out; 16 lanes of float32\n  rows in up to 32 blocks, tiles of 64\n"
    )
    assert "copies u 16 x v 16 x w 16, 256 of the inputs at a time by matrix products, the cotangent flipped" in text


@pytest.mark.parametrize(
    "in1, out, first",
    [("16x0e", "16x1o", True), ("16x1o", "16x0e", False), ("1x1o", "256x2e", True), ("1x1o", "257x2e", False)],
)
def test_copies_mix_first_where_input_1_has_fewer_components(in1: str, out: str, first: bool) -> None:
    text = str(placed(fully_connected(in1, "1o", out, shared_weights=True), "out"))
    assert ("input 1 by matrix products before it is coupled" in text) is first  # one block of P holds 256 copies
    own = placed(fully_connected(in1, "1o", out, shared_weights=False), "out")
    assert "before" not in str(own)


def test_the_first_path_into_a_segment_stores_and_later_ones_add() -> None:
    text = str(placed(channelwise("16x0e+16x1o", "0e+1o", "0e+1o", shared_weights=False), "x1"))
    assert text.count("stored in scratch") == 2  # two segments of x1, each touched by several paths
    assert text.count("added in scratch") == 2


def test_rows_form_groups_where_there_are_many_paths() -> None:
    degrees = [f"{n}{'eo'[n % 2]}" for n in range(5)]
    for mul, opened, rows in ((16, "out", 8), (64, "out", 4), (128, "out", 2)):
        wide = "+".join(f"{mul}x{ir}" for ir in degrees)
        placement = placed(channelwise(wide, "+".join(degrees), wide), opened)
        assert isinstance(placement, ChannelPlacement)
        assert (placement.in_parts, placement.rows_per_group) == (True, rows)
        assert f"groups of {rows} rows" in str(placement)
        first, second = (path.term for path in placement.sweep.paths[:2])
        assert {view.operand for view in placement.views_to_prefetch(first)} == {"w", "out"}
        assert placement.schedule.view(second, "w") in placement.views_to_prefetch(first)
        assert not placement.views_to_prefetch(placement.sweep.paths[-1].term)


def test_owners_are_named() -> None:
    plan = channelwise("16x0e", "0e", "0e", shared_weights=False)
    assert "summed by the owner of out" in str(placed(plan, "out", rules=EDGES))
    with pytest.raises(EmitError, match="an index finds the rows of one at most"):
        placed(plan, "x1", "out", rules=EDGES)
