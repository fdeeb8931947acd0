"""Kernels on CUDA devices as a target: what stands in the way, and from a form with open slots to a call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tpgen.errors import TpgenError
from tpgen.form.form import Form
from tpgen.kernels.cuda import driver
from tpgen.kernels.cuda.chips import OLDEST, Chip, chip_of
from tpgen.kernels.cuda.choice import graphs_are_faster
from tpgen.kernels.cuda.cubins import cubin
from tpgen.kernels.cuda.driver import Function, function, need_driver, why_no_driver
from tpgen.kernels.cuda.generate import ENTRY, SUM_ENTRY, CudaSource, generate_cuda
from tpgen.kernels.cuda.launch import Gather, arguments, blocks_of
from tpgen.kernels.cuda.nvrtc import find_nvrtc, why_no_nvrtc
from tpgen.kernels.cuda.orders import is_inside, known_order, known_wide
from tpgen.kernels.cuda.parts import Parts, known_parts
from tpgen.kernels.cuda.placement import cuda_target, place_cuda
from tpgen.kernels.cuda.sums import THREADS as SUM_THREADS
from tpgen.kernels.cuda.sums import WeightSum
from tpgen.kernels.cuda.workspace import product_bytes
from tpgen.kernels.libraries.compiler import DTYPES
from tpgen.kernels.operators.amounts import Amounts
from tpgen.kernels.operators.edges import Edges
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.kernels.sweep.terms import SLOTS

_SIXTEEN = 16  # bytes: what addresses of rows that are copied whole must be multiples of
_SOURCES, _DESTINATIONS = 2, 3  # faults
# The most that a kernel can open at once: where these have room, all others have.
_LARGEST = ((SLOTS, False), (("x1", "x2", "w"), True), (("x2", "w", "out"), True))

Slots = Sequence[Tensor | None]


def missing(device: torch.device) -> str | None:
    """What this machine lacks for kernels on a device."""
    if reason := why_no_driver():
        return reason
    number, there = driver.number_of(device), torch.cuda.device_count()
    if number >= there:
        return f"there is no cuda:{number}, only cuda:0{f' to cuda:{there - 1}' if there > 1 else ''}"
    arch = driver.capability(number)
    if arch < OLDEST:
        return f"kernels need a GPU of compute capability {OLDEST / 10} or later, and cuda:{number} has {arch / 10}"
    if find_nvrtc(arch, cuda := driver.cuda_taken()) is None:
        return f"kernels on a GPU need NVRTC, and {why_no_nvrtc(arch, cuda)}"
    return None


def chip_at(device: torch.device) -> Chip:
    """The chip of a device that is there."""
    return chip_of(driver.capability(driver.number_of(device)))


def obstacle(form: Form, dtype: torch.dtype, chip: Chip) -> str | None:
    """Why a product has no kernel on a chip."""
    try:
        schedule = plan_schedule(form, cuda_target(DTYPES[dtype]))
        for opened, indexed in _LARGEST:
            place_cuda(schedule, opened, chip, indexed)
    except TpgenError as error:
        return str(error)
    return None


def chip_expected(device: torch.device) -> Chip:
    """The chip of a device, and where none is there an H200."""
    return chip_at(device) if torch.cuda.is_available() else chip_of(90)


def workspace(form: Form, opened: tuple[str, ...], dtype: torch.dtype, amounts: Amounts) -> int:
    """Bytes that a call of a kernel takes beside operands and results."""
    schedule = plan_schedule(form, cuda_target(DTYPES[dtype]))
    placement = place_cuda(schedule, opened, chip_expected(amounts.device), amounts.ends is not None)
    return product_bytes(placement, amounts.rows, amounts.owners(placement.owner), amounts.narrow)


def slower(form: Form, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why graphs are faster on a device."""
    return graphs_are_faster(form, DTYPES[dtype], chip_at(device))


def cuda_source(form: Form, dtype: torch.dtype, opened: tuple[str, ...], chip: Chip, indexed: bool) -> CudaSource:
    """The source of a kernel that opens some slots.

    Raises `EmitError` for products without one, and where a row does not fit.
    """
    schedule = plan_schedule(form, cuda_target(DTYPES[dtype]))
    return generate_cuda(schedule, opened, chip, indexed)


@dataclass(frozen=True)
class _Loaded:
    """A kernel on one device."""

    source: CudaSource
    device: int

    @cached_property
    def _module(self) -> ctypes.c_void_p:
        return need_driver().load(cubin(self.source.text, driver.capability(self.device)))

    @cached_property
    def main(self) -> Function:
        p = self.source.placement
        return function(need_driver(), self._module, ENTRY, p.threads, p.shared)

    @cached_property
    def sum(self) -> Function:
        return function(need_driver(), self._module, SUM_ENTRY, SUM_THREADS, self.weights.shared)

    @property
    def weights(self) -> WeightSum:
        placement = self.source.placement
        return WeightSum(placement.dim["w"], placement.number)

    @cached_property
    def at_once(self) -> int:
        return self.main.at_once() * driver.processors(self.device)


class CudaKernel:
    """A form with open slots as a call; compiled for a device when it is first met there."""

    def __init__(self, form: Form, opened: tuple[str, ...], dtype: torch.dtype, indexed: bool) -> None:
        self._made = (form, dtype, opened, indexed)
        self._loaded: dict[int, _Loaded] = {}

    def on(self, device: int) -> _Loaded:
        """The kernel on a device."""
        if device not in self._loaded:
            form, dtype, opened, indexed = self._made
            source = cuda_source(form, dtype, opened, chip_of(driver.capability(device)), indexed)
            self._loaded[device] = _Loaded(source, device)
        return self._loaded[device]

    def __call__(self, operands: Slots, results: Slots, rows: int, edges: Edges | None) -> int:
        """Launch it on the current stream; a fault where edges point nowhere."""
        device = _device_of([*operands, *results])
        loaded = self.on(device)
        fault, gather = (0, None) if edges is None else _gather(loaded.source.placement.owner, edges, device)
        if fault:
            return fault
        with need_driver().on(device):
            given = [x if x is None else _aligned(x) for x in operands]
            _launch(loaded, given, results, rows, gather)
        return 0


def _device_of(tensors: Slots) -> int:
    return next(x.get_device() for x in tensors if x is not None)


def _launch(loaded: _Loaded, operands: Slots, results: Slots, rows: int, gather: Gather | None) -> None:
    """The rows, where some owners are long in two runs; then the sums of parts of these, and those over all blocks."""
    placement, stream = loaded.source.placement, driver.stream_of(loaded.device)
    parts = gather.parts if gather else None
    runs = [(gather, results)] if not (gather and parts) else _runs(placement.owner, gather, parts, results)
    blocks = [blocks_of(placement, rows, by.owners if by else 0, loaded.at_once) for by, _ in runs]
    sums = _sums(loaded, sum(blocks), results)
    for n, (by, held) in enumerate(runs):
        mine = None if sums is None else sums[sum(blocks[:n]) :]
        loaded.main.launch(blocks[n], stream, arguments(operands, held, rows, by, mine))
    if parts:
        at = SLOTS.index(placement.owner)
        _there(results[at]).index_copy_(0, parts.long, parts.add(_there(runs[1][1][at])))
    if sums is not None:
        d_w = _there(results[SLOTS.index("w")])
        loaded.sum.launch(loaded.weights.blocks, stream, *_sum_arguments(sums, d_w))


def _runs(owner: str | None, gather: Gather, parts: Parts, results: Slots) -> list[tuple[Gather | None, Slots]]:
    """What is launched where some owners are long: the others, and the parts of these as owners, with their sums."""
    ordered, at = replace(gather, order=parts.order, parts=None), SLOTS.index(owner)
    sums = _there(results[at]).new_empty(parts.count, _there(results[at]).shape[-1])
    whole, cut = replace(ordered, first=parts.first), replace(ordered, first=parts.begins, owners=parts.count)
    return [(whole, results), (cut, [*results[:at], sums, *results[at + 1 :]])]


def _there(x: Tensor | None) -> Tensor:
    assert x is not None
    return x


def _sums(loaded: _Loaded, blocks: int, results: Slots) -> Tensor | None:
    """Room for each block's part of the gradient of weights that all rows share."""
    d_w = results[SLOTS.index("w")]
    if d_w is None or not loaded.source.placement.sums_weights or not d_w.numel():
        return None
    dtype = torch.float32 if d_w.dtype == torch.bfloat16 else d_w.dtype
    return torch.empty(blocks, d_w.numel(), dtype=dtype, device=d_w.device)


def _sum_arguments(sums: Tensor, d_w: Tensor) -> tuple:
    return ctypes.c_void_p(sums.data_ptr()), ctypes.c_void_p(d_w.data_ptr()), ctypes.c_int(len(sums))


def _aligned(x: Tensor) -> Tensor:
    """Rows where copies of whole ones can find them: a slice of another tensor may begin anywhere."""
    return x if x.data_ptr() % _SIXTEEN == 0 else x.clone()


def _gather(owner: str | None, edges: Edges, device: int) -> tuple[int, Gather | None]:
    """The edges by owner, or the fault of one that points nowhere; a CUDA graph that is captured cannot ask."""
    capturing = driver.capturing(device)
    index, owners = (edges.src, edges.sources) if owner == "x1" else (edges.dst, edges.destinations)
    order = known_order(index, owners, capturing) if owner else None
    if edges.check and not capturing:
        if not is_inside(edges.src, edges.sources):
            return _SOURCES, None
        if not is_inside(edges.dst, edges.destinations):
            return _DESTINATIONS, None
    src, dst = (known_wide(end, capturing) for end in (edges.src, edges.dst))
    if order is None:
        return 0, Gather(None, None, src, dst, 0)
    # To ask how many edges the longest owner has waits for the device.
    parts = None if capturing else known_parts(index, owners, order, driver.processors(device))
    return 0, Gather(order.first, order.order, src, dst, owners, parts)
