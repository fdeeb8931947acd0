"""The model's instructions of a step, beside those that warps run of the kernel's PTX."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests.kernels.cuda.emulator.products import Emulated
from tests.kernels.cuda.named import BACKWARD, FORWARD, Kernel
from tests.machine import needs_nvrtc
from tpgen.kernels.cuda.counts import work_of
from tpgen.kernels.sweep.terms import SLOTS
from tpgen.planner.problems import PROBLEMS

DEGREE = 20  # edges of a node
# What the model counts, relative to PTX without moves between registers, most of which no device executes.
COUNTED = (0.75, 1.2)


def run(emulated: Emulated, indexed: bool, steps: int) -> Counter[str]:
    """What the warps of a block issue for so many steps."""
    p = emulated.placement
    rows = steps * p.rows
    nodes = max(1, rows // DEGREE)
    shapes = {name: (nodes if indexed and name in ("x1", "out") else rows, p.dim[name]) for name in SLOTS}
    given = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    ends = torch.arange(rows) * nodes // rows
    emulated.run(given, (ends, ends) if indexed else None, blocks=1)
    return emulated.issued


def check(kernel: Kernel) -> None:
    emulated = Emulated(kernel.source(90))
    few, many = (run(emulated, kernel.indexed, steps) for steps in (3, 5))
    many.subtract(few)
    issued = sum(times for name, times in many.items() if not name.startswith(("mov.", "mbarrier.try_wait"))) / 2
    low, high = COUNTED
    assert low < work_of(emulated.placement).issued / issued < high, kernel


@needs_nvrtc
@pytest.mark.parametrize("opened, indexed", [(BACKWARD, False), (FORWARD, True)])
def test_the_model_counts_what_warps_run(opened: tuple[str, ...], indexed: bool) -> None:
    check(Kernel("mixed-mul", opened, indexed=indexed))


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("opened", [FORWARD, BACKWARD])
@pytest.mark.parametrize("name", [name for name, problem in PROBLEMS.items() if problem.suite == "channelwise"])
def test_so_it_does_of_every_named_problem(name: str, opened: tuple[str, ...], indexed: bool) -> None:
    check(Kernel(name, opened, indexed=indexed))
