"""Launches of a call's kernels."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.base.locks import cached_property
from tpgen.kernels.arguments import CallSizes
from tpgen.kernels.cuda.chips import LANES
from tpgen.kernels.cuda.groups import next_power_of_two
from tpgen.kernels.cuda.orders import SortedRows
from tpgen.kernels.cuda.placement import AnyPlacement
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.cuda.polynomial_text import COUNT_ARGUMENTS
from tpgen.kernels.cuda.prelude import CHANNELS_ENTRY, COLLECT_ENTRY, ENTRY, JOIN_ENTRY, SUM_ENTRY
from tpgen.kernels.rows import GROUPED, NARROW
from tpgen.kernels.sweep.terms import SLOTS

SPAN = 64  # rows of a warp in one task, at most
_INDEX = torch.int64.itemsize
# Numbers of each key while those of all ends are sorted: keys and places, each before, after and in torch's own room.
_SORTED = 6
LaunchTensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class EdgeIndices:
    """Index tensors of a convolution's edges: sources, destinations, order by owner."""

    order: Tensor | None  # None: as they stand
    src: Tensor
    dst: Tensor
    owners: int
    collected: SortedRows | None = None  # in which what is scattered is added up


class KernelLaunch(NamedTuple):
    """One launch: kernel, blocks, arguments."""

    entry: str
    blocks: int
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Launches(ABC):
    """Kernel launches of a call, sized for a device."""

    placement: Any
    sizes: CallSizes
    concurrent_blocks: int

    @abstractmethod
    def scratch_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of scratch tensors for partial sums, by name."""

    @abstractmethod
    def list_launches(
        self, inputs: LaunchTensors, outputs: LaunchTensors, scratch: LaunchTensors, order: Any
    ) -> list[KernelLaunch]:
        """List the launches for tensors by slot, scratch by name, and an order of rows."""

    def allocate_scratch(self, device: torch.device | str) -> dict[str, Tensor]:
        """Allocate the scratch tensors, in the precision of registers."""
        number = torch.float64 if self.placement.number == torch.float64.itemsize else torch.float32
        return {name: torch.empty(shape, dtype=number, device=device) for name, shape in self.scratch_shapes().items()}


class ProductLaunches(Launches):
    """Launches of a product: the main kernel, then kernels that add partial sums."""

    @property
    def runs(self) -> int:
        """Blocks of the row kernel; at least one."""
        return max(1, min(-(-self.sizes.rows // self.placement.rows), self.concurrent_blocks))

    def scratch_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name: each block's weight gradients, and sums of the first and last nodes."""
        p = self.placement
        found = {"sums": (self.runs, p.dim["w"])} if p.sums_weights and p.dim["w"] else {}
        return found | ({"ends": (2 * self.runs, p.dim[p.owner])} if p.owner and self.runs > 1 else {})

    def allocate_scratch(self, device: torch.device | str) -> dict[str, Tensor]:
        """Allocate scratch tensors, and results by edge for a later sum."""
        # besides partial sums, gradients per edge that a kernel adds per node
        p, dtype = self.placement, getattr(torch, self.placement.dtype)
        parts = {f"d_{o}": torch.empty(self.sizes.rows, p.dim[o], dtype=dtype, device=device) for o in p.scattered}
        return super().allocate_scratch(device) | parts

    def list_launches(
        self, inputs: LaunchTensors, outputs: LaunchTensors, scratch: LaunchTensors, order: EdgeIndices | None
    ) -> list[KernelLaunch]:
        """List the kernel's launch, and launches that sum partial results."""
        p, runs = self.placement, ctypes.c_int(self.runs)
        struct = self._pack_call_struct(inputs, outputs, scratch, order)
        found = [KernelLaunch(ENTRY, self.runs, (struct,))]
        if "ends" in scratch:
            found.append(KernelLaunch(JOIN_ENTRY, self.runs * self._blocks_per_row(p.owner), (struct, runs)))
        if order and order.collected:
            for slot in p.scattered:
                pointers = _pack_addresses(scratch[f"d_{slot}"], *order.collected[:2], outputs[slot])
                found.append(KernelLaunch(COLLECT_ENTRY, len(outputs[slot]) * self._blocks_per_row(slot), pointers))
        if "sums" in scratch:
            blocks = -(-p.dim["w"] // LANES)
            found.append(KernelLaunch(SUM_ENTRY, blocks, (*_pack_addresses(scratch["sums"], outputs["w"]), runs)))
        return [one for one in found if one.blocks]

    def _blocks_per_row(self, slot: str) -> int:
        # one thread per number of a row
        return -(-self.placement.dim[slot] // self.placement.threads)

    def _pack_call_struct(
        self, inputs: LaunchTensors, outputs: LaunchTensors, scratch: LaunchTensors, order: EdgeIndices | None
    ) -> ctypes.Array:
        written = [scratch.get(f"d_{slot}", outputs.get(slot)) for slot in SLOTS]
        edges = (None, None, None) if order is None else (order.order, order.src, order.dst)
        sums = [scratch.get(name) for name in ("sums", "ends")]
        owners = order.owners if order else 0
        return _pack_fields(*map(inputs.get, SLOTS), *written, self.sizes.rows, owners, *edges, *sums)


class PolynomialLaunches(Launches):
    """Launches of a polynomial: tasks (rows of one element), then sums over tasks."""

    placement: CudaPolynomialPlacement

    @property
    def width(self) -> int:
        """Lanes of one row."""
        return min(LANES, next_power_of_two(self.sizes.channels))

    @property
    def chunks(self) -> int:
        return -(-self.sizes.channels // self.width)

    @cached_property
    def rows_per_task(self) -> int:
        """Rows of a task such that blocks fill whole waves."""
        together, elements = self.placement.warps * LANES // self.width, self.sizes.elements
        fewest = self.sizes.rows // (together * SPAN) + elements + 1
        waves = -(-fewest * self.chunks // self.concurrent_blocks)
        full = waves * self.concurrent_blocks // self.chunks - elements
        return together * max(1, -(-self.sizes.rows // (together * full)))

    @property
    def tasks(self) -> int:
        """Upper bound of tasks."""
        return self.sizes.rows // self.rows_per_task + self.sizes.elements

    @property
    def blocks_by_kernel(self) -> dict[str, int]:
        """Blocks of each kernel, in launch order."""
        p, sizes = self.placement, self.sizes
        widest = max((p.operands[s].dim for s in p.channel_sums), default=0)
        found = {
            ENTRY: self.tasks * self.chunks,
            SUM_ENTRY: sizes.elements * -(-sizes.channels // LANES),
            CHANNELS_ENTRY: -(-sizes.rows * widest // p.threads),
        }
        return {name: found[name] for name in p.block_sizes_by_kernel}

    def scratch_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by name: weight gradients of tasks, and channel sums."""
        p, sizes = self.placement, self.sizes
        # a tensor may have any name of one word, "sums" as well
        channels = {f"channels of {slot}": (self.chunks, sizes.rows, p.operands[slot].dim) for slot in p.channel_sums}
        return {"sums of tasks": (self.tasks, p.warp_gradients, sizes.channels), **channels}

    def list_launches(
        self, inputs: LaunchTensors, outputs: LaunchTensors, scratch: LaunchTensors, order: SortedRows | None
    ) -> list[KernelLaunch]:
        """List one launch per kernel, with the same arguments."""
        sizes = self.sizes
        known = {"rows": sizes.rows, "elements": sizes.elements, "channels": sizes.channels}
        known |= {"width": self.width, "span": self.rows_per_task}
        rows = order[:2] if order else (None, None)
        tensors = (*inputs.values(), *outputs.values(), *scratch.values(), *rows)
        struct = _pack_fields(*tensors, *(known[name] for name in COUNT_ARGUMENTS))
        return [KernelLaunch(name, blocks, (struct,)) for name, blocks in self.blocks_by_kernel.items()]


def plan_launches(
    placement: AnyPlacement | CudaPolynomialPlacement, sizes: CallSizes, concurrent_blocks: int = 0
) -> Launches:
    """`Launches` of a call; ``concurrent_blocks`` 0: estimate from the chip."""
    kind = PolynomialLaunches if isinstance(placement, CudaPolynomialPlacement) else ProductLaunches
    return kind(
        placement, sizes, concurrent_blocks or placement.max_blocks_per_multiprocessor * placement.chip.processors
    )


def _pack_fields(*fields: Tensor | int | None) -> ctypes.Array:
    # pointers and counts take eight bytes each; null where there is no tensor
    return (ctypes.c_int64 * len(fields))(*(x if isinstance(x, int) else _address_or_null(x) for x in fields))


def _pack_addresses(*tensors: Tensor) -> tuple[ctypes.c_void_p, ...]:
    return tuple(ctypes.c_void_p(_address_or_null(x)) for x in tensors)


def _address_or_null(tensor: Tensor | None) -> int:
    return 0 if tensor is None or not tensor.numel() else tensor.data_ptr()


# -- bytes beside operands and results ---------------------------------------------------------------------------------


def count_workspace_bytes(placement: AnyPlacement | CudaPolynomialPlacement, sizes: CallSizes) -> int:
    """Scratch bytes of a call: partial sums, orders of rows, int64 copies of int32 indices.

    >>> from tpgen.form.form import form_of
    >>> from tpgen.kernels.cuda.chips import chip_of
    >>> from tpgen.kernels.cuda.placement import place_form
    >>> from tpgen.planner.problems import find_problem
    >>> placement = place_form(form_of(find_problem("mace-large").plan), "float32", ("out",), chip_of(90))
    >>> count_workspace_bytes(placement, CallSizes(torch.device("cuda"), 40_000))
    0
    """
    parts = sum(x.nbytes for x in plan_launches(placement, sizes).allocate_scratch("meta").values())
    grouped = [x.size for x in sizes.indices if x.rule.way == GROUPED and x.tensor is not None]
    narrow = sum(x.flags & NARROW > 0 for x in sizes.indices)
    owners = [*map(sizes.count_summed_rows, placement.sorted_by), *grouped]
    return count_peak_sort_bytes(sizes.rows, owners, parts) + narrow * sizes.rows * _INDEX


def count_peak_sort_bytes(rows: int, owners: Sequence[int], other_bytes: int) -> int:
    """Peak bytes of sorted rows: while sorting, or afterwards, beside ``other_bytes``."""
    kept = [rows + n + 1 for n in owners]
    making = _SORTED * rows * len(kept)
    return max(sum(kept) * _INDEX + other_bytes, making * _INDEX)
