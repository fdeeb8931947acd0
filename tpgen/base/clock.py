"""Time calls in turn."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

from tpgen.base._torch import pytree
from tpgen.base.locks import without_garbage_collection

TimedCall = Callable[[], object]
Clock = Callable[[str | torch.device], float]

MIN_ROUNDS = 5
_ROUNDS = 25  # aimed at within the time there is
ROUGH = 0.3  # spread above which no ratio is made
_MOST_PREEMPTIONS = 50  # a second: how often other programs may take the processor from several threads
_SAMPLE_SECONDS = (2e-4, 2e-2)  # seconds of one sample: above the clock's noise, and short enough to take turns often


def now(device: str | torch.device = "cpu") -> float:
    """Wall time in seconds, after synchronizing the device."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _processor_time(_device: str | torch.device = "cpu") -> float:
    return time.process_time()


def choose_clock(device: str | torch.device) -> Clock:
    """Processor time for a single CPU thread, else wall time."""
    # other programs add nothing to processor time; but several threads wait for each other, and so for other programs
    alone = torch.device(device).type == "cpu" and torch.get_num_threads() == 1
    return _processor_time if alone else now


@contextmanager
def with_threads(number: int | None) -> Iterator[None]:
    """Set torch's number of threads inside the block, unless None."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(number or before)
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one sample per ``calls`` calls; ``preemptions`` per second."""

    samples: tuple[float, ...]
    calls: int
    preemptions: float = 0.0

    @property
    def median(self) -> float:
        """Median seconds per call."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Interquartile range relative to the median."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4)
        return (high - low) / self.median

    @property
    def doubt(self) -> str:
        """Reason not to compare these times, or "".

        >>> Timing((1.0, 2.0, 1.0, 2.0, 3.0), 1).doubt, Timing((1.0,) * 5, 1, preemptions=300).doubt
        ('its times lie 75 % apart', 'other programs took the processor 300 times a second')
        """
        if self.spread > ROUGH:
            return f"its times lie {100 * self.spread:.0f} % apart"
        return (
            f"other programs took the processor {self.preemptions:.0f} times a second"
            if self.preemptions > _MOST_PREEMPTIONS
            else ""
        )


def time_calls(call: TimedCall, device: str | torch.device, calls: int = 1, clock: Clock | None = None) -> float:
    """Mean seconds per call, by default wall time."""
    read = clock or now
    start = read(device)
    for _ in range(calls):
        call()
    return (read(device) - start) / calls


def time_in_turns(
    calls: Mapping[str, TimedCall],
    device: str | torch.device,
    seconds: float = 0.0,
    repeats: int | None = None,
    rounds: int = MIN_ROUNDS,
    tick: Callable[[float], None] = lambda done: None,
) -> dict[str, Timing]:
    """Time all calls in turn, in random order each round.

    Runs ``rounds``, and more until ``seconds`` pass; or exactly ``repeats`` rounds of single calls.  ``tick`` receives
    the finished share.

    >>> timings = time_in_turns({"a": lambda: None}, torch.device("cpu"), seconds=0, repeats=3)
    >>> len(timings["a"].samples)
    3
    """
    if not calls:
        return {}
    slot = min(max(seconds / (len(calls) * _ROUNDS), _SAMPLE_SECONDS[0]), _SAMPLE_SECONDS[1])
    clock = choose_clock(device)
    count = {name: 1 if repeats else _count_calls_per_sample(call, device, slot, clock) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order, shuffled = list(calls), random.Random(0)
    gc.collect()
    start, before = time.perf_counter(), _count_preemptions_of_process()
    with without_garbage_collection():  # of cycles of earlier work, which would fall on one call
        for done in _run_rounds_and_yield_progress(start, seconds, rounds, repeats):
            shuffled.shuffle(order)
            for name in order:
                samples[name].append(time_calls(calls[name], device, count[name], clock))
            tick(done)
    taken = (
        0.0 if clock is _processor_time else (_count_preemptions_of_process() - before) / (time.perf_counter() - start)
    )
    return {name: Timing(tuple(samples[name]), count[name], taken) for name in calls}


def _count_preemptions_of_process() -> int:
    # how often the system has taken the processor from this process
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _run_rounds_and_yield_progress(
    start: float, seconds: float, min_rounds: int, exact_rounds: int | None
) -> Iterator[float]:
    # yields once per round, as far as the share can be known
    number = 0
    while True:
        number += 1
        spent = (time.perf_counter() - start) / seconds if seconds > 0 else 1.0
        share = number / exact_rounds if exact_rounds else min(spent, number / min_rounds)
        yield min(share, 1.0)
        if number >= exact_rounds if exact_rounds else number >= min_rounds and time.perf_counter() - start >= seconds:
            return


def _count_calls_per_sample(call: TimedCall, device: str | torch.device, sample_seconds: float, clock: Clock) -> int:
    once = min(time_calls(call, device, clock=clock) for _ in range(2))
    return max(1, min(1000, int(sample_seconds / max(once, 1e-9))))


def find_device(module: nn.Module, inputs: Any = ()) -> str:
    """Device of the first tensor off the CPU, else ``cpu``.

    >>> find_device(nn.Linear(1, 1), [torch.zeros(1)])
    'cpu'
    """
    tensors = (
        *module.parameters(),
        *module.buffers(),
        *(a for a in pytree.tree_leaves(inputs) if isinstance(a, Tensor)),
    )
    return next((str(t.device) for t in tensors if t.device.type != "cpu"), "cpu")
