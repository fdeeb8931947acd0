"""Processes that share one cache: they build, call, clear, and end at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
import warnings
from collections import Counter

import torch
from torch import Tensor
from torch.utils.data import Dataset

import tpgen
from tpgen.kernels.build.build import cache_clear

WRONG, SAID = 3, 4
WIDTHS = (4, 5, 6)


def call(width: int, strategy: str = "kernel") -> Tensor:
    """The product of given operands, by a kernel that this process has to load or to build."""
    product = tpgen.TensorProduct(
        f"{width}x1o", "1o", f"{width}x0e", [(0, 0, 0, "uvu", False)], strategy=strategy
    ).double()
    x = torch.linspace(-1.0, 1.0, 6 * width, dtype=torch.float64).view(2, 3 * width)
    return product(x, torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, -2.0]], dtype=torch.float64))


def one(wanted: dict[int, Tensor]) -> int:
    """What one process does, and how it ends."""
    if random.random() < 0.2:
        cache_clear()
        return 0
    width = random.choice(WIDTHS)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = call(width)
    return SAID if said else 0 if torch.allclose(found, wanted[width]) else WRONG


def start(wanted: dict[int, Tensor]) -> int:
    child = os.fork()
    if child:
        return child
    random.seed(os.getpid())
    ended = 1
    try:
        ended = one(wanted)
    finally:
        os._exit(ended)


def many(count: int, seconds: float) -> Counter[int]:
    """Keep so many processes alive, kill one of them every now and then; how often each end was met."""
    wanted = {width: call(width, "einsum") for width in WIDTHS}
    ends: Counter[int] = Counter()
    alive: set[int] = set()
    until = time.monotonic() + seconds
    while time.monotonic() < until or alive:
        while len(alive) < count and time.monotonic() < until:
            alive.add(start(wanted))
        if alive and random.random() < 0.02:
            os.kill(random.choice(sorted(alive)), signal.SIGKILL)
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            alive.remove(child)
            ends[os.waitstatus_to_exitcode(status)] += 1
        else:
            time.sleep(0.005)
    return ends


class Products(Dataset):
    """Items that a kernel computes, wherever they are asked for."""

    def __len__(self) -> int:
        return len(WIDTHS)

    def __getitem__(self, n: int) -> float:
        return float(call(WIDTHS[n]).sum())
