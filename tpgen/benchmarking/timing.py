"""Clock and memory: contenders take turns, so that whatever else the machine does falls on all of them alike."""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tpgen.inspection.clock import now

Call = Callable[[], object]

MIN_ROUNDS = 5
_ROUNDS = 25  # aimed at within the time there is
_SLOT = (2e-4, 2e-2)  # seconds of one sample: above the clock's noise, and short enough to take turns often


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one contender: each sample is the mean of ``calls`` calls in a row."""

    samples: tuple[float, ...]
    calls: int

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Third quartile minus first, relative to the median."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4)
        return (high - low) / self.median


def seconds_of(call: Call, device: torch.device, calls: int = 1) -> float:
    """Wall time per call, with everything finished before and after."""
    start = now(device)
    for _ in range(calls):
        call()
    return (now(device) - start) / calls


def time_in_turns(
    calls: Mapping[str, Call],
    device: torch.device,
    seconds: float,
    repeats: int | None = None,
    tick: Callable[[float], None] = lambda done: None,
) -> dict[str, Timing]:
    """Time all calls in turn, in another order each round.

    Rounds are repeated until ``seconds`` are over, or exactly ``repeats`` times with one call each.  ``tick`` is told
    the share that is done.

    >>> timings = time_in_turns({"a": lambda: None}, torch.device("cpu"), seconds=0, repeats=3)
    >>> len(timings["a"].samples)
    3
    """
    if not calls:
        return {}
    slot = min(max(seconds / (len(calls) * _ROUNDS), _SLOT[0]), _SLOT[1])
    count = {name: 1 if repeats else _calls_for(call, device, slot) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order, shuffled = list(calls), random.Random(0)
    gc.collect()
    start = time.perf_counter()
    with _no_collection():
        for done in _rounds(start, seconds, repeats):
            shuffled.shuffle(order)
            for name in order:
                samples[name].append(seconds_of(calls[name], device, count[name]))
            tick(done)
    return {name: Timing(tuple(samples[name]), count[name]) for name in calls}


def _rounds(start: float, seconds: float, repeats: int | None) -> Iterator[float]:
    """One value for each round: the share that will be done after it, as far as that can be known."""
    number = 0
    while True:
        number += 1
        spent = (time.perf_counter() - start) / seconds if seconds > 0 else 1.0
        share = number / repeats if repeats else min(spent, number / MIN_ROUNDS)
        yield min(share, 1.0)
        if number >= repeats if repeats else number >= MIN_ROUNDS and time.perf_counter() - start >= seconds:
            return


def _calls_for(call: Call, device: torch.device, slot: float) -> int:
    once = min(seconds_of(call, device) for _ in range(2))
    return max(1, min(1000, int(slot / max(once, 1e-9))))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Cycles of earlier work are not collected in the middle of a measurement."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# --- memory -----------------------------------------------------------------------------------------------------------


def peak_bytes(call: Call, device: torch.device) -> int:
    """The most that torch's allocator held during a call, above what it held before: intermediates and results.

    On CUDA the allocator's own figure; on a CPU the running sum of all allocations that torch's profiler saw.  Memory
    that is not torch's (a compiler's, a BLAS library's workspace) is in neither.
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


def _allocations(call: Call) -> list[int]:
    """Bytes of every allocation (positive) and release (negative), in order."""
    with (
        _no_collection(),
        _quiet_stderr(),
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
