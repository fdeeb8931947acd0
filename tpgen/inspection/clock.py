"""The one clock: calls take turns, so that whatever else the machine does falls on all of them alike.

A GPU goes on working after a call has returned, so it is waited for.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tpgen._torch import pytree
from tpgen.locks import no_collection

TimedCall = Callable[[], object]

MIN_ROUNDS = 5
_ROUNDS = 25  # aimed at within the time there is
ROUGH = 0.3  # spread above which no advice is given
_SLOT = (2e-4, 2e-2)  # seconds of one sample: above the clock's noise, and short enough to take turns often


def now(device: str | torch.device = "cpu") -> float:
    """Seconds on a clock, once the device has done all that it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


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


def seconds_of(call: TimedCall, device: str | torch.device, calls: int = 1) -> float:
    """Wall time per call, with everything finished before and after."""
    start = now(device)
    for _ in range(calls):
        call()
    return (now(device) - start) / calls


def time_in_turns(
    calls: Mapping[str, TimedCall],
    device: str | torch.device,
    seconds: float = 0.0,
    repeats: int | None = None,
    rounds: int = MIN_ROUNDS,
    tick: Callable[[float], None] = lambda done: None,
) -> dict[str, Timing]:
    """Time all calls in turn, in another order each round.

    There are ``rounds`` of them at least, and more until ``seconds`` are over; or exactly ``repeats``, with one call
    each.  ``tick`` is told the share that is done.

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
    with no_collection():  # of cycles of earlier work, which would fall on one call
        for done in _shares(start, seconds, rounds, repeats):
            shuffled.shuffle(order)
            for name in order:
                samples[name].append(seconds_of(calls[name], device, count[name]))
            tick(done)
    return {name: Timing(tuple(samples[name]), count[name]) for name in calls}


def _shares(start: float, seconds: float, rounds: int, repeats: int | None) -> Iterator[float]:
    """One value for each round: the share that will be done after it, as far as that can be known."""
    number = 0
    while True:
        number += 1
        spent = (time.perf_counter() - start) / seconds if seconds > 0 else 1.0
        share = number / repeats if repeats else min(spent, number / rounds)
        yield min(share, 1.0)
        if number >= repeats if repeats else number >= rounds and time.perf_counter() - start >= seconds:
            return


def _calls_for(call: TimedCall, device: str | torch.device, slot: float) -> int:
    once = min(seconds_of(call, device) for _ in range(2))
    return max(1, min(1000, int(slot / max(once, 1e-9))))


def device_of(module: nn.Module, inputs: Any = ()) -> str:
    """The device to wait for: that of the first tensor which is not on the CPU.

    >>> device_of(nn.Linear(1, 1), [torch.zeros(1)])
    'cpu'
    """
    tensors = (
        *module.parameters(),
        *module.buffers(),
        *(a for a in pytree.tree_leaves(inputs) if isinstance(a, Tensor)),
    )
    return next((str(t.device) for t in tensors if t.device.type != "cpu"), "cpu")
