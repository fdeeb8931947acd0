"""From a schedule to its placement: the same layout with some slots open."""

from __future__ import annotations

from tpgen.base.errors import EmitError, unknown
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.placement.channel import ChannelPlacement
from tpgen.kernels.placement.matrix import AnySchedule, MatrixPlacement, MatrixSchedule
from tpgen.kernels.placement.values import ChannelSchedule
from tpgen.kernels.rows import EDGE_PAIRS, EDGES, Rules, summed_by
from tpgen.kernels.sweep.terms import SLOTS

Placement = ChannelPlacement | BatchPlacement | MatrixPlacement


def place(schedule: AnySchedule, opened: tuple[str, ...], rules: Rules = (), raised: tuple[str, ...] = ()) -> Placement:
    """Placement of a kernel that opens some slots, given in any order.

    Of the operands whose rows an index finds, one may be open: its rows are sums over those that share it, in their
    order.  Operands that are ``raised`` are given as cotangents too, and two rows share one of weights where a rule
    says so; the channel schedule alone has such kernels.
    Raises `EmitError` where no slot, an unknown one, or two sums in different orders are open.
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
