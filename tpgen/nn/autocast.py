"""Calls under autocast: in the widest dtype that is given, so that nothing is rounded twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for a device; "meta" has none and does not like to be asked."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def widened(like: Tensor, *tensors: Tensor) -> tuple[torch.dtype, tuple[Tensor, ...]]:
    """The dtype a call runs in and its tensors: as they are, or under autocast in the widest of their dtypes.

    >>> widened(torch.zeros(1), torch.zeros(1, dtype=torch.float64))[0]
    torch.float32
    >>> with torch.autocast("cpu"):
    ...     widened(torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16))
    (torch.float32, (tensor([0.]),))
    """
    if not autocasting(like.device):
        return like.dtype, tensors
    dtype = reduce(torch.promote_types, (t.dtype for t in tensors), like.dtype)
    return dtype, tuple(t.to(dtype) for t in tensors)


def unrounded(run: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """Run with autocast off: operands are `widened` already, and nothing inside may round them again."""
    device = operands[0].device
    if not autocasting(device):
        return run(*operands)
    with torch.autocast(device.type, enabled=False):
        return run(*operands)
