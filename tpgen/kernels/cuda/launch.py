"""What a kernel is called with: one structure of pointers and counts, and how many blocks there are."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tpgen.kernels.cuda.steps import RowSteps
from tpgen.kernels.sweep.terms import SLOTS

_POINTERS = (*SLOTS, *(f"d_{slot}" for slot in SLOTS))


class Arguments(ctypes.Structure):
    """``struct Call`` of a kernel's text."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("rows", ctypes.c_int64),
        ("owners", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("first", "order", "src", "dst", "sums")),
    ]


@dataclass(frozen=True)
class Gather:
    """The edges of a convolution: those of each owner, in order, and which rows they join."""

    first: Tensor | None
    order: Tensor | None
    src: Tensor
    dst: Tensor
    owners: int


def arguments(
    operands: Sequence[Tensor | None],
    results: Sequence[Tensor | None],
    rows: int,
    gather: Gather | None = None,
    sums: Tensor | None = None,
) -> Arguments:
    """The structure; null where there is no tensor."""
    call = Arguments(rows=rows)
    for name, tensor in zip(_POINTERS, (*operands, *results), strict=True):
        setattr(call, name, _pointer(tensor))
    call.sums = _pointer(sums)
    if gather is not None:
        call.owners = gather.owners
        for name in ("first", "order", "src", "dst"):
            setattr(call, name, _pointer(getattr(gather, name)))
    return call


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None or not tensor.numel() else tensor.data_ptr()


def blocks_of(placement: RowSteps, rows: int, owners: int, at_once: int) -> int:
    """As many blocks as have work and as run at once; one at least, which clears what is summed."""
    steps = owners if placement.owner else -(-rows // placement.rows)
    return max(1, min(steps, at_once))
