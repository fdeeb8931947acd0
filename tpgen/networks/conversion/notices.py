"""Warnings about slow calls: each once, none during a proof."""

# Annotations are objects here, not strings: TorchScript reads them.

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from tpgen.kernels.runtime.targets import find_kernel_target
from tpgen.networks.recording import recorded_program

_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


def warn_of_slow_path(text: str) -> None:
    """Warn, once for each text and not inside `suppress_slow_path_warnings`.

    >>> with suppress_slow_path_warnings():
    ...     warn_of_slow_path("this is slow")
    """
    if not _SILENT.get():
        _warn_once(text)


@cache
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=4)


def can_kernels_take(x: Tensor) -> bool:
    """Whether polynomial kernels take a tensor's device and dtype."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64, torch.bfloat16)


def can_gpu_program_kernels_take(x: Tensor) -> bool:
    """Whether a program is being recorded whose GPU kernels take a tensor."""
    if not x.is_cuda or recorded_program() is None:
        return False
    target = find_kernel_target(x.dtype, x.device)
    return not isinstance(target, str) and target.missing(x.device) is None


def can_kernels_take_or_warn(x: Tensor, fallback_text: str) -> bool:
    """Whether polynomial kernels take a tensor; if not, warn once with ``fallback_text``."""
    good = can_kernels_take(x)
    if not good and not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
        if not torch.compiler.is_compiling():
            warn_of_slow_path(f"{fallback_text}: kernels take no {x.dtype} on {x.device.type}")
    return good


@contextmanager
def suppress_slow_path_warnings() -> Iterator[None]:
    """Suppress warnings of slow calls inside the context."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)
