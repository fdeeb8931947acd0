"""Tensor arguments of all calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tpgen.base.errors import InputError


def as_floating_tensor(name: str, x: Any, dtype: torch.dtype) -> Tensor:
    """Return a tensor argument, with integers and booleans converted to ``dtype``.

    Other dtypes and fx proxies stay.  Raises `InputError` for values that are no tensors.

    >>> as_floating_tensor("x", torch.tensor([True, False]), torch.float64)
    tensor([1., 0.], dtype=torch.float64)
    """
    if hasattr(x, "tracer"):
        return x
    if not isinstance(x, Tensor):
        raise InputError(f"{name}: must be a tensor, got {type(x).__name__}; make one with torch.as_tensor({name})")
    return x if x.is_floating_point() or x.is_complex() else x.to(dtype)
