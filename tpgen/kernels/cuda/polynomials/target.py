"""Polynomials on CUDA devices: what stands in the way, and from a sweep to a call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tpgen.kernels.arguments import CallSizes, Edges, Sizes
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda import driver
from tpgen.kernels.cuda.chips import Chip, chip_of
from tpgen.kernels.cuda.cubins import cubin
from tpgen.kernels.cuda.driver import Function, function, need_driver
from tpgen.kernels.cuda.generate import ENTRY, SUM_ENTRY
from tpgen.kernels.cuda.groups import LANES
from tpgen.kernels.cuda.orders import Order, is_inside, known_order, recall_inside, recall_order
from tpgen.kernels.cuda.polynomials.generate import CHANNELS_ENTRY, CudaPolynomialSource, generate_polynomial
from tpgen.kernels.cuda.polynomials.launch import SPAN, FormLaunch, Geometry, call_struct, polynomial_bytes
from tpgen.kernels.cuda.polynomials.model import geometry_expected
from tpgen.kernels.cuda.polynomials.placement import place_polynomial, why_no_room
from tpgen.kernels.cuda.target import chip_expected
from tpgen.kernels.sweep.monomials import PolynomialSweep
from tpgen.planner.plan import Plan

_ELEMENTS = 2  # the fault of an index out of range


def obstacle(plan: Plan, forward: PolynomialSweep, dtype: torch.dtype, chip: Chip) -> str | None:
    """Why a polynomial has no kernel on a chip."""
    return why_no_room(plan, forward, DTYPES[dtype], chip)


def workspace(plan: Plan, sweep: PolynomialSweep, dtype: torch.dtype, sizes: CallSizes) -> int:
    """Bytes that a call takes beside operands and results."""
    placement = place_polynomial(plan, sweep, DTYPES[dtype], chip_expected(sizes.device))
    return polynomial_bytes(geometry_expected(placement, sizes.counts), dtype, sizes.by_element)


@dataclass(frozen=True)
class _Built:
    """The kernels of a call for all devices of a capability."""

    source: CudaPolynomialSource
    code: bytes

    @cached_property
    def library(self) -> ctypes.c_void_p:
        return need_driver().load(self.code)


@dataclass(frozen=True)
class _Loaded:
    """The kernels of a call on one device, whose context is current when they are loaded."""

    source: CudaPolynomialSource
    device: int
    rows: Function
    weights: Function | None
    channels: Function | None
    at_once: int

    @classmethod
    def of(cls, built: _Built, device: int) -> _Loaded:
        """Load them on a device."""
        p = built.source.placement

        def load(name: str, shared: int = 0) -> Function:
            return function(need_driver(), built.library, device, name, p.threads, shared)

        rows = load(ENTRY, p.shared)
        weights = load(SUM_ENTRY, p.added * p.lane_bytes) if p.folded else None
        channels = load(CHANNELS_ENTRY) if p.summed else None
        return cls(built.source, device, rows, weights, channels, rows.at_once() * driver.processors(device))

    @property
    def launch(self) -> FormLaunch:
        """Fields for the runtime in C++."""
        p = self.source.placement
        return FormLaunch(
            context=need_driver().context(self.device).value or 0,
            rows=self.rows.address,
            weights=self.weights.address if self.weights else 0,
            channels=self.channels.address if self.channels else 0,
            at_once=self.at_once,
            threads=p.threads,
            shared=p.shared,
            weights_shared=self.weights.shared if self.weights else 0,
            number=p.lane_bytes // LANES,
            added=p.added,
            most_rounds=SPAN,
            dims=tuple(p.operands[s].dim for s in p.summed),
        )


class CudaPolynomialKernel:
    """A call of a polynomial; compiled for a device when it is first met there."""

    def __init__(self, plan: Plan, sweep: PolynomialSweep, dtype: torch.dtype) -> None:
        self._made = (plan, sweep, DTYPES[dtype])
        self._built: dict[int, _Built] = {}  # by capability
        self._loaded: dict[int, _Loaded] = {}

    def on(self, device: int) -> _Loaded:
        """The kernels on a device.

        Raises `BackendError` where they are met there first while a CUDA graph is captured.
        """
        if device not in self._loaded:
            driver.refuse_while_capturing(device)
            with need_driver().on(device):
                self._loaded[device] = _Loaded.of(self._built_for(driver.capability(device)), device)
        return self._loaded[device]

    def launch(self, like: Tensor) -> tuple[int, list[int]]:
        """The device of a tensor, and how the runtime in C++ launches them there."""
        device = _device_of([like])
        return device, self.on(device).launch.fields

    def recall(self, index: Tensor, elements: int, like: Tensor) -> Order | None:
        """The order of rows that is known of an index in range; none while a CUDA graph is captured, which sorts."""
        if driver.capturing(_device_of([like])) or not recall_inside(index, elements):
            return None
        return recall_order(index, elements)

    def compile(self, like: Tensor) -> None:
        """Compile it for the device of a tensor, ahead of its first call."""
        self._built_for(driver.capability(_device_of([like])))

    def _built_for(self, arch: int) -> _Built:
        if arch not in self._built:
            source = generate_polynomial(*self._made, chip_of(arch))
            self._built[arch] = _Built(source, cubin(source.text, arch))
        return self._built[arch]

    def __call__(
        self,
        given: Sequence[Tensor],
        opened: Sequence[Tensor],
        sizes: Sizes,
        _edges: Edges | None = None,
        index: Tensor | None = None,
    ) -> int:
        """Launch them on the current stream; a fault where the index points nowhere."""
        if not sizes.rows:
            for x in opened:
                x.zero_()
            return 0
        loaded = self.on(_device_of(given))
        capturing = driver.capturing(loaded.device)
        order = None if index is None else known_order(index, sizes.elements, capturing)
        if index is not None and not capturing and not is_inside(index, sizes.elements):
            return _ELEMENTS
        with need_driver().on(loaded.device):
            _launch(loaded, given, opened, order, sizes)
        return 0


def _device_of(tensors: Sequence[Tensor]) -> int:
    return tensors[0].get_device()


def _launch(
    loaded: _Loaded, given: Sequence[Tensor], opened: Sequence[Tensor], order: Order | None, sizes: Sizes
) -> None:
    stream, geometry = driver.stream_of(loaded.device), Geometry(loaded.source.placement, sizes, loaded.at_once)
    scratch = geometry.scratch(given[0].dtype, given[0].device)
    call = call_struct(geometry, given, opened, scratch, order)
    loaded.rows.launch(geometry.blocks, stream, call)
    if loaded.weights:
        loaded.weights.launch(geometry.blocks_of_weights, stream, call)
    if loaded.channels:
        loaded.channels.launch(geometry.blocks_of_channels, stream, call)
