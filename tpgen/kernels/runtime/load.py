"""A call of a form made something to call: its text compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tpgen.base.locks import no_collection
from tpgen.kernels.arguments import CallSizes, KernelCall, KernelSpec, Sizes
from tpgen.kernels.build import build
from tpgen.kernels.placement.blocks import MOST_BLOCKS
from tpgen.kernels.placement.place import Placement
from tpgen.kernels.sweep.terms import SLOTS

_INDEX = torch.int64.itemsize  # tasks and the order of rows are int64
_ACCUMULATED = torch.float32.itemsize  # bfloat16 is stored only: sums and scratch of it are float32


# -- compiled C++ ------------------------------------------------------------------------------------------------------


class CompiledKernel:
    """A compiled function, with its address where it stands in a library: there the runtime can call it.

    Without levels it takes the tensors of a product one by one, null where there is none; at levels or with weights of
    elements as two arrays.
    """

    def __init__(self, spec: KernelSpec) -> None:
        self._function: Callable[..., int] = build.load_kernel(source_of(spec).text, spec.indexed)
        self.address = build.address_of(self._function)
        one_by_one = spec.description.mask(spec.call) > 0
        self._places = [SLOTS.index(slot.operand) for slot in spec.call.opened] if one_by_one else None

    def __call__(self, call: KernelCall) -> int:
        given, opened, sizes, edges, index = call
        if self._places is not None:
            places = [0] * (2 * len(SLOTS))
            for n, x in enumerate(given):
                places[n] = x.data_ptr()
            for n, x in zip(self._places, opened, strict=True):
                places[len(SLOTS) + n] = x.data_ptr()
        else:
            arrays = _pointers(given), _pointers(opened), (ctypes.c_int64 * 2)(sizes.elements, sizes.channels)
            array, to, counts = map(ctypes.addressof, arrays)
            places = [array, to, 0 if index is None else index.data_ptr(), counts, 0, 0, 0, 0]
        if edges is None:
            return self._function(*places, sizes.rows)
        indices = edges.src.data_ptr(), edges.dst.data_ptr()
        return self._function(*places, sizes.rows, *indices, edges.sources, edges.destinations, edges.how)


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*[x.data_ptr() for x in tensors])


def source_of(spec: KernelSpec) -> Any:
    """The C++ source of a kernel, for the vectors of this machine."""
    with no_collection():
        return spec.description.source(spec.call, spec.dtype, spec.indexed)


# -- bytes of a call on the CPU, beside operands and results -----------------------------------------------------------


def product_bytes(spec: KernelSpec, sizes: CallSizes) -> int:
    """Count the bytes of a product's kernel: scratch of its threads, the order of edges, and sums of weights."""
    placed = spec.description.placement(spec.call, spec.dtype, spec.indexed)
    rows, number, owners = sizes.counts.rows, max(4, spec.dtype.itemsize), sizes.owners(placed.owner)
    order = (owners + 1 + rows + 1) * _INDEX if placed.owner else 0
    if placed.by_element:
        order = _tasks(sizes.counts, _span(placed, rows))
    scratch = max(sum(placed.scratch.values()) + placed.second_weights, 1) * torch.get_num_threads()
    order += rows * bool(placed.second_weights)  # a state for each row of weights
    weights = placed.weight_scratch if "w" in placed.given and not placed.by_element else 0
    blocks = rows // _span(placed, rows) + 2 + sizes.counts.elements * placed.by_element
    sums = blocks * max(placed.weight_scratch, placed.schedule.target.lanes) * placed.sums_weights
    return order + (scratch + weights + sums) * number


def _span(placed: Placement, rows: int) -> int:
    """Count the rows of a block, as the kernel cuts them."""
    if not placed.sums_weights:
        return placed.blocks.span
    most, tile = min(placed.blocks.room, MOST_BLOCKS), placed.blocks.tile
    return ((rows + most - 1) // most + tile) // tile * tile


def _tasks(counts: Sizes, span: int) -> int:
    """Bytes of lists of tasks: rows by element, cut into spans where there is one."""
    most = counts.elements + (counts.rows // span if span else 0) + 1
    return (counts.elements + 1 + counts.rows + 2 * most) * _INDEX


def polynomial_bytes(spec: KernelSpec, sizes: CallSizes) -> int:
    """Count the bytes of a polynomial's kernel.

    Lists of tasks (rows by element, cut into spans), sums that are stored when all tasks are done, scratch of threads.
    """
    placed = spec.description.placement(spec.call, spec.dtype)
    sums = sum(sizes.counts.rows * placed.operands[slot].dim for slot in placed.summed)
    scratch = max(1, sum(placed.scratch.values())) * placed.target.lanes * torch.get_num_threads()
    return _tasks(sizes.counts, placed.span) + (sums + scratch) * max(_ACCUMULATED, spec.dtype.itemsize)
