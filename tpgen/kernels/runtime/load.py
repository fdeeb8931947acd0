"""Compiled C++ kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tpgen.base.locks import without_garbage_collection
from tpgen.kernels.arguments import CallSizes, KernelCall, KernelSpec
from tpgen.kernels.build import build
from tpgen.kernels.cpp.text import GeneratedSource
from tpgen.kernels.placement.planning import Placement
from tpgen.kernels.placement.values import MOST_BLOCKS
from tpgen.kernels.rows import RowIndex

_INDEX = torch.int64.itemsize  # tasks and the order of rows are int64
_ACCUMULATED = torch.float32.itemsize  # bfloat16 is stored only: sums and scratch of it are float32


# -- compiled C++ ------------------------------------------------------------------------------------------------------


class _RowIndexStruct(ctypes.Structure):
    """ctypes mirror of the kernels' ``struct RowIndex``."""

    _fields_ = (("at", ctypes.c_void_p), ("size", ctypes.c_int64), ("how", ctypes.c_int64))


class CompiledKernel:
    """A compiled and loaded C++ kernel, called with tensors."""

    def __init__(self, spec: KernelSpec) -> None:
        self._function: Callable[..., int] = build.load_kernel(generate_kernel_source(spec).text)
        self.address = build.get_function_address(self._function)

    def __call__(self, call: KernelCall) -> int:
        """Run the kernel; return a fault, or 0."""
        arrays = _make_address_array(call.given), _make_address_array(call.opened), _index_structs(call.indices)
        return self._function(*map(ctypes.addressof, arrays), call.rows, call.channels)


def _make_address_array(tensors: Sequence[Tensor]) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*[x.data_ptr() for x in tensors])


def _index_structs(indices: Sequence[RowIndex]) -> ctypes.Array:
    fields = [(0 if x.tensor is None else x.tensor.data_ptr(), x.size, x.flags) for x in indices]
    return (_RowIndexStruct * len(fields))(*[_RowIndexStruct(*one) for one in fields])


def generate_kernel_source(spec: KernelSpec) -> GeneratedSource:
    """Generate the C++ source of a kernel."""
    with without_garbage_collection():
        source: GeneratedSource = spec.description.source(spec.call, spec.dtype, spec.rules)
    return source


# -- bytes of a call on the CPU, beside operands and results -----------------------------------------------------------


def count_product_scratch_bytes(spec: KernelSpec, sizes: CallSizes) -> int:
    """Scratch bytes of a product kernel."""
    placed = spec.description.placement(spec.call, spec.dtype, spec.rules)
    rows, number, owners = sizes.rows, max(4, spec.dtype.itemsize), sizes.count_summed_rows(placed.owner)
    order = (owners + 1 + rows + 1) * _INDEX if placed.owner else 0
    if placed.by_element:
        order = _count_task_list_bytes(sizes, _count_rows_per_block(placed, rows))
    scratch = max(sum(placed.scratch.values()) + placed.pair_gradient_size, 1) * torch.get_num_threads()
    order += rows * bool(placed.pair_gradient_size)  # a state for each row of weights
    weights = placed.scratch_size_of_shared_weights if "w" in placed.given and not placed.by_element else 0
    blocks = rows // _count_rows_per_block(placed, rows) + 2 + sizes.elements * placed.by_element
    sums = blocks * max(placed.scratch_size_of_shared_weights, placed.schedule.target.lanes) * placed.sums_weights
    return order + (scratch + weights + sums) * number


def _count_rows_per_block(placement: Placement, rows: int) -> int:
    if not placement.sums_weights:
        return placement.row_block_sizes.rows_of_block
    most, tile = min(placement.row_block_sizes.most_blocks, MOST_BLOCKS), placement.row_block_sizes.tile
    return ((rows + most - 1) // most + tile) // tile * tile


def _count_task_list_bytes(sizes: CallSizes, rows_per_task: int) -> int:
    # rows by element, cut into tasks
    most = sizes.elements + (sizes.rows // rows_per_task if rows_per_task else 0) + 1
    return (sizes.elements + 1 + sizes.rows + 2 * most) * _INDEX


def count_polynomial_scratch_bytes(spec: KernelSpec, sizes: CallSizes) -> int:
    """Scratch bytes of a polynomial kernel."""
    placed = spec.description.placement(spec.call, spec.dtype)
    sums = sum(sizes.rows * placed.operands[slot].dim for slot in placed.channel_sums)
    scratch = max(1, sum(placed.scratch.values())) * placed.target.lanes * torch.get_num_threads()
    return _count_task_list_bytes(sizes, placed.span) + (sums + scratch) * max(_ACCUMULATED, spec.dtype.itemsize)
