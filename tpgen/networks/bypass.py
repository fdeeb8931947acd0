"""Calls that bypass programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch

from tpgen.base import _torch
from tpgen.base._torch import is_tracing
from tpgen.networks.recording import recorded_program


class _BypassFlagOfThread(local):
    inside = False


_thread = _BypassFlagOfThread()


@contextmanager
def bypassing_programs() -> Iterator[None]:
    """Let this thread's networks run without programs inside the block."""
    before, _thread.inside = _thread.inside, True
    try:
        yield
    finally:
        _thread.inside = before


def must_run_eagerly() -> bool:
    """Whether a network, trace, transform, mode, hook, CUDA autocast or CUDA capture encloses the call."""
    return (
        torch.compiler.is_compiling()
        or _thread.inside
        or is_tracing()
        or recorded_program() is not None
        or _torch.transform_level() is not None
        or _torch.dispatch_modes() > 0
        or _torch.function_modes() > 0
        or torch.is_inference_mode_enabled()
        or torch.is_anomaly_enabled()
        or torch.is_autocast_enabled("cuda")
        or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
        or _torch.saved_tensor_hooks(True) is not None
    )
