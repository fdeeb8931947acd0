"""Schedule to C++: one source per direction, deterministic, with a C entry point and no includes.

The entry point takes the four operands, the four gradients (null where a slot is not open) and the number of rows;
that of an *indexed* kernel also the indices of the gather (x1) and of the scatter (out), how many rows each of them
points into, and whether to check that it does.  It returns 0, or one of `FAULTS`.
"""

from __future__ import annotations

from tpgen.errors import EmitError, unknown
from tpgen.kernels.cpp.batch import BatchText
from tpgen.kernels.cpp.channel import ChannelText
from tpgen.kernels.cpp.driver import write_driver
from tpgen.kernels.cpp.prelude import prelude
from tpgen.kernels.cpp.text import GeneratedSource, Writer
from tpgen.kernels.schedule.values import SLOTS, BatchSchedule, ChannelSchedule, Schedule

ENTRY = "tpgen_kernel"
FAULTS = {
    1: "out of memory for scratch space",
    2: "edge_src holds an index out of range",
    3: "edge_dst holds an index out of range",
}


def generate(schedule: Schedule, opened: tuple[str, ...], indexed: bool = False) -> GeneratedSource:
    """The source that computes the open slots of a form in one sweep.

    ``opened`` are slots in the order of `SLOTS`.  An indexed kernel may open x1 or out, not both: each is summed over
    the rows that share it, in the order of the rows.

    Raises `EmitError` where no slot, an unknown one, or both ends of a gather are open.
    """
    for slot in opened:
        if slot not in SLOTS:
            raise EmitError(unknown("slot", slot, SLOTS))
    owners = [slot for slot in opened if indexed and slot in ("x1", "out")]
    if not opened or len(owners) > 1:
        raise EmitError(f"a kernel opens one slot or more, and an indexed one x1 or out but not both; got {opened}")
    opened = tuple(slot for slot in SLOTS if slot in opened)
    w = Writer()
    for line in str(schedule).split("\n"):
        w.line(f"// {line}")
    w.line(f"// opens {', '.join(opened)}{' of gathered rows' if indexed else ''}")
    text = _WRITERS[type(schedule)](schedule, opened, owners[0] if owners else None, w)
    w.raw(prelude(schedule.target, text.tiles(), getattr(schedule, "rows", 0)))
    text.write()
    write_driver(w, text, indexed)
    return w.done()


_WRITERS = {ChannelSchedule: ChannelText, BatchSchedule: BatchText}
