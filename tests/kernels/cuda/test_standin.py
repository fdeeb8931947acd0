"""The stand-in can fail: texts with one thing taken out give a fault, or numbers that are wrong in some order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.kernels.cuda.standin import StandIn
from tests.kernels.cuda.test_products import Case
from tests.kernels.plans import mode_plan
from tpgen.kernels.cuda.generate import CudaSource

# what is taken out of the text, and how it shows
WITHOUT = {
    "barrier before the units": ("__syncthreads();\n  compute_units", "compute_units", "wrong"),
    "wait for the copies": ("  barrier_wait(b, parity);", "", "a barrier is used before its phase has ended"),
    "wait for short rows": ("  async_wait<STAGES - 1>();", "", "wrong"),
    "drain": ("bulk_drain();", "", "a thread ends while its copies read shared memory"),
    "alignment": ("fetch(stage + 0,", "fetch(stage + 4,", "a copy is not aligned"),
    "room": ("fetch(stage + 0,", "fetch(stage + (1 << 20),", "a copy leaves shared memory"),
    "thread": ("int n = threadIdx.x; n < count", "int n = threadIdx.x + 1; n < count", "wrong"),
    "lane": (
        "fold_step<N, WIDTH / 2>(a, within);",
        "if (lane) fold_step<N, WIDTH / 2>(a, within);",
        "wait for what never",
    ),
    "bounds": (
        "clear(s.p_x2, ",
        "clear((num*)(shared_memory() + SHARED), 1), clear(s.p_x2, ",
        "written beside shared",
    ),
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    source = case().source
    texts = [source, *(_changed(source, before, after) for before, after, _ in WITHOUT.values())]
    return StandIn(texts, [2] * len(texts), tmp_path_factory.mktemp("broken"))


def case() -> Case:
    return Case(mode_plan("uvu", True, False, 40, 1), "mul_ir", "float32", ("x1", "x2", "w"), 2)


def _changed(source: CudaSource, before: str, after: str) -> CudaSource:
    assert before in source.text
    after = after.replace("SHARED", str(source.placement.shared))
    return replace(source, source=replace(source.source, text=source.text.replace(before, after)))


@pytest.mark.parametrize("what", WITHOUT)
def test_what_is_missing_shows(what: str, broken: StandIn) -> None:
    n, sign = 1 + list(WITHOUT).index(what), WITHOUT[what][2]
    given = case().operands
    right = broken.run(0, given)
    signs = set[str]()
    for seed in range(3):
        try:
            found = broken.run(n, given, seed=seed)
        except AssertionError as fault:
            signs.add(str(fault))
        else:
            signs |= {"wrong"} if any(not torch.equal(found[name], right[name]) for name in right) else set()
    assert any(sign in found for found in signs)


def test_phases_wait_for_each_other(tmp_path: Path) -> None:
    """A kernel that mixes copies, without the barrier between the products with weights and the gradients of inputs."""
    mixing = Case(mode_plan("uvw", True, False, 5, 3), "mul_ir", "float32", ("x1", "x2", "w"), 2)
    broken = _changed(mixing.source, "phase_1(s, warp);\n  __syncthreads();", "phase_1(s, warp);")
    stand_in, given = StandIn([mixing.source, broken], [2, 2], tmp_path), mixing.operands
    right = stand_in.run(0, given)
    runs = [stand_in.run(1, given, seed=seed) for seed in range(3)]
    assert any(not torch.equal(found[name], right[name]) for found in runs for name in ("x1", "x2"))
