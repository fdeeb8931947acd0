"""Pairs of edges that a program is given in the place of those it cannot look for, while it is written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from tpgen.kernels.runtime.native.pairs import EdgePairs


@dataclass
class Recording:
    """Pairs that a program is given, in which each edge has another one; none where it is asked what they come from."""

    given: EdgePairs | None
    source: tuple[Tensor, Tensor] | None = None  # ends of edges, and what becomes its negative with the direction


_recording: ContextVar[Recording | None] = ContextVar("program that is recorded", default=None)


@contextmanager
def recording(program: Recording) -> Iterator[Recording]:
    """Nets take the pairs of a program, and say what these are found from."""
    before = _recording.set(program)
    try:
        yield program
    finally:
        _recording.reset(before)


def recorded_program() -> Recording | None:
    """The program that is recorded here, if there is one."""
    return None if torch.compiler.is_compiling() else _recording.get()
