"""Arguments of a kernel: one structure of pointers and counts, and how many blocks there are."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tpgen.kernels.cuda.orders import Order
from tpgen.kernels.cuda.steps import RowSteps


@dataclass(frozen=True)
class EdgeRows:
    """The edges of a convolution: those of each owner together, where there are owners, and which rows they join."""

    order: Tensor | None  # None: as they stand
    src: Tensor
    dst: Tensor
    owners: int
    owner: str | None = None
    collected: Order | None = None  # in which what is scattered is added up


def arguments(
    operands: Sequence[Tensor | None],
    results: Sequence[Tensor | None],
    rows: int,
    gather: EdgeRows | None = None,
    sums: Tensor | None = None,
    ends: Tensor | None = None,
) -> ctypes.Array:
    """``struct Call`` of the text: pointers and counts take eight bytes each; null where there is no tensor."""
    by = (None, None, None) if gather is None else (gather.order, gather.src, gather.dst)
    tensors = [*map(_pointer, (*operands, *results))]
    fields = [*tensors, rows, gather.owners if gather else 0, *map(_pointer, (*by, sums, ends))]
    return (ctypes.c_int64 * len(fields))(*fields)


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None or not tensor.numel() else tensor.data_ptr()


def blocks_of(placement: RowSteps, rows: int, at_once: int) -> int:
    """As many blocks as have work and as run at once; one at least, which clears what is summed."""
    return max(1, min(-(-rows // placement.rows), at_once))


@dataclass(frozen=True)
class Join:
    """The launch that adds up the parts of owners whose edges lie across the ends of runs."""

    placement: RowSteps
    runs: int

    @property
    def needed(self) -> bool:
        return self.placement.owner is not None and self.runs > 1

    @property
    def blocks(self) -> int:
        """As many as a row has parts of a number for each thread, for each run."""
        return self.runs * -(-self._numbers // self.placement.threads)

    @property
    def _numbers(self) -> int:
        assert self.placement.owner
        return self.placement.dim[self.placement.owner]

    def room(self, device: torch.device) -> Tensor:
        """Memory for the parts that runs put aside, one at each end."""
        dtype = torch.float64 if self.placement.number == 8 else torch.float32
        return torch.empty(2 * self.runs, self._numbers, dtype=dtype, device=device)

    @property
    def bytes(self) -> int:
        return 2 * self.runs * self._numbers * self.placement.number if self.needed else 0


def edge_rows(rows: int, nodes: Tensor) -> Tensor:
    """Memory for what edges have of the rows of nodes, which `Collect` adds up."""
    return nodes.new_empty(rows, nodes.shape[1])


@dataclass(frozen=True)
class Collect:
    """The launch that adds up, for each of so many nodes, what its edges have, which came in another order."""

    placement: RowSteps
    nodes: int

    @property
    def blocks(self) -> int:
        """As many as a row has parts of a number for each thread, for each node."""
        (slot,) = self.placement.scattered
        return self.nodes * -(-self.placement.dim[slot] // self.placement.threads)

    def arguments(self, parts: Tensor, edges: EdgeRows, sums: Tensor) -> list[ctypes.c_void_p]:
        """Pointers as the text of the kernel has them."""
        assert edges.collected is not None
        return [ctypes.c_void_p(_pointer(x)) for x in (parts, *edges.collected[:2], sums)]
