"""The entry point of a kernel: threads, scratch space, blocks of rows, and the order in which sums are added.

Rows are cut into blocks whose size follows from the number of rows alone, never from the number of threads.  What is
summed over rows (gradients of shared weights) is summed inside each block in row order, then over blocks in block
order, so results do not depend on the threads.  Where rows are gathered, they are sorted by their owner first (a
stable counting sort) and an owner's rows stay in one block, in their order.
"""

from __future__ import annotations

from typing import Protocol

from tpgen.kernels.cpp.prelude import header
from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.schedule.values import SLOTS, Schedule


class KernelText(Protocol):
    """What a schedule's writer offers to the driver."""

    s: Schedule
    opened: tuple[str, ...]
    given: tuple[str, ...]
    owner: str | None
    dim: dict[str, int]

    def tiles(self) -> set[int]: ...
    def write(self) -> None: ...
    def scratch(self) -> dict[str, int]: ...
    def weight_scratch(self) -> int: ...
    def write_weights(self, w: Writer, reduce: bool) -> None: ...
    def write_rows(self, w: Writer, indexed: bool) -> None: ...


_GRAIN = 16384  # numbers a block should touch at least: handing a block to a thread costs about as much as 200 of them
INDEXED_ARGUMENTS = ", const i64* src, const i64* dst, i64 sources, i64 destinations, i64 check"


def write_driver(w: Writer, text: KernelText, indexed: bool) -> None:
    """Write ``tpgen_kernel``."""
    if indexed:
        w.raw(header("order"))
    arguments = ", ".join([f"const real* {o}" for o in SLOTS] + [f"real* d_{o}" for o in SLOTS])
    extra = INDEXED_ARGUMENTS if indexed else ""
    with w.block(f'extern "C" __attribute__((visibility("default"))) int tpgen_kernel({arguments}, i64 rows{extra})'):
        _expectations(w, text, indexed)
        if indexed:
            _ownership(w, text)
        _weights(w, text)
        _parallel(w, text, indexed)
        if text.s.shared_weights and "w" in text.opened:
            text.write_weights(w, reduce=True)
        for name in _buffers(text, indexed):
            w.line(f"free({name});")
        w.line("return fault;")


def _expectations(w: Writer, text: KernelText, indexed: bool) -> None:
    w.line("int fault = 0;")
    for operand in text.opened:
        rows = {"x1": "sources", "out": "destinations"}.get(operand, "rows") if indexed else "rows"
        if not (operand == "w" and text.s.shared_weights):
            w.line(f"expect_writes(d_{operand}, {rows} * {text.dim[operand]} * (i64)sizeof(real));")


def _ownership(w: Writer, text: KernelText) -> None:
    w.line("if (check && !inside(src, rows, sources)) return 2;")
    w.line("if (check && !inside(dst, rows, destinations)) return 3;")
    if text.owner:
        key, owners = ("src", "sources") if text.owner == "x1" else ("dst", "destinations")
        w.line(f"const i64 owners = {owners};")
        w.line("i64* first = 0; i64* order = 0;")
        w.line(
            "if (posix_memalign((void**)&first, 64, (owners + 1) * sizeof(i64))) return 1;\n"
            "if (posix_memalign((void**)&order, 64, (rows + 1) * sizeof(i64))) { free(first); return 1; }"
        )
        w.line(f"sort_rows({key}, rows, owners, first, order);")


def _buffers(text: KernelText, indexed: bool) -> list[str]:
    names = ["order", "first"] if indexed and text.owner else []
    if text.weight_scratch() and "w" in text.given:
        names.append("weights")
    if text.s.shared_weights and "w" in text.opened:
        names.append("sums")
    return names


def _weights(w: Writer, text: KernelText) -> None:
    """Blocks of rows; shared weights in scratch once; room for each block's part of their gradient."""
    tile = getattr(text.s, "rows", text.s.target.lanes)
    summed = text.s.shared_weights and "w" in text.opened
    if summed:
        w.line(
            f"const i64 room = {max(1, 2**24 // max(1, text.weight_scratch()))};  // blocks that fit into 64 MB of sums"
        )
        w.line("const i64 most = room < 32 ? room : 32;")
        w.line(f"const i64 span = ((rows + most - 1) / most + {tile}) / {tile} * {tile};")
    else:
        w.line(f"const i64 span = {tile * max(1, _GRAIN // max(1, tile * sum(text.dim.values())))};")
    if text.owner:
        w.line("const i64 blocks = rows / span + 1;")
    else:
        w.line("const i64 blocks = rows ? (rows + span - 1) / span : 0;")
    if text.weight_scratch() and "w" in text.given:
        w.line(
            f"num* weights = 0; "
            f"if (posix_memalign((void**)&weights, 64, {text.weight_scratch()} * sizeof(num))) return 1;"
        )
        text.write_weights(w, reduce=False)
    if summed:
        size = max(text.weight_scratch(), text.s.target.lanes)
        w.line(f"num* sums = 0; if (posix_memalign((void**)&sums, 64, (blocks + 1) * {size} * sizeof(num))) return 1;")


def _parallel(w: Writer, text: KernelText, indexed: bool) -> None:
    size = sum(text.scratch().values())
    work = sum(text.dim.values())
    w.line("i64 next = 0; i64* const taken = &next; int* const failed = &fault;")
    with w.block(f"on_threads(rows * {work} > 65536, [=]() __attribute__((always_inline))", "});"):
        w.line(
            f"num* scratch = 0; if (posix_memalign((void**)&scratch, 64, {max(size, 1)} * sizeof(num))) scratch = 0;"
        )
        at = 0
        for name, length in text.scratch().items():
            w.line(f"num* const {name} = scratch + {at};")
            at += length
        with w.block("for (i64 b; (b = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED)) < blocks;)"):
            w.line("if (!scratch) { *failed = 1; continue; }")
            if text.s.shared_weights and "w" in text.opened:
                size = max(text.weight_scratch(), text.s.target.lanes)
                w.line(f"num* const a_w = sums + b * {size}; clear(a_w, {size});")
            text.write_rows(w, indexed)
        w.line("free(scratch);")
