"""The sum over blocks of the gradient of weights that all rows share: right, the same bits in any order."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tests.kernels.cuda.standin import StandIn
from tests.kernels.cuda.test_products import TOLERANCES, Case
from tests.kernels.plans import mode_plan
from tpgen.kernels.cuda.chips import LANES
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.cuda.launch import KernelLaunch
from tpgen.kernels.cuda.prelude import SUM_ENTRY

# Fewer parts than warps, as many, a tail of every kind, and more than all warps read at once.
PARTS = (1, 5, 32, 33, 255, 257, 600)


def source(dtype: str) -> CudaSource:
    return Case(mode_plan("uvu", True, True, 5, 3), "mul_ir", dtype, ("w",), 1).source


def added(stand_in: StandIn, n: int, parts: Tensor, seed: int) -> Tensor:
    """The sums of parts, in the numbers that stand in memory."""
    dtype = getattr(torch, stand_in.sources[n].placement.schedule.target.dtype)
    found = torch.full((parts.shape[1],), float("nan"), dtype=dtype)
    pointers = (ctypes.c_void_p(x.data_ptr()) for x in (parts, found))
    stand_in.launch(n, KernelLaunch(SUM_ENTRY, -(-len(found) // LANES), (*pointers, ctypes.c_int(len(parts)))), seed)
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
