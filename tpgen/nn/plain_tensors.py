"""Tensors that a kernel may be called with at once: numbers at hand, which nothing traces or transforms."""

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
    """Base of classes that are to torch's functions what a `Tensor` is."""

    __torch_function__ = plain_function


def has_plain_numbers(x: Tensor) -> bool:
    """Whether a tensor is numbers at hand that a kernel takes: nothing is traced, transformed or compiled."""
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


def is_usual(*tensors: Tensor) -> bool:
    """Whether a call may be one of ours that has no forward mode: tangents may come to its backward alone."""
    return not has_tangents() and all(map(has_plain_numbers, tensors))


def is_traced(x: Tensor) -> bool:
    """Whether a dispatch mode sees operators on a CPU tensor, as `make_fx`, `torch.export` and flop counters do."""
    return (
        isinstance(x, Tensor)
        and x.is_cpu
        and x.dtype in _DTYPES
        and not is_functorch_wrapped_tensor(x)
        and not is_legacy_batchedtensor(x)
        and dispatch_modes() > 0
    )


def writes_to(x: Tensor) -> int:
    """Count the writes to a tensor; torch does not count those to one made in `torch.inference_mode`: -1.

    >>> writes_to(torch.zeros(1).add_(1))
    1
    """
    return -1 if x.is_inference() else x._version
