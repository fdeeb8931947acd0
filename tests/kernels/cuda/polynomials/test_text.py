"""The stand-in can fail, where one thing is taken out of the text of a polynomial's kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from tests.kernels.cuda.polynomials.test_calls import Case
from tests.kernels.cuda.standin import StandIn
from tests.machine import needs_compiler
from tests.polynomials import mixed
from tpgen.kernels.cuda.generate import CudaSource

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
    built = StandIn(texts, [0] * len(texts), tmp_path)
    for n, (what, (layout, *_, sign)) in enumerate(WITHOUT.items(), len(LAYOUTS)):
        case = wholes[layout]
        given, signs = case.given, set[str]()
        right = built.run_polynomial(LAYOUTS.index(layout), given, case.index, case.sizes)
        for seed in range(3):
            try:
                found = built.run_polynomial(n, given, case.index, case.sizes, seed=seed)
            except AssertionError as fault:
                signs.add(str(fault))
            else:
                signs |= {"right" if all(map(torch.equal, found, right)) else "wrong"}
        assert any(sign in found for found in signs), (what, signs)


def _changed(source: CudaSource, before: str, after: str) -> CudaSource:
    assert before in source.text
    text = source.text.replace(before, after).replace("DEVICE void row(", f"{_HALF_A_WARP}DEVICE void row(")
    return replace(source, source=replace(source.source, text=text))
