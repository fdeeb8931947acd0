"""Schedule to C++: one source per direction, deterministic, with a C entry point and no includes.

The entry point takes the four operands, the four gradients (null where a slot is not open) and the number of rows;
that of an *indexed* kernel also the indices of the gather (x1) and of the scatter (out), how many rows each of them
points into, and whether to check that it does.  It returns 0, or one of `FAULTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from tpgen.kernels.cpp.batch import BatchText
from tpgen.kernels.cpp.channel import ChannelText
from tpgen.kernels.cpp.driver import KernelText, write_driver
from tpgen.kernels.cpp.matrix import MatrixText
from tpgen.kernels.cpp.parts import in_unit
from tpgen.kernels.cpp.prelude import header, prelude
from tpgen.kernels.cpp.text import GeneratedSource, Writer
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.placement.channel import ChannelPlacement
from tpgen.kernels.placement.matrix import AnySchedule, MatrixPlacement
from tpgen.kernels.placement.place import Placement, place
from tpgen.kernels.sweep.sweep import raised_text

ENTRY = "tpgen_kernel"
FAULTS = {
    1: "out of memory for scratch space",
    2: "edge_src holds an index out of range",
    3: "edge_dst holds an index out of range",
}


def generate(
    schedule: AnySchedule,
    opened: tuple[str, ...],
    indexed: bool = False,
    raised: tuple[str, ...] = (),
    paired: bool = False,
) -> GeneratedSource:
    """The source that computes the open slots of a form in one sweep; ``raised`` operands are cotangents as well.

    Two edges may share a row of weights where they are ``paired``.

    Raises `EmitError` where no slot, an unknown one, or both ends of a gather are open: see `place`.
    """
    placement, w = place(schedule, opened, indexed, raised, paired), Writer()
    schedule = placement.schedule
    with w.part("schedule"):
        for line, paths in schedule.lines:
            with w.paths(*paths):
                w.line(f"// {line}")
        rows = (" of gathered rows" + ", two to a row of weights" * paired) if indexed else ""
        w.line(f"// opens {', '.join(placement.opened)}{raised_text(placement.raised)}{rows}")
    w.raw(prelude(schedule.target, placement.tiles, getattr(schedule, "rows", 0), placement.tails))
    if isinstance(placement, MatrixPlacement):
        w.raw(header("matrices"))
    text = _TEXTS[type(placement)](placement, w)
    text.write()
    in_parts = isinstance(placement, ChannelPlacement) and placement.in_parts
    with in_unit(w) if in_parts else nullcontext(), w.part("driver"):
        write_driver(w, placement, text, indexed)
    return w.done()


_TEXTS: dict[type[Placement], Callable[[Any, Writer], KernelText]] = {
    ChannelPlacement: ChannelText,
    MatrixPlacement: MatrixText,
    BatchPlacement: BatchText,
}
