"""The clocks of `make gpu`: what is left of its time, what a call takes from Python, and what on the device."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

from tpgen.base.clock import now

Call = Callable[[], object]
_BATCHES = 5
_CALLS = 24  # in a batch at least: the clock of a device counts half microseconds
_CYCLES = 3e9  # in a second, of the fastest device: slower ones are held longer
_CHAIN = 100  # launches in one CUDA graph


class Clock:
    """The time that is left of what a run may take, or of what its steps may take until one of them ends."""

    def __init__(self, seconds: float, start: float | None = None) -> None:
        self.seconds, self._start = seconds, time.perf_counter() if start is None else start

    def until(self, share: float) -> Clock:
        """The same clock, whose time is up earlier."""
        return Clock(share * self.seconds, self._start)

    @property
    def spent(self) -> float:
        return time.perf_counter() - self._start

    @property
    def left(self) -> float:
        return max(0.0, self.seconds - self.spent)


def seconds_of(call: Call, device: str, seconds: float) -> float:
    """The median over five batches of calls, which fill the given time; a batch is waited for as a whole."""
    call()
    start = now(device)
    call()
    once = max(now(device) - start, 1e-6)
    count = max(1, int(seconds / _BATCHES / once))
    times = []
    for _ in range(_BATCHES):
        start = now(device)
        for _ in range(count):
            call()
        times.append((now(device) - start) / count)
    return median(times)


def copy_bandwidth(device: str) -> float:
    """Bytes read and written in a second by a large copy, of random numbers: some memories compress zeros."""
    source = torch.rand(2**28 if device == "cuda" else 2**22, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / seconds_of(lambda: target.copy_(source), device, 0.5)


def copies_beyond_cache(size: int, device: str) -> int:
    """How many operands of so many bytes it takes that none of them is still in the cache at its turn."""
    if device != "cuda":
        return 2
    cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return min(32, max(2, math.ceil(3 * cache / size)))


def device_seconds(calls: Sequence[Call], device: str, eager: float) -> tuple[float, bool]:
    """Seconds that the device takes for one of several calls, and whether Python was kept out of them.

    Give calls on operands that do not fit into the cache together.  Where a call waits for the device by itself, Python
    cannot be kept out: then it is ``eager``, what a call takes from Python.
    """
    for factor in (2, 8) if device == "cuda" else ():
        found = held_seconds(calls, factor)
        if found is not None:
            return found, True
    return eager, False


def held_seconds(calls: Sequence[Call], factor: float = 2) -> float | None:
    """The median time of a call on the device, while nothing waits for Python; None where that fails.

    A kernel that does nothing holds the device until all calls stand in its queue, and they run without a gap.  A
    replayed CUDA graph would do as well for products; of a convolution it sorts the edges in every replay.
    """
    kept = deque[object](maxlen=len(calls))  # results stay a while, so that each is written to other memory too
    rounds = math.ceil(_CALLS / len(calls))

    def enqueue() -> None:
        for _ in range(rounds):
            for call in calls:
                kept.append(call())

    enqueue()  # compiles, sorts edges, makes room
    torch.cuda.synchronize()
    start = time.perf_counter()
    enqueue()
    hold = factor * (time.perf_counter() - start) + 1e-3
    times = []
    for _ in range(_BATCHES):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(int(hold * _CYCLES))
        first.record()
        enqueue()
        last.record()
        if first.query():  # the device was let go before the last call was there
            return None
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3 / (rounds * len(calls)))
    return median(times)


def recorded(call: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Call]:
    """What a call returns, and how to replay it; the first call compiles, and does so outside, on another stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    return found, graph.replay


def launch_seconds(call: Callable[[], Tensor]) -> tuple[float, float]:
    """Seconds of a call, and of a kernel that does nothing, each in a CUDA graph of very many."""

    def nothing() -> list[Tensor]:
        for _ in range(_CHAIN):
            torch.cuda._sleep(0)
        return []

    chains = (lambda: [call() for _ in range(_CHAIN)], nothing)
    mine, empty = (seconds_of(recorded(chain)[1], "cuda", 0.2) / _CHAIN for chain in chains)
    return mine, empty
