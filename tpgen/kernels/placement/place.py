"""Placements of schedules with some slots open."""

from __future__ import annotations

from tpgen.base.errors import EmitError, unknown
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.placement.channel import ChannelPlacement
from tpgen.kernels.placement.matrix import AnySchedule, MatrixPlacement, MatrixSchedule
from tpgen.kernels.placement.values import ChannelSchedule
from tpgen.kernels.rows import EDGE_PAIRS, EDGES, RowRules, summed_by
from tpgen.kernels.sweep.terms import SLOTS

Placement = ChannelPlacement | BatchPlacement | MatrixPlacement


def place(
    schedule: AnySchedule, opened: tuple[str, ...], rules: RowRules = (), raised: tuple[str, ...] = ()
) -> Placement:
    """Place a kernel that computes the slots ``opened``.

    At most one open operand may have an index.  Only channel kernels take cotangents of operands ``raised``, or edge
    pairs that share weights.
    Raises `EmitError` for other combinations, unknown slots, or none.
    """
    for slot in opened:
        if slot not in SLOTS:
            raise EmitError(unknown("slot", slot, SLOTS))
    opened = tuple(slot for slot in SLOTS if slot in opened)
    owners = summed_by(opened, () if isinstance(schedule, MatrixSchedule) else rules)
    if not opened or len(owners) > 1:
        raise EmitError(f"a kernel opens one slot or more, and an index finds the rows of one at most; got {opened}")
    owner = owners[0] if owners else None
    if isinstance(schedule, ChannelSchedule):
        return ChannelPlacement(schedule, opened, owner, raised=raised, rules=rules)
    if raised:
        raise EmitError("only channel kernels take cotangents of gradients; see tpgen.form.call.expanded")
    if EDGE_PAIRS in rules:
        raise EmitError("only channel kernels let two edges share their weights")
    if isinstance(schedule, MatrixSchedule):
        if not {*EDGES}.isdisjoint(rules):
            raise EmitError("a linear layer has no edges: its kernels are not indexed")
        return MatrixPlacement(schedule, opened, rules=rules)
    return BatchPlacement(schedule, opened, owner, rules=rules)
