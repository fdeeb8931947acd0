"""C++ source of a placement: one C entry point, no includes.

Arguments: pointers to given and opened tensors, `RowIndex` of each row rule, rows, channels.
Results: 0, 1 without memory, n + 2 if index n is out of range.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from tpgen.kernels.cpp.batch import BatchKernelWriter
from tpgen.kernels.cpp.channel import ChannelKernelWriter
from tpgen.kernels.cpp.matrix import MatrixKernelWriter
from tpgen.kernels.cpp.nodes import NodeKernelWriter
from tpgen.kernels.cpp.parts import block_in_one_translation_unit
from tpgen.kernels.cpp.prelude import header_text, prelude_text
from tpgen.kernels.cpp.text import (
    GeneratedSource,
    Writer,
    block_for_each_task,
    entry_function_head,
    scratch_area_declarations,
    write_allocation,
)
from tpgen.kernels.placement.batch import BatchPlacement
from tpgen.kernels.placement.channel import ChannelPlacement, cpp_slot_name, weights_area_name
from tpgen.kernels.placement.matrix import MatrixPlacement
from tpgen.kernels.placement.nodes import NodePlacement
from tpgen.kernels.placement.planning import Placement
from tpgen.kernels.placement.values import MOST_BLOCKS, WORTH_THREADS
from tpgen.kernels.rows import BEYOND
from tpgen.kernels.sweep.sweep import cotangents_text
from tpgen.kernels.sweep.terms import operand_of

ENTRY = "tpgen_kernel"


# each writes its parts of the entry point
KernelWriter = ChannelKernelWriter | BatchKernelWriter | MatrixKernelWriter | NodeKernelWriter


def generate(placement: Placement) -> GeneratedSource:
    """Generate the C++ source of a placed kernel."""
    schedule, w = placement.schedule, Writer()
    with w.part("schedule"):
        for line, paths in schedule.text_lines_and_paths:
            with w.paths(*paths):
                w.line(f"// {line}")
        rules = f" with {', '.join(map(str, placement.rules))}" if placement.rules else ""
        w.line(f"// opens {', '.join(placement.opened)}{cotangents_text(placement.raised)}{rules}")
    w.raw(prelude_text(schedule.target, placement.transposed_segments, getattr(schedule, "rows", 0)))
    if isinstance(placement, MatrixPlacement):
        w.raw(header_text("matrices"))
    kernel_writer = _TEXTS[type(placement)](placement, w)
    kernel_writer.write_functions_called_by_kernel()
    in_parts = isinstance(placement, ChannelPlacement) and placement.in_parts
    with block_in_one_translation_unit(w) if in_parts else nullcontext(), w.part("driver"):
        _write_entry_point(w, placement, kernel_writer)
    return w.finish()


_TEXTS: dict[type[Placement], Callable[[Any, Writer], KernelWriter]] = {
    ChannelPlacement: ChannelKernelWriter,
    MatrixPlacement: MatrixKernelWriter,
    BatchPlacement: BatchKernelWriter,
    NodePlacement: NodeKernelWriter,
}


# -- the entry point ---------------------------------------------------------------------------------------------------


def _write_entry_point(w: Writer, p: Placement, kernel_writer: KernelWriter) -> None:
    # sums over rows add in row order inside a block, then in the order of blocks
    finds = any(rule.takes_index for rule in p.rules)
    needed = {"indices": p.rules, "order": finds, "tasks": p.by_element, "paired": p.pair_gradient_size}
    for name in (name for name, yes in needed.items() if yes):
        w.raw(header_text(name))
    with w.block(entry_function_head(bool(p.rules))):
        for slot in p.given:
            w.line(f"const real* const {cpp_slot_name(slot)} = given[{p.call_slots.index(slot)}];")
        for n, operand in enumerate(p.opened):
            w.line(f"real* const d_{operand} = opened[{n}];")
        w.line("int fault = 0;")
        for n, rule in enumerate(p.rules):
            w.line(f"const RowIndex {rule.name} = indices[{n}];")
        for operand in p.opened:
            found = p.rule(operand)
            rows = f"{found.name}.size" if found else "rows"
            if not (operand == "w" and p.sums_weights):
                w.line(f"expect_writes(d_{operand}, {rows} * {p.dim[operand]} * (i64)sizeof(real));")
        _write_index_checks_and_row_sort(w, p)
        if p.pair_gradient_size:
            write_allocation(w, "char", "states", "pair.size + 1")
            w.line("__builtin_memset(states, 0, pair.size);")
        _write_size_and_number_of_row_blocks(w, p)
        _write_allocations_for_shared_weights_and_gradients(w, p, kernel_writer)
        _write_parallel_loop_over_row_blocks(w, p, kernel_writer)
        if p.sums_weights:
            kernel_writer.write_sum_of_weight_gradients_over_blocks()
        w.line("return fault;")


def _write_index_checks_and_row_sort(w: Writer, p: Placement) -> None:
    for n, rule in enumerate(p.rules):
        if rule.takes_index:
            given = f"{rule.name}.at" if p.by_element else f"{rule.name}.how & CHECKED"
            w.line(f"if ({given} && !inside({rule.name}, rows, {rule.name}.size)) return {BEYOND + n};")
    if p.by_element:
        w.line("const i64 elements = element.size;")
    if p.owner:
        owner = p.rule(p.owner)
        assert owner is not None
        w.line(f"const i64 owners = {owner.name}.size;")
        write_allocation(w, "i64", "first", "owners + 1")
        write_allocation(w, "i64", "order", "rows + 1")
        w.line(f"sort_rows({owner.name}, rows, owners, first, order);")


def _write_size_and_number_of_row_blocks(w: Writer, p: Placement) -> None:
    tile = p.row_block_sizes.tile
    if p.sums_weights:
        w.line(f"const i64 room = {p.row_block_sizes.most_blocks};  // blocks that fit into 64 MB of sums")
        w.line(f"const i64 most = room < {MOST_BLOCKS} ? room : {MOST_BLOCKS};")
        w.line(f"const i64 span = ((rows + most - 1) / most + {tile}) / {tile} * {tile};")
    else:
        w.line(f"const i64 span = {p.row_block_sizes.rows_of_block};")
    if p.by_element:
        write_allocation(w, "i64", "tasks", "tasks_size(rows, elements, span)")
        w.line("const Tasks t = make_tasks(tasks, (const i64*)element.at, rows, elements, span);")
        w.line("const i64 blocks = t.count;")
    elif p.owner:
        w.line("const i64 blocks = rows / span + 1;")
    else:
        w.line("const i64 blocks = rows ? (rows + span - 1) / span : 0;")


def _write_allocations_for_shared_weights_and_gradients(w: Writer, p: Placement, kernel_writer: KernelWriter) -> None:
    # shared weights in scratch once; room for each block's part of their gradient
    shared = p.scratch_size_of_shared_weights and not p.by_element
    slots = [slot for slot in p.given if operand_of(slot) == "w" and shared]
    for slot in slots:
        write_allocation(w, "num", weights_area_name(slot), f"{p.scratch_size_of_shared_weights}")
    if slots:
        kernel_writer.write_copy_of_shared_weights_into_scratch()
    if p.sums_weights:
        write_allocation(w, "num", "sums", f"(blocks + 1) * {p.block_sums}")


def _write_parallel_loop_over_row_blocks(w: Writer, p: Placement, kernel_writer: KernelWriter) -> None:
    held, areas = sum(p.scratch.values()), scratch_area_declarations(p.scratch)
    if p.pair_gradient_size:
        areas.append(f"real* const second_w = (real*)(scratch + {held});")
    if "weights" in p.scratch:
        areas.append("i64 held = -1;  // the element whose weights stand there")
    shared, size = f"rows * {p.row_block_sizes.touched}, {WORTH_THREADS}", str(max(held + p.pair_gradient_size, 1))
    with block_for_each_task(w, "blocks", shared, size, areas):
        if p.sums_weights and not p.by_element:
            w.line(f"num* const a_w = sums + b * {p.block_sums}; clear(a_w, {p.block_sums});")
        kernel_writer.write_loop_over_rows_of_block()
