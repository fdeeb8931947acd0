"""Schedule to C++: one source per direction, deterministic, with a C entry point and no includes.

The entry point takes the four operands, the four gradients (null where a slot is not open) and the number of rows;
that of an *indexed* kernel also the indices of the gather (x1) and of the scatter (out), how many rows each of them
points into, and whether to check that it does.  Where weights are those of elements, it takes what a polynomial's does.
It returns 0, or one of `FAULTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

from tpgen.kernels.cpp.batch import BatchText
from tpgen.kernels.cpp.channel import ChannelText
from tpgen.kernels.cpp.matrix import MatrixText
from tpgen.kernels.cpp.parts import in_unit
from tpgen.kernels.cpp.prelude import header, prelude
from tpgen.kernels.cpp.text import GeneratedSource, Writer, each_task, room, scratch_areas
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.placement.blocks import MOST_BLOCKS, WORTH_THREADS
from tpgen.kernels.placement.channel import ChannelPlacement, identifier, weights_area
from tpgen.kernels.placement.matrix import MatrixPlacement
from tpgen.kernels.placement.place import Placement
from tpgen.kernels.sweep.sweep import raised_text
from tpgen.kernels.sweep.terms import SLOTS, operand_of

ENTRY = "tpgen_kernel"
FAULTS = {
    1: "out of memory for scratch space",
    2: "edge_src holds an index out of range",
    3: "edge_dst holds an index out of range",
}


class KernelText(Protocol):
    """The text of a schedule, as the driver asks for it: the function of rows, and code before and after them."""

    def write(self) -> None: ...
    def write_weights(self) -> None: ...
    def write_weight_sums(self) -> None: ...
    def write_rows(self) -> None: ...


def generate(placement: Placement) -> GeneratedSource:
    """The source of a placement, which computes its open slots in one sweep."""
    schedule, w = placement.schedule, Writer()
    with w.part("schedule"):
        for line, paths in schedule.lines:
            with w.paths(*paths):
                w.line(f"// {line}")
        rows = (" of gathered rows" + ", two to a row of weights" * placement.paired) if placement.indexed else ""
        w.line(f"// opens {', '.join(placement.opened)}{raised_text(placement.raised)}{rows}")
    w.raw(prelude(schedule.target, placement.tiles, getattr(schedule, "rows", 0), placement.tails))
    if isinstance(placement, MatrixPlacement):
        w.raw(header("matrices"))
    text = _TEXTS[type(placement)](placement, w)
    text.write()
    in_parts = isinstance(placement, ChannelPlacement) and placement.in_parts
    with in_unit(w) if in_parts else nullcontext(), w.part("driver"):
        _driver(w, placement, text)
    return w.done()


_TEXTS: dict[type[Placement], Callable[[Any, Writer], KernelText]] = {
    ChannelPlacement: ChannelText,
    MatrixPlacement: MatrixText,
    BatchPlacement: BatchText,
}


# -- the entry point ---------------------------------------------------------------------------------------------------

_INDEXED_ARGUMENTS = ", const void* src_at, const void* dst_at, i64 sources, i64 destinations, i64 how"


def _driver(w: Writer, p: Placement, text: KernelText) -> None:
    """Write the entry point: threads, scratch space, blocks of rows, and the order in which sums are added.

    What is summed over rows (gradients of shared weights) is summed inside each block in row order, then over blocks in
    block order, so results do not depend on the threads.  Where rows are gathered, they are sorted by their owner first
    (a stable counting sort) and an owner's rows stay in one block, in their order.
    """
    indexed, by_element = p.indexed, p.by_element
    needed = {"edges": indexed, "order": indexed or by_element, "tasks": by_element, "paired": p.second_weights}
    for name in (name for name, yes in needed.items() if yes):
        w.raw(header(name))
    extra = _INDEXED_ARGUMENTS if p.indexed else ""
    head = f"int tpgen_kernel({_arguments(p)}, i64 rows{extra})"
    with w.block(f'extern "C" __attribute__((visibility("default"))) {head}'):
        if p.raised or p.by_element:
            for slot in p.given:
                w.line(f"const real* const {identifier(slot)} = given[{p.call_slots.index(slot)}];")
            for n, operand in enumerate(p.opened):
                w.line(f"real* const d_{operand} = opened[{n}];")
        w.line("int fault = 0;")
        if p.paired:
            w.line("const i64 weights = how >> 3;  // rows of them: edges behind take them from the first on")
        counts = {"x1": "sources", "out": "destinations", "w": "weights" if p.paired else "rows"} if p.indexed else {}
        for operand in p.opened:
            rows = counts.get(operand, "rows")
            if not (operand == "w" and p.sums_weights):
                w.line(f"expect_writes(d_{operand}, {rows} * {p.dim[operand]} * (i64)sizeof(real));")
        if p.indexed:
            _ownership(w, p)
        if p.by_element:
            w.line("const i64 elements = sizes[0];")
            w.line("if (index && !inside(index, rows, elements)) return 2;")
        if p.second_weights:
            room(w, "char", "states", "weights + 1")
            w.line("__builtin_memset(states, 0, weights);")
        _blocks(w, p)
        _weights(w, p, text)
        _parallel(w, p, text)
        if p.sums_weights:
            text.write_weight_sums()
        w.line("return fault;")


def _arguments(p: Placement) -> str:
    """Operands and open slots one by one; at levels or by element as two arrays of pointers."""
    if not (p.raised or p.by_element):
        return ", ".join([f"const real* {o}" for o in SLOTS] + [f"real* d_{o}" for o in SLOTS])
    indices = ["const i64* index", "const i64* sizes"] if p.by_element else ["const void*"] * 2
    return ", ".join(["const real* const* given", "real* const* opened", *indices, *["void*"] * 4])


def _ownership(w: Writer, p: Placement) -> None:
    w.line("const Ends src = {src_at, bool(how & NARROW_SRC)}, dst = {dst_at, bool(how & NARROW_DST)};")
    w.line("if (how & CHECKED && !inside(src, rows, sources)) return 2;")
    w.line("if (how & CHECKED && !inside(dst, rows, destinations)) return 3;")
    if p.owner:
        key, owners = ("src", "sources") if p.owner == "x1" else ("dst", "destinations")
        w.line(f"const i64 owners = {owners};")
        room(w, "i64", "first", "owners + 1")
        room(w, "i64", "order", "rows + 1")
        w.line(f"sort_rows({key}, rows, owners, first, order);")


def _blocks(w: Writer, p: Placement) -> None:
    tile = p.blocks.tile
    if p.sums_weights:
        w.line(f"const i64 room = {p.blocks.room};  // blocks that fit into 64 MB of sums")
        w.line(f"const i64 most = room < {MOST_BLOCKS} ? room : {MOST_BLOCKS};")
        w.line(f"const i64 span = ((rows + most - 1) / most + {tile}) / {tile} * {tile};")
    else:
        w.line(f"const i64 span = {p.blocks.span};")
    if p.by_element:
        room(w, "i64", "tasks", "tasks_size(rows, elements, span)")
        w.line("const Tasks t = make_tasks(tasks, index, rows, elements, span);")
        w.line("const i64 blocks = t.count;")
    elif p.owner:
        w.line("const i64 blocks = rows / span + 1;")
    else:
        w.line("const i64 blocks = rows ? (rows + span - 1) / span : 0;")


def _weights(w: Writer, p: Placement, text: KernelText) -> None:
    """Shared weights in scratch once; room for each block's part of their gradient."""
    shared = p.weight_scratch and not p.by_element
    slots = [slot for slot in p.given if operand_of(slot) == "w" and shared]
    for slot in slots:
        room(w, "num", weights_area(slot), f"{p.weight_scratch}")
    if slots:
        text.write_weights()
    if p.sums_weights:
        room(w, "num", "sums", f"(blocks + 1) * {_part(p)}")


def _part(p: Placement) -> int:
    return max(p.weight_scratch, p.schedule.target.lanes)


def _parallel(w: Writer, p: Placement, text: KernelText) -> None:
    held, areas = sum(p.scratch.values()), scratch_areas(p.scratch)
    if p.second_weights:
        areas.append(f"real* const second_w = (real*)(scratch + {held});")
    if "weights" in p.scratch:
        areas.append("i64 held = -1;  // the element whose weights stand there")
    worth, size = f"rows * {p.blocks.touched} > {WORTH_THREADS}", str(max(held + p.second_weights, 1))
    with each_task(w, worth, size, areas, "blocks"):
        if p.sums_weights:
            w.line(f"num* const a_w = sums + b * {_part(p)}; clear(a_w, {_part(p)});")
        text.write_rows()
