"""Operands under autocast: widened, never rounded."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor


def is_autocasting(device: torch.device) -> bool:
    """Whether autocast is on for a device; False for "meta"."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def widen_to_one_dtype(like: Tensor, *tensors: Tensor) -> tuple[torch.dtype, tuple[Tensor, ...]]:
    """Dtype and tensors of a call: as given, or under autocast in the widest dtype.

    >>> widen_to_one_dtype(torch.zeros(1), torch.zeros(1, dtype=torch.float64))[0]
    torch.float32
    >>> with torch.autocast("cpu"):
    ...     widen_to_one_dtype(torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16))
    (torch.float32, (tensor([0.]),))
    """
    if not is_autocasting(like.device):
        return like.dtype, tensors
    dtype = reduce(torch.promote_types, (t.dtype for t in tensors), like.dtype)
    return dtype, tuple(t.to(dtype) for t in tensors)


def run_without_autocast(run: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """Call ``run`` with autocast off."""
    device = operands[0].device
    if not is_autocasting(device):
        return run(*operands)
    with torch.autocast(device.type, enabled=False):
        return run(*operands)
