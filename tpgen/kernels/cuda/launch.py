"""What a kernel is called with: one structure of pointers and counts, and how many blocks there are."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tpgen.kernels.cuda.parts import Parts
from tpgen.kernels.cuda.steps import RowSteps


@dataclass(frozen=True)
class Gather:
    """The edges of a convolution: those of each owner, in order, and which rows they join."""

    first: Tensor | None
    order: Tensor | None
    src: Tensor
    dst: Tensor
    owners: int
    parts: Parts | None = None  # of owners of very many edges


def arguments(
    operands: Sequence[Tensor | None],
    results: Sequence[Tensor | None],
    rows: int,
    gather: Gather | None = None,
    sums: Tensor | None = None,
) -> ctypes.Array:
    """``struct Call`` of the text: pointers and counts take eight bytes each; null where there is no tensor."""
    by = (None, None, None, None) if gather is None else (gather.first, gather.order, gather.src, gather.dst)
    tensors = [*map(_pointer, (*operands, *results))]
    fields = [*tensors, rows, gather.owners if gather else 0, *map(_pointer, by), _pointer(sums)]
    return (ctypes.c_int64 * len(fields))(*fields)


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None or not tensor.numel() else tensor.data_ptr()


def blocks_of(placement: RowSteps, rows: int, owners: int, at_once: int) -> int:
    """As many blocks as have work and as run at once; one at least, which clears what is summed."""
    steps = owners if placement.owner else -(-rows // placement.rows)
    return max(1, min(steps, at_once))
