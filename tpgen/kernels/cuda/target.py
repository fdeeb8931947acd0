"""Kernels on CUDA devices as a target: what stands in the way, and from a form with open slots to a call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from tpgen.errors import TpgenError
from tpgen.form.form import Form
from tpgen.kernels.arguments import CallSizes, Edges, Sizes
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda import driver
from tpgen.kernels.cuda.chips import OLDEST, Chip, chip_of
from tpgen.kernels.cuda.choice import graphs_are_faster
from tpgen.kernels.cuda.counts import AnyPlacement
from tpgen.kernels.cuda.cubins import cubin
from tpgen.kernels.cuda.driver import Function, function, need_driver, why_no_driver
from tpgen.kernels.cuda.generate import COLLECT_ENTRY, ENTRY, JOIN_ENTRY, SUM_ENTRY, CudaSource, generate_cuda
from tpgen.kernels.cuda.launch import Collect, EdgeRows, Join, Launch, arguments, blocks_of, edge_rows
from tpgen.kernels.cuda.nvrtc import find_nvrtc, why_no_nvrtc
from tpgen.kernels.cuda.orders import (
    is_inside,
    known_order,
    known_wide,
    recall_inside,
    recall_order,
    recall_wide,
)
from tpgen.kernels.cuda.placement import cuda_target, place_cuda
from tpgen.kernels.cuda.sums import THREADS as SUM_THREADS
from tpgen.kernels.cuda.sums import WeightSum
from tpgen.kernels.cuda.workspace import product_bytes
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.kernels.sweep.terms import SLOTS

_KERNEL = "__global__"  # what begins one in a text
_SIXTEEN = 16  # bytes: what addresses of rows that are copied whole must be multiples of
_SOURCES, _DESTINATIONS = 2, 3  # faults
# The most that a kernel can open at once: where these have room, all others have.
_LARGEST = ((SLOTS, False), (("x1", "x2", "w"), True), (("x2", "w", "out"), True))

Slots = Sequence[Tensor | None]


def missing(device: torch.device) -> str | None:
    """Words for what this machine lacks for kernels on a device."""
    if reason := why_no_driver():
        return reason
    number, there = driver.device_number(device), torch.cuda.device_count()
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
    return chip_of(driver.capability(driver.device_number(device)))


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


def workspace(form: Form, opened: tuple[str, ...], dtype: torch.dtype, sizes: CallSizes) -> int:
    """Bytes that a call of a kernel takes beside operands and results."""
    schedule = plan_schedule(form, cuda_target(DTYPES[dtype]))
    placement = place_cuda(schedule, opened, chip_expected(sizes.device), sizes.ends is not None)
    return product_bytes(placement, sizes.rows, sizes.ends, sizes.int32_indices)


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
class _Built:
    """A kernel for all devices of a capability."""

    source: CudaSource
    code: bytes

    @cached_property
    def library(self) -> ctypes.c_void_p:
        return need_driver().load(self.code)


@dataclass(frozen=True)
class _Loaded:
    """A kernel on one device, whose context is current when it is made."""

    source: CudaSource
    device: int
    main: Function
    sum: Function | None  # of weights that all rows share
    join: Function | None  # of sums over edges
    collect: Function | None  # of what edges have of the rows of nodes
    at_once: int

    @classmethod
    def of(cls, built: _Built, device: int) -> _Loaded:
        """Load it on a device, with the kernels that follow it."""
        p, load = built.source.placement, partial(function, need_driver(), built.library, device)
        main = load(ENTRY, p.threads, p.shared)
        sum_ = load(SUM_ENTRY, SUM_THREADS, _weights(p).shared) if p.sums_weights else None
        join = load(JOIN_ENTRY, p.threads) if p.owner else None
        collect = load(COLLECT_ENTRY, p.threads) if p.scattered else None
        return cls(built.source, device, main, sum_, join, collect, main.at_once() * driver.processors(device))

    @property
    def launch(self) -> Launch:
        """Fields for the runtime in C++."""
        p = self.source.placement
        return Launch(
            context=need_driver().context(self.device).value or 0,
            kernel=self.main.address,
            sum=self.sum.address if self.sum else 0,
            join=self.join.address if self.join else 0,
            at_once=self.at_once,
            rows=p.rows,
            threads=p.threads,
            shared=p.shared,
            number=p.number,
            weights=p.dim["w"] if p.sums_weights else 0,
            sum_threads=SUM_THREADS,
            sum_shared=_weights(p).shared,
            owner=SLOTS.index(p.owner) if p.owner else -1,
            owned=p.dim[p.owner] if p.owner else 0,
        )


def _weights(placement: AnyPlacement) -> WeightSum:
    return WeightSum(placement.dim["w"], placement.number)


class CudaKernel:
    """A form with open slots as a call; compiled for a device when it is first met there."""

    def __init__(self, form: Form, opened: tuple[str, ...], dtype: torch.dtype, indexed: bool) -> None:
        self._made = (form, dtype, opened, indexed)
        self._built: dict[int, _Built] = {}  # by capability
        self._loaded: dict[int, _Loaded] = {}

    def on(self, device: int) -> _Loaded:
        """The kernel on a device.  Raises `BackendError` where it is met there first while a CUDA graph is captured."""
        if device not in self._loaded:
            driver.refuse_while_capturing(device)
            with need_driver().on(device):
                self._loaded[device] = _Loaded.of(self._built_for(driver.capability(device)), device)
        return self._loaded[device]

    def compile(self, like: Tensor) -> None:
        """Compile it for the device of a tensor, ahead of its first call."""
        self._built_for(driver.capability(_device_of([like])))

    def _built_for(self, arch: int) -> _Built:
        if arch not in self._built:
            form, dtype, opened, indexed = self._made
            source = cuda_source(form, dtype, opened, chip_of(arch), indexed)
            self._built[arch] = _Built(source, cubin(source.text, arch))
        return self._built[arch]

    def recall(self, edges: Edges, like: Tensor) -> EdgeRows | None:
        """The edges by owner, where they are known to be in range; none while a CUDA graph is captured, which sorts."""
        device = _device_of([like])
        loaded = None if driver.capturing(device) else self._loaded.get(device)
        return None if loaded is None else _recalled(loaded.source.placement.owner, edges)

    def launch(self, like: Tensor) -> tuple[int, Launch] | None:
        """The device of a tensor, and how the runtime in C++ launches it there; None where that knows not all of it."""
        device = _device_of([like])
        loaded = self.on(device)
        known = sum(f is not None for f in (loaded.main, loaded.sum, loaded.join))
        return (device, loaded.launch) if loaded.source.text.count(_KERNEL) == known else None

    def __call__(
        self,
        given: Sequence[Tensor],
        opened: Sequence[Tensor],
        sizes: Sizes,
        edges: Edges | None = None,
        _index: Tensor | None = None,
    ) -> int:
        """Launch it on the current stream; a fault where edges point nowhere."""
        operands, results = dict(zip(SLOTS, given, strict=False)), dict(zip(self._made[2], opened, strict=True))
        device = _device_of(given)
        loaded = self.on(device)
        placement = loaded.source.placement
        fault, gather = (0, None) if edges is None else _gather(placement.by, edges, device, bool(placement.scattered))
        if fault:
            return fault
        with need_driver().on(device):
            there = [_aligned(operands[slot]) if slot in operands else None for slot in SLOTS]
            _launch(loaded, there, [results.get(slot) for slot in SLOTS], sizes.rows, gather)
        return 0


def _device_of(tensors: Sequence[Tensor]) -> int:
    return tensors[0].get_device()


def _launch(loaded: _Loaded, operands: Slots, results: Slots, rows: int, gather: EdgeRows | None) -> None:
    """The rows; then sums that lie across the ends of runs, those of nodes, and those over all blocks."""
    placement, stream = loaded.source.placement, driver.stream_of(loaded.device)
    blocks = blocks_of(placement, rows, loaded.at_once)
    join, sums = Join(placement, blocks), _sums(loaded, blocks, results)
    ends = join.room(_there(operands[0] if operands[0] is not None else operands[1]).device) if join.needed else None
    scattered = [slot in placement.scattered for slot in SLOTS]
    written = [edge_rows(rows, _there(x)) if yes else x for x, yes in zip(results, scattered, strict=True)]
    call = arguments(operands, written, rows, gather, sums, ends)
    loaded.main.launch(blocks, stream, call)
    if join.needed and loaded.join:
        loaded.join.launch(join.blocks, stream, call, ctypes.c_int(blocks))
    for slot in placement.scattered:
        parts, sums_of = (_there(x[SLOTS.index(slot)]) for x in (written, results))
        assert gather is not None
        collect = Collect(placement, len(sums_of))
        if collect.blocks and loaded.collect:
            loaded.collect.launch(collect.blocks, stream, *collect.arguments(parts, gather, sums_of))
    if sums is not None and loaded.sum:
        d_w = _there(results[SLOTS.index("w")])
        loaded.sum.launch(_weights(placement).blocks, stream, *_sum_arguments(sums, d_w))


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


def _gather(owner: str | None, edges: Edges, device: int, scattered: bool = False) -> tuple[int, EdgeRows | None]:
    """The edges by owner, or the fault of one that points nowhere; a CUDA graph that is captured cannot ask."""
    capturing = driver.capturing(device)
    index, owners = (edges.src, edges.sources) if owner == "x1" else (edges.dst, edges.destinations)
    order = known_order(index, owners, capturing).order if owner else None
    if edges.check and not capturing:
        if not is_inside(edges.src, edges.sources):
            return _SOURCES, None
        if not is_inside(edges.dst, edges.destinations):
            return _DESTINATIONS, None
    src, dst = (known_wide(end, capturing) for end in (edges.src, edges.dst))
    collected = known_order(edges.src, edges.sources, capturing) if scattered else None
    return 0, EdgeRows(order, src, dst, owners if owner else 0, owner, collected)


def _recalled(owner: str | None, edges: Edges) -> EdgeRows | None:
    """Recall what `_gather` has found of edges."""
    ends = (edges.src, edges.sources), (edges.dst, edges.destinations)
    if edges.check and not all(recall_inside(*end) for end in ends):
        return None
    index, owners = ends[owner != "x1"]
    order = recall_order(index, owners) if owner else None
    src, dst = recall_wide(edges.src), recall_wide(edges.dst)
    if src is None or dst is None or (owner and order is None):
        return None
    return EdgeRows(order and order.order, src, dst, owners if owner else 0, owner)
