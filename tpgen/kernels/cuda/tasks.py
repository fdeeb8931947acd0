"""Arguments of a polynomial's kernels: one structure of pointers and counts, and how many blocks there are."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tpgen.kernels.arguments import Sizes
from tpgen.kernels.cuda.groups import LANES, power_of_two
from tpgen.kernels.cuda.orders import Order
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.cuda.polynomial_text import COUNT_ARGUMENTS
from tpgen.kernels.cuda.prelude import CHANNELS_ENTRY, ENTRY, SUM_ENTRY
from tpgen.kernels.cuda.workspace import order_bytes

SPAN = 64  # rows of a warp in one task, at most


@dataclass(frozen=True)
class Geometry:
    """Shares of a call's rows and channels among blocks, where so many blocks run at once."""

    placement: CudaPolynomialPlacement
    sizes: Sizes
    at_once: int

    @property
    def width(self) -> int:
        """Lanes of one row."""
        return min(LANES, power_of_two(self.sizes.channels))

    @property
    def chunks(self) -> int:
        return -(-self.sizes.channels // self.width)

    @cached_property
    def span(self) -> int:
        """Rows of a task, in whole rounds of its warps: so many that all tasks fill whole waves of blocks.

        Each element may leave one task that is not full.
        """
        together, elements = self.placement.warps * LANES // self.width, self.sizes.elements
        fewest = self.sizes.rows // (together * SPAN) + elements + 1
        waves = -(-fewest * self.chunks // self.at_once)
        full = waves * self.at_once // self.chunks - elements
        return together * max(1, -(-self.sizes.rows // (together * full)))

    @property
    def tasks(self) -> int:
        """Some have no rows: how many do not is known on the device alone."""
        return self.sizes.rows // self.span + self.sizes.elements

    @property
    def counts(self) -> dict[str, int]:
        """Numbers that the kernels are called with, by name."""
        known = {**self.sizes._asdict(), "width": self.width, "span": self.span}
        return {name: known[name] for name in COUNT_ARGUMENTS}

    @property
    def blocks(self) -> dict[str, int]:
        """Blocks of each kernel, in the order of their launches."""
        p, sizes = self.placement, self.sizes
        widest = max((p.operands[s].dim for s in p.summed), default=0)
        found = {
            ENTRY: self.tasks * self.chunks,
            SUM_ENTRY: sizes.elements * -(-sizes.channels // LANES),
            CHANNELS_ENTRY: -(-sizes.rows * widest // p.threads),
        }
        return {name: found[name] for name in p.entries}

    def scratch(self, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        """Room for the sums of all tasks, and for those of each operand that is summed over channels."""
        p, sizes = self.placement, self.sizes
        number = torch.float32 if dtype == torch.bfloat16 else dtype
        shapes = [(self.tasks, p.added, sizes.channels)]
        shapes += [(self.chunks, sizes.rows, p.operands[s].dim) for s in p.summed]
        return [torch.empty(shape, dtype=number, device=device) for shape in shapes]


def polynomial_workspace(geometry: Geometry, dtype: torch.dtype, indexed: bool) -> int:
    """Bytes that the kernels of a polynomial take: sums of tasks and, with an index of elements, the order of rows."""
    sums = sum(x.nbytes for x in geometry.scratch(dtype, torch.device("meta")))
    return order_bytes(geometry.sizes.rows, [geometry.sizes.elements] * indexed, sums)


def call_struct(
    geometry: Geometry,
    given: Sequence[Tensor],
    opened: Sequence[Tensor],
    scratch: Sequence[Tensor],
    order: Order | None,
) -> ctypes.Array:
    """``struct Call`` of the text: pointers and counts take eight bytes each."""
    ordered = [order.first.data_ptr(), order.order.data_ptr()] if order else [0, 0]
    places = [x.data_ptr() for x in (*given, *opened, *scratch)]
    fields = [*places, *ordered, *geometry.counts.values()]
    return (ctypes.c_int64 * len(fields))(*fields)
