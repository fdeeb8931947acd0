"""The sum over blocks of the gradient of weights that all rows share: right, the same bits in any order, predicted."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.standin import StandIn
from tests.kernels.cuda.test_products import TOLERANCES, Case
from tests.kernels.plans import mode_plan
from tpgen.form.form import form_of
from tpgen.kernels.arguments import Sizes
from tpgen.kernels.cuda.chips import CHIPS, LANES, chip_of
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.cuda.launch import Launch, launches_of
from tpgen.kernels.cuda.model import predict, sum_seconds
from tpgen.kernels.cuda.placement import cuda_target, place_cuda
from tpgen.kernels.cuda.prelude import SUM_ENTRY
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.planner.problems import find_problem

# Fewer parts than warps, as many, a tail of every kind, and more than all warps read at once.
PARTS = (1, 5, 32, 33, 255, 257, 600)


def source(dtype: str) -> CudaSource:
    return Case(mode_plan("uvu", True, True, 5, 3), "mul_ir", dtype, ("w",), 1).source


def added(stand_in: StandIn, n: int, parts: Tensor, seed: int) -> Tensor:
    """The sums of parts, in the numbers that stand in memory."""
    dtype = getattr(torch, stand_in.sources[n].placement.schedule.target.dtype)
    found = torch.full((parts.shape[1],), float("nan"), dtype=dtype)
    pointers = (ctypes.c_void_p(x.data_ptr()) for x in (parts, found))
    stand_in.launch(n, Launch(SUM_ENTRY, -(-len(found) // LANES), (*pointers, ctypes.c_int(len(parts)))), seed)
    return found


def test_sums_of_any_number_of_parts(tmp_path: Path) -> None:
    sources = [source(dtype) for dtype in TOLERANCES]
    stand_in = StandIn(sources, [1] * len(sources), tmp_path)
    for n, (dtype, tolerance) in enumerate(TOLERANCES.items()):
        for count in PARTS:
            parts = torch.randn(count, sources[n].placement.dim["w"], dtype=torch.float64)
            parts = parts if dtype == "float64" else parts.float()
            found, again = (added(stand_in, n, parts, seed) for seed in (0, 2))
            assert torch.equal(found, again), f"{dtype}, {count} parts: the sum depends on the order of threads"
            torch.testing.assert_close(found.double(), parts.double().sum(0), rtol=tolerance, atol=10 * tolerance)


def test_warps_wait_for_each_other(tmp_path: Path) -> None:
    right = source("float32")
    before, after = right.text.split("tpgen_sum(")
    text = f"{before}tpgen_sum({after.replace('__syncthreads();', '')}"
    broken = replace(right, source=replace(right.source, text=text))
    stand_in, parts = StandIn([right, broken], [1, 1], tmp_path), torch.randn(40, right.placement.dim["w"])
    wanted = added(stand_in, 0, parts, 0)
    assert any(not torch.equal(added(stand_in, 1, parts, seed), wanted) for seed in range(3))


def test_a_sum_takes_no_longer_than_its_bytes_and_waits() -> None:
    """All parts at once where few; twice the time for many more rounds of a warp; the cache where weights are many."""
    chip = chip_of(90)
    assert sum_seconds(100, 4, 1, chip) == sum_seconds(3000, 4, 256, chip)
    assert sum_seconds(100, 4, 1024, chip) > 2 * sum_seconds(100, 4, 256, chip)
    assert sum_seconds(100_000, 4, 1000, chip) >= 4e8 / (2.5 * chip.bandwidth)


@pytest.mark.parametrize("arch", CHIPS)
def test_what_is_added_up_behind_the_rows_is_predicted(arch: int) -> None:
    """Only of weights that all rows share, and only where their gradient is asked for."""
    for name, opened, there in (
        ("article", ("x1", "x2", "w"), True),
        ("article", ("out",), False),
        ("diffdock-l1", ("x1", "x2", "w"), False),
    ):
        placement = place_cuda(
            plan_schedule(form_of(find_problem(name).plan, "mul_ir"), cuda_target("float32")), opened, chip_of(arch)
        )
        found = predict(placement)
        assert (found.after(10_000) > 0) == there
        rows_alone = 10_000 / (found.memory * found.share) + found.least
        assert found.seconds(10_000) == rows_alone + found.after(10_000)
        assert found.share_of(10_000) == pytest.approx(10_000 / found.memory / found.seconds(10_000))
        if there:
            blocks = launches_of(placement, Sizes(10_000)).runs
            assert found.after(10_000) == sum_seconds(placement.dim["w"], 4, blocks, placement.chip)
            assert found.limit_of(1) == "latency"
            assert replace(found, after=lambda rows: 1.0).limit_of(1) == "sums over blocks"
            assert found.launches == 2
