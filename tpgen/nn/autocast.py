"""Operands under autocast: widened, never rounded."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for a device; False for "meta"."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def widest_dtype_and_tensors(like: Tensor, *tensors: Tensor) -> tuple[torch.dtype, tuple[Tensor, ...]]:
    """Return dtype and tensors of a call: as given, or under autocast in the widest dtype.

    >>> widest_dtype_and_tensors(torch.zeros(1), torch.zeros(1, dtype=torch.float64))[0]
    torch.float32
    >>> with torch.autocast("cpu"):
    ...     widest_dtype_and_tensors(torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16))
    (torch.float32, (tensor([0.]),))
    """
    if not autocasting(like.device):
        return like.dtype, tensors
    dtype = reduce(torch.promote_types, (t.dtype for t in tensors), like.dtype)
    return dtype, tuple(t.to(dtype) for t in tensors)


def run_without_autocast(run: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """Call ``run`` with autocast off."""
    device = operands[0].device
    if not autocasting(device):
        return run(*operands)
    with torch.autocast(device.type, enabled=False):
        return run(*operands)
