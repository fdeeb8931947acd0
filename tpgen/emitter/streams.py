"""CUDA streams as graph nodes: plain functions that a program calls.

fx cannot capture ``with torch.cuda.stream(...)``, so the graph itself carries what the context manager would do:
look up the current stream, create side streams, let them wait, make one current, restore, wait back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tpgen.base.errors import BackendError

_POOL: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def current_stream(like: Tensor) -> torch.cuda.Stream:
    """The stream that the caller works on, of the device that ``like`` is on.

    Raises `BackendError` where that is no CUDA device.
    """
    _need_cuda(like.device)
    return torch.cuda.current_stream(like.device)


def side_stream(like: Tensor, number: int) -> torch.cuda.Stream:
    """Side stream ``number`` of the device, created once: creating one costs more than a small path."""
    key = (like.device, number)
    if key not in _POOL:
        _POOL[key] = torch.cuda.Stream(like.device)
    return _POOL[key]


def wait(waiting: torch.cuda.Stream, awaited: torch.cuda.Stream) -> None:
    """Work given to ``waiting`` from now on starts after all that ``awaited`` has been given."""
    waiting.wait_stream(awaited)


def set_stream(stream: torch.cuda.Stream) -> None:
    """Give the work that follows to this stream."""
    torch.cuda.set_stream(stream)


def hand_over(tensor: Tensor, stream: torch.cuda.Stream) -> None:
    """Tell the allocator that another stream reads a tensor, so that its memory is not given away before that."""
    tensor.record_stream(stream)


def _need_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        raise BackendError(
            f"streams are CUDA streams, and the operands are on {device}: move the product and its operands to a "
            "CUDA device, or construct it with streams=0"
        )


@contextmanager
def restoring_stream(device: torch.device) -> Iterator[None]:
    """Make the caller's stream current again where a program with streams fails half-way.

    Raises `BackendError` where the device has no CUDA streams.
    """
    _need_cuda(device)
    before = torch.cuda.current_stream(device)
    try:
        yield
    except BaseException:
        torch.cuda.set_stream(before)
        raise
