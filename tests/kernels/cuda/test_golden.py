"""Golden files: the CUDA C++ of four kernels, a line for each header; accepted with ``--accept-golden``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import check_golden, without_headers
from tpgen.form.form import form_of
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.generate import generate_cuda
from tpgen.kernels.cuda.placement import place_form
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected

FOLDER = Path(__file__).parent / "golden"
BACKWARD = ("x1", "x2", "w")


def channels(shared: bool = False) -> Plan:
    return channelwise("40x1o", "1o", "0e", shared_weights=shared)


def mixing() -> Plan:
    return fully_connected("2x1o", "1o", "3x0e", shared_weights=False)


GOLDEN = {
    "backward": (channels(), "mul_ir", "float32", BACKWARD, 90, False),
    "edges": (channels(), "ir_mul", "float64", ("out",), 80, True),
    "mixing": (mixing(), "mul_ir", "float32", ("w",), 90, False),
    "shared-weights-bfloat16": (channels(shared=True), "mul_ir", "bfloat16", ("w",), 70, False),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_generated_text(name: str, request: pytest.FixtureRequest) -> None:
    plan, layout, dtype, opened, arch, indexed = GOLDEN[name]
    text = generate_cuda(place_form(form_of(plan, layout), dtype, opened, chip_of(arch), indexed)).text
    check_golden(FOLDER / f"{name}.cu", without_headers(text, "cuda"), request)


def test_every_golden_file_is_of_a_test() -> None:
    assert {file.stem for file in FOLDER.glob("*")} == set(GOLDEN)


def test_every_line_of_a_path_says_so() -> None:
    plan, layout, dtype, opened, arch, _ = GOLDEN["backward"]
    source = generate_cuda(place_form(form_of(plan, layout), dtype, opened, chip_of(arch))).source
    lines = source.text.split("\n")
    for path in plan.paths:
        mine = [lines[n - 1].strip() for n in source.lines_of(path.index)]
        assert any(line.startswith("// path") for line in mine)
        assert any("widen(w[" in line for line in mine)
