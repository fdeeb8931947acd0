"""The text of polynomials' kernels: golden files, accepted with ``--accept-golden``; and the stand-in can fail,
where one thing is taken out of it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.golden import check_golden, without_headers
from tests.kernels.cuda.polynomials.standin import PolynomialStandIn
from tests.kernels.cuda.polynomials.test_calls import Case
from tests.machine import needs_compiler
from tests.polynomials import mixed, small_symmetric
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.generate import CudaSource, generate_cuda
from tpgen.kernels.cuda.placement import place_polynomial
from tpgen.kernels.runtime.polynomials import describe_polynomial, named_call
from tpgen.planner.plan import Plan

FOLDER = Path(__file__).parent / "golden"
GOLDEN = {
    "symmetric-second": (small_symmetric(), "second", "float32", 90),
}


def source_of(plan: Plan, call: str, dtype: str, arch: int) -> CudaSource:
    sweep = describe_polynomial(plan).sweep(named_call(plan, call))
    return generate_cuda(place_polynomial(plan, sweep, dtype, chip_of(arch)))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_text(name: str, request: pytest.FixtureRequest) -> None:
    check_golden(FOLDER / f"{name}.cu", without_headers(source_of(*GOLDEN[name]).text, "cuda"), request)


def test_every_golden_file_is_of_a_test() -> None:
    assert {file.stem for file in FOLDER.glob("*")} == set(GOLDEN)


LAYOUTS = ["mul_ir", "ir_mul"]
# what is taken out of the text of a layout, and how it shows
WITHOUT = {
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
def test_what_is_missing_shows(tmp_path: Path) -> None:
    wholes = {layout: Case("mixed", mixed(layout), "backward", "float32", 40, "elements") for layout in LAYOUTS}
    texts = [case.source for case in wholes.values()]
    texts += [_changed(wholes[layout].source, before, after) for layout, before, after, _ in WITHOUT.values()]
    built = PolynomialStandIn(texts, tmp_path)
    for n, (what, (layout, *_, sign)) in enumerate(WITHOUT.items(), len(LAYOUTS)):
        case = wholes[layout]
        given, signs = case.given, set[str]()
        right = built.run(LAYOUTS.index(layout), given, case.index, case.sizes)
        for seed in range(3):
            try:
                found = built.run(n, given, case.index, case.sizes, seed=seed)
            except AssertionError as fault:
                signs.add(str(fault))
            else:
                signs |= {"right" if all(map(torch.equal, found, right)) else "wrong"}
        assert any(sign in found for found in signs), (what, signs)


def _changed(source: CudaSource, before: str, after: str) -> CudaSource:
    assert before in source.text
    text = source.text.replace(before, after).replace("DEVICE void row(", f"{_HALF_A_WARP}DEVICE void row(")
    return replace(source, source=replace(source.source, text=text))
