"""CUDA streams as graph nodes: fx cannot capture ``with torch.cuda.stream(...)``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tpgen.base.errors import BackendError

_POOL: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def current_stream(like: Tensor) -> torch.cuda.Stream:
    """Current stream of the CUDA device of ``like``; else `BackendError`."""
    _check_device_is_cuda(like.device)
    return torch.cuda.current_stream(like.device)


def side_stream(like: Tensor, number: int) -> torch.cuda.Stream:
    """Side stream ``number`` of the device, created once."""
    # creating a stream costs more than a small path
    key = (like.device, number)
    if key not in _POOL:
        _POOL[key] = torch.cuda.Stream(like.device)
    return _POOL[key]


def wait(waiting: torch.cuda.Stream, awaited: torch.cuda.Stream) -> None:
    """Make later work on ``waiting`` start after earlier work on ``awaited``."""
    waiting.wait_stream(awaited)


def set_stream(stream: torch.cuda.Stream) -> None:
    """Make a stream current."""
    torch.cuda.set_stream(stream)


def hand_over(tensor: Tensor, stream: torch.cuda.Stream) -> None:
    """Tell the allocator that another stream reads a tensor."""
    tensor.record_stream(stream)


def _check_device_is_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        raise BackendError(
            f"streams are CUDA streams, and the operands are on {device}: move the product and its operands to a "
            "CUDA device, or construct it with streams=0"
        )


@contextmanager
def restoring_stream(device: torch.device) -> Iterator[None]:
    """Restore the caller's stream after an error.  Raises `BackendError` without CUDA streams."""
    _check_device_is_cuda(device)
    before = torch.cuda.current_stream(device)
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(before)
        raise
