"""Calls of networks as they are, by no program of their own: inside another network, a program or a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import torch

from tpgen.base import _torch
from tpgen.base._torch import is_tracing
from tpgen.networks.recording import recorded_program


class _Thread(local):
    inside = False


_thread = _Thread()


@contextmanager
def by_networks() -> Iterator[None]:
    """Let this thread call networks themselves for a while, and count none of these calls."""
    before, _thread.inside = _thread.inside, True
    try:
        yield
    finally:
        _thread.inside = before


def is_plain_call() -> bool:
    """Whether a call is the network's own: inside another one, or where somebody watches each operation."""
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
        or _torch.saved_tensor_hooks(True) is not None
    )
