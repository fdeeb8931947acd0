"""The stand-in can fail: texts with one thing taken out give a fault, or numbers that are wrong in some order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.polynomials.test_calls import Case as PolynomialCase
from tests.kernels.cuda.standin import StandIn
from tests.kernels.cuda.test_products import Case
from tests.kernels.plans import mode_plan
from tests.machine import needs_compiler
from tests.polynomials import mixed
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
    text = source.text.replace(before, after).replace("DEVICE void row(", f"{_HALF_A_WARP}DEVICE void row(")
    return replace(source, source=replace(source.source, text=text))


def shows(sign: str, right: Sequence[Tensor], run: Callable[[int], Sequence[Tensor]]) -> bool:
    """Whether runs of some seeds say a sign, or are wrong."""
    signs = set[str]()
    for seed in range(3):
        try:
            found = run(seed)
        except AssertionError as fault:
            signs.add(str(fault))
        else:
            signs |= {"right" if all(map(torch.equal, found, right)) else "wrong"}
    return any(sign in found for found in signs)


@pytest.mark.parametrize("what", WITHOUT)
def test_what_is_missing_shows(what: str, broken: StandIn) -> None:
    n, sign = 1 + list(WITHOUT).index(what), WITHOUT[what][2]
    given = case().operands
    right = [*broken.run(0, given).values()]
    assert shows(sign, right, lambda seed: [*broken.run(n, given, seed=seed).values()])


LAYOUTS = ["mul_ir", "ir_mul"]
# what is taken out of the text of a layout, and how it shows
WITHOUT_OF_POLYNOMIALS = {
    "barrier before the rows": ("ir_mul", "__syncthreads();\n  num* const tile", "num* const tile", "wrong"),
    "barrier before the sums": ("mul_ir", "__syncthreads();\n  for (int n = warp", "for (int n = warp", "wrong"),
    "a warp's own barrier": ("mul_ir", "__syncwarp();", "", "wrong"),
    "room": ("mul_ir", "ADDED) + warp * TILE", "ADDED) + (warp + 2) * TILE", "written beside shared memory"),
    "lanes": ("mul_ir", "over_channels(d_x_y[i], l,", "lane_channels(d_x_y[i], l,", "wait for what never"),
}
_HALF_A_WARP = """DEVICE num lane_channels(num value, const Lane& l, int width) {
  return l.lane < 16 ? over_channels(value, l, width) : value;
}
"""


@needs_compiler
def test_what_is_missing_in_a_polynomial_shows(tmp_path: Path) -> None:
    wholes = {
        layout: PolynomialCase("mixed", mixed(layout), "backward", "float32", 40, "elements") for layout in LAYOUTS
    }
    texts = [case.source for case in wholes.values()]
    texts += [_changed(wholes[layout].source, *change) for layout, *change, _ in WITHOUT_OF_POLYNOMIALS.values()]
    built = StandIn(texts, [0] * len(texts), tmp_path)
    for n, (what, (layout, *_, sign)) in enumerate(WITHOUT_OF_POLYNOMIALS.items(), len(LAYOUTS)):
        whole = wholes[layout]
        given = whole.given, whole.index, whole.sizes
        right = built.run_polynomial(LAYOUTS.index(layout), *given)
        assert shows(sign, right, lambda seed, n=n, given=given: built.run_polynomial(n, *given, seed=seed)), what


def test_phases_wait_for_each_other(tmp_path: Path) -> None:
    """A kernel that mixes copies, without the barrier between the products with weights and the gradients of inputs."""
    mixing = Case(mode_plan("uvw", True, False, 5, 3), "mul_ir", "float32", ("x1", "x2", "w"), 2)
    broken = _changed(mixing.source, "phase_1(s, warp);\n  __syncthreads();", "phase_1(s, warp);")
    stand_in, given = StandIn([mixing.source, broken], [2, 2], tmp_path), mixing.operands
    right = stand_in.run(0, given)
    runs = [stand_in.run(1, given, seed=seed) for seed in range(3)]
    assert any(not torch.equal(found[name], right[name]) for found in runs for name in ("x1", "x2"))
