"""From a schedule to its placement: the same layout with some slots open."""

from __future__ import annotations

from tpgen.base.errors import EmitError, unknown
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.placement.channel import ChannelPlacement
from tpgen.kernels.placement.matrix import AnySchedule, MatrixPlacement, MatrixSchedule
from tpgen.kernels.placement.values import ChannelSchedule
from tpgen.kernels.sweep.terms import SLOTS

Placement = ChannelPlacement | BatchPlacement | MatrixPlacement


def place(
    schedule: AnySchedule,
    opened: tuple[str, ...],
    indexed: bool = False,
    raised: tuple[str, ...] = (),
    paired: bool = False,
) -> Placement:
    """Placement of a kernel that opens some slots, given in any order.

    An indexed kernel may open x1 or out, not both: each is summed over the rows that share it, in their order.
    Operands that are ``raised`` are given as cotangents too, and two edges share a row of weights where they are
    ``paired``; the channel schedule alone has such kernels.
    Raises `EmitError` where no slot, an unknown one, or both ends of a gather are open.
    """
    for slot in opened:
        if slot not in SLOTS:
            raise EmitError(unknown("slot", slot, SLOTS))
    owners = [slot for slot in opened if indexed and slot in ("x1", "out")]
    if not opened or len(owners) > 1:
        raise EmitError(f"a kernel opens one slot or more, and an indexed one x1 or out but not both; got {opened}")
    opened, owner = tuple(slot for slot in SLOTS if slot in opened), owners[0] if owners else None
    if isinstance(schedule, ChannelSchedule):
        return ChannelPlacement(schedule, opened, owner, raised=raised, indexed=indexed, paired=paired)
    if raised:
        raise EmitError("only channel kernels take cotangents of gradients; see tpgen.form.call.expanded")
    if paired:
        raise EmitError("only channel kernels let two edges share their weights")
    if isinstance(schedule, MatrixSchedule):
        if indexed:
            raise EmitError("a linear layer has no edges: its kernels are not indexed")
        return MatrixPlacement(schedule, opened)
    return BatchPlacement(schedule, opened, owner, indexed=indexed)
