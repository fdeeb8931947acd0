"""CUDA graph capture: a replay reads new values, so facts from outside do not hold."""

from __future__ import annotations

import sys

from tpgen.base import _torch
from tpgen.base.errors import BackendError
from tpgen.kernels.cuda.driver import need_driver, stream_of

_TREES = "torch._inductor.cudagraph_trees"  # loaded by the first compilation that asks for CUDA graphs


def capture_of(device: int) -> int:
    """Number of the CUDA graph that captures a device's current stream, or 0."""
    stream = stream_of(device)
    return need_driver().capture(stream) if stream else 0


def borrows_memory(device: int) -> bool:
    """Whether torch.compile(mode="reduce-overhead") warms up or captures on a device."""
    find = getattr(_torch, "graph_trees", None) if _TREES in sys.modules else None
    trees = find(device, create_if_none_exists=False) if find else None
    return trees is not None and trees.stream.cuda_stream == stream_of(device)


def refuse_while_capturing(device: int) -> None:
    """Raise `BackendError` while a CUDA graph is captured."""
    if capture_of(device):
        raise BackendError(
            "a kernel is loaded by its first call, which cannot be part of a CUDA graph: call it once before you "
            "capture, with its backward if that is captured too"
        )
