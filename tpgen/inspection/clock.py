"""The one clock of inspection: a GPU goes on working after a call has returned, so it is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


def now(device: str | torch.device = "cpu") -> float:
    """Seconds on a clock, once the device has done all that it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(call: Callable[[], object], device: str = "cpu") -> float:
    """Seconds of one call."""
    start = now(device)
    call()
    return now(device) - start


def best_seconds(call: Callable[[], object], device: str, seconds: float) -> float:
    """The shortest time of a call that is repeated for some seconds, three times at least; the first is left out.

    The shortest, because whatever else the machine does only ever adds.
    """
    times: list[float] = []
    timed(call, device)
    start = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - start < seconds and len(times) < 1000):
        times.append(timed(call, device))
        if times[-1] > seconds:
            break
    return min(times)


def median_seconds(
    calls: Mapping[str, Callable[[], object]], rounds: int, device: str = "cpu", warm: int = 1
) -> dict[str, float]:
    """Median seconds of some calls, called in turn: whatever else the machine does then falls on all of them.

    The first ``warm`` rounds are not counted: compilers and caches do their work in them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warm + rounds):
        for name, call in calls.items():
            found = timed(call, device)
            if turn >= warm:
                seconds[name].append(found)
    return {name: median(times) for name, times in seconds.items()}


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
