"""CUDA graphs while they are recorded: which of them a call is part of, and for how long it may keep what it makes.

A recorded call finds other numbers in the same tensors at each replay, so nothing that was made of them outside holds
there.  Memory of a recording is its graph's own: what is made in it is of use to that graph alone.
"""

from __future__ import annotations

import sys

from tpgen.base import _torch
from tpgen.base.errors import BackendError
from tpgen.kernels.cuda.driver import need_driver, stream_of

_TREES = "torch._inductor.cudagraph_trees"  # loaded by the first compilation that asks for CUDA graphs


def capture_of(device: int) -> int:
    """A number for the CUDA graph that records what is launched on a device now; 0 where none does.

    Nothing may wait for the device in a recording.  The default stream cannot be recorded, and is not asked.
    """
    stream = stream_of(device)
    return need_driver().capture(stream) if stream else 0


def borrows_memory(device: int) -> bool:
    """Whether torch.compile(mode="reduce-overhead") warms up or records there, and lends memory for one call alone.

    It refuses to go on where a tensor that it does not know of stands in its pool after a call.  It has a stream of its
    own for both, and no other way to tell: in a warm-up nothing is captured yet.
    """
    find = getattr(_torch, "graph_trees", None) if _TREES in sys.modules else None
    trees = find(device, create_if_none_exists=False) if find else None
    return trees is not None and trees.stream.cuda_stream == stream_of(device)


def refuse_while_capturing(device: int) -> None:
    """Raise `BackendError` where a CUDA graph is captured, which cannot hold that a kernel is loaded."""
    if capture_of(device):
        raise BackendError(
            "a kernel is loaded by its first call, which cannot be part of a CUDA graph: call it once before you "
            "capture, with its backward if that is captured too"
        )
