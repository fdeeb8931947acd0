"""Peak memory of a call: what torch's allocator, or its profiler, saw."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from tpgen.inspection.clock import TimedCall, no_collection
from tpgen.kernels.runtime.memory import none_kept


def peak_bytes(call: TimedCall, device: torch.device) -> int:
    """The most that was held during a call above what was held before: intermediates and results.

    On CUDA the allocator's own figure; on a CPU the running sum of all allocations that torch's profiler saw.  Large
    results of kernels are torch's for this one call: what they stand in otherwise, no profiler sees.  Memory of a
    compiler or of a BLAS library's workspace is in neither.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        kept = call()
        torch.cuda.synchronize(device)
        del kept
        return torch.cuda.max_memory_allocated(device) - before
    return _peak_of(_allocations(call))


def _allocations(call: TimedCall) -> list[int]:
    """Bytes of every allocation (positive) and release (negative), in order."""
    with (
        no_collection(),
        _quiet_stderr(),
        none_kept(),
        torch.autograd.profiler.profile(profile_memory=True, use_kineto=True) as profiled,
    ):
        kept = call()
    del kept
    events = profiled.kineto_results.events()
    memory = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]" and e.device_type().name == "CPU"]
    return [nbytes for _, nbytes in sorted(memory, key=lambda event: event[0])]


def _peak_of(allocations: Sequence[int]) -> int:
    """
    >>> _peak_of([4, 8, -4, 2, -8])
    12
    """
    peak = held = 0
    for nbytes in allocations:
        held += nbytes
        peak = max(peak, held)
    return peak


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """The profiler's native library writes a line at each start and stop, past Python's streams."""
    saved = os.dup(2)
    silent = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(silent, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(silent)
