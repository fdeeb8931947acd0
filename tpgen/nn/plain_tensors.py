"""Tensors that kernels can read."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tpgen.base._torch import (
    dispatch_modes,
    has_tangents,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    is_tracing,
    plain_function,
    transform_level,
)

_DTYPES = (torch.float32, torch.float64)


class PlainTensor(Tensor):
    """Base of tensor subclasses that PyTorch functions treat as a `Tensor`."""

    __torch_function__ = plain_function


def is_plain_tensor(x: Tensor) -> bool:
    """Whether a kernel can read a tensor: float32 or float64 on the CPU, not traced or transformed."""
    return (
        (type(x) in (Tensor, nn.Parameter) or isinstance(x, PlainTensor))
        and x.is_cpu
        and x.dtype in _DTYPES
        and not is_functorch_wrapped_tensor(x)
        and not is_legacy_batchedtensor(x)
        and not is_tracing()
        and not dispatch_modes()
        and transform_level() is None  # tensors that a transformed function closes over are plain ones
    )


def are_plain(*tensors: Tensor) -> bool:
    """Whether all tensors have plain numbers and no forward-mode tangent is active."""
    return not has_tangents() and all(map(is_plain_tensor, tensors))


def is_traced(x: Tensor) -> bool:
    """Whether a dispatch mode (`make_fx`, `torch.export`, flop counters) sees a CPU tensor's operators."""
    return (
        isinstance(x, Tensor)
        and x.is_cpu
        and x.dtype in _DTYPES
        and not is_functorch_wrapped_tensor(x)
        and not is_legacy_batchedtensor(x)
        and dispatch_modes() > 0
    )


def count_writes(x: Tensor) -> int:
    """How often a tensor was written to; -1 for an inference tensor.

    >>> count_writes(torch.zeros(1).add_(1))
    1
    """
    return -1 if x.is_inference() else x._version
