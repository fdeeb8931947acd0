"""Golden files: generated C++ and CUDA C++, for machines that are fixed here.

Headers and the text before all kernels stand in each as one line: two files show that text.  A file of a kernel that is
another one but for its layout or machine has the lines that differ.  A move keeps the files to the byte.  A change that
is meant: read it, then accept it with ``--accept-golden``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

import pytest

from tests.golden import check_golden, without_headers, without_prelude
from tests.polynomials import small_mixed, small_symmetric
from tpgen.form.form import form_of
from tpgen.kernels.cpp.generate import generate
from tpgen.kernels.cpp.polynomial import generate_polynomial
from tpgen.kernels.cpp.prelude import prelude_text
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.generate import CudaSource, generate_cuda
from tpgen.kernels.cuda.placement import place_form, place_polynomial
from tpgen.kernels.placement.planning import place, plan_schedule
from tpgen.kernels.placement.polynomial import PolynomialPlacement
from tpgen.kernels.placement.values import Target
from tpgen.kernels.rows import EDGES, ELEMENTS, RowRules
from tpgen.kernels.runtime.polynomials import describe_polynomial, parse_polynomial_call
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, elementwise, fully_connected
from tpgen.planner.product import make_plan

FOLDER = Path(__file__).parent / "golden"
# as of AVX-512, AVX2 (twice) and NEON
SINGLE, DOUBLE, HALF = Target("float32", 16, 32), Target("float64", 4, 16), Target("bfloat16", 8, 16)
NEON = Target("float32", 4, 32)


def channels(shared: bool = False) -> Plan:
    return channelwise("16x1o", "0e + 1o", "0e + 1o", shared_weights=shared)


def dots(shared: bool = False) -> Plan:
    return channelwise("16x1o", "1o", "0e", shared_weights=shared)


def vectors(shared: bool = True) -> Plan:
    return fully_connected("2x1o", "1x1o", "3x0e", shared_weights=shared)


def narrow() -> Plan:
    return channelwise("20x0e + 6x1o", "1o", "0e + 1o", shared_weights=False)


def connected() -> Plan:
    return fully_connected("1x0e + 2x1o", "2x1o", "3x0e + 2x1o", shared_weights=True)


def mixed_modes() -> Plan:
    instructions = [(0, 0, 0, "uvuv", False), (0, 0, 1, "uvv", True), (0, 0, 1, "uvu", True)]
    return make_plan("16x1o", "16x1o", "256x0e + 16x1e", instructions)


def pairs() -> Plan:
    instructions = [(0, 0, 0, "uvu<v", True), (0, 0, 1, "u<vw", True), (0, 0, 2, "uuw", True)]
    return make_plan("4x1o", "4x1o", "6x0e + 3x1e + 2x0e", instructions)


def linear(shared: bool | str = True) -> Plan:
    return make_linear_plan("16x0e + 6x1o", "32x0e + 4x1o + 1x0o", shared_weights=shared)


@dataclass(frozen=True)
class Kernel:
    plan: Callable[[], Plan]
    opened: tuple[str, ...] = ("out",)
    target: Target = SINGLE
    layout: str = "mul_ir"
    rules: RowRules = ()
    beside: str = ""  # the kernel that this one is compared with

    @property
    def text(self) -> str:
        schedule = plan_schedule(form_of(self.plan(), self.layout), self.target)
        p = place(schedule, self.opened, self.rules)
        before = prelude_text(schedule.target, p.transposed_segments, getattr(schedule, "rows", 0))
        text = without_headers(without_prelude(generate(p).text, before), "cpp")
        if not self.beside:
            return text
        other = GOLDEN[self.beside].text
        changes = unified_diff(other.splitlines(), text.splitlines(), self.beside, "this", n=0, lineterm="")
        return "\n".join(changes) + "\n"


@dataclass(frozen=True)
class Polynomial:
    plan: Plan
    call: str
    target: Target = SINGLE

    @property
    def text(self) -> str:
        sweep = describe_polynomial(self.plan).sweep(parse_polynomial_call(self.plan, self.call))
        placed = PolynomialPlacement(self.plan, sweep, self.target)
        before = prelude_text(self.target, placed.transposed_segments, self.target.lanes)
        return without_headers(without_prelude(generate_polynomial(placed).text, before), "cpp")


def rows_40(shared: bool = False) -> Plan:
    return channelwise("40x1o", "1o", "0e", shared_weights=shared)


@dataclass(frozen=True)
class Cuda:
    plan: Plan
    opened: tuple[str, ...]
    arch: int
    dtype: str = "float32"
    layout: str = "mul_ir"
    indexed: bool = False

    @property
    def source(self) -> CudaSource:
        form = form_of(self.plan, self.layout)
        return generate_cuda(place_form(form, self.dtype, self.opened, chip_of(self.arch), self.indexed))

    @property
    def text(self) -> str:
        return without_headers(self.source.text, "cuda")


@dataclass(frozen=True)
class CudaPolynomial:
    plan: Plan
    call: str

    @property
    def text(self) -> str:
        sweep = describe_polynomial(self.plan).sweep(parse_polynomial_call(self.plan, self.call))
        return without_headers(generate_cuda(place_polynomial(self.plan, sweep, "float32", chip_of(90))).text, "cuda")


GOLDEN = {
    "channel-forward": Kernel(channels),
    "channel-backward": Kernel(dots, ("x1", "x2", "w")),
    "channel-forward-ir_mul": Kernel(channels, layout="ir_mul", beside="channel-forward"),
    "channel-shared-weights": Kernel(lambda: dots(shared=True), ("x2", "w"), DOUBLE),
    "channel-narrow-bfloat16": Kernel(narrow, target=HALF),
    "channel-elementwise": Kernel(lambda: elementwise("16x1o", "16x1o", ["1e"]), ("x1",), DOUBLE),
    "channel-narrow-neon": Kernel(narrow, target=NEON, beside="channel-narrow-bfloat16"),
    "channel-mixed-modes": Kernel(mixed_modes),
    "conv-forward": Kernel(dots, target=NEON, rules=EDGES),
    "conv-backward": Kernel(dots, ("x1", "x2", "w"), rules=EDGES, target=DOUBLE),
    "batch-forward": Kernel(connected),
    "batch-backward": Kernel(vectors, ("x1", "x2", "w"), DOUBLE),
    "batch-row-weights": Kernel(lambda: vectors(shared=False), ("w",), layout="ir_mul"),
    "batch-conv-bfloat16": Kernel(vectors, target=HALF, rules=EDGES),
    "batch-pairs": Kernel(pairs, ("w",), DOUBLE),
    "matrix-forward": Kernel(linear),
    "matrix-forward-neon": Kernel(linear, target=NEON, beside="matrix-forward"),
    "matrix-backward": Kernel(linear, ("x1", "w"), DOUBLE, "ir_mul"),
    "matrix-elements-forward": Kernel(lambda: linear(shared="element"), rules=(ELEMENTS,)),
    "matrix-elements-backward": Kernel(lambda: linear(shared="element"), ("x1", "w"), DOUBLE, rules=(ELEMENTS,)),
    "matrix-row-weights": Kernel(lambda: linear(shared=False), ("x1", "w", "out"), HALF),
    "symmetric-forward": Polynomial(small_symmetric(), "forward"),
    "symmetric-second": Polynomial(small_symmetric(), "second"),
    "mixed-forward": Polynomial(small_mixed(), "forward", HALF),
    "mixed-backward": Polynomial(small_mixed(), "backward", HALF),
    "cuda-backward": Cuda(rows_40(), ("x1", "x2", "w"), 90),
    "cuda-edges": Cuda(rows_40(), ("out",), 80, "float64", "ir_mul", indexed=True),
    "cuda-mixing": Cuda(fully_connected("2x1o", "1o", "3x0e", shared_weights=False), ("w",), 90),
    "cuda-shared-weights-bfloat16": Cuda(rows_40(shared=True), ("w",), 70, "bfloat16"),
    "cuda-symmetric-second": CudaPolynomial(small_symmetric(), "second"),
}


def golden_file(name: str) -> Path:
    return FOLDER / f"{name}.{'cu' if name.startswith('cuda-') else 'cpp'}"


@pytest.mark.parametrize("name", GOLDEN)
def test_generated_text(name: str, request: pytest.FixtureRequest) -> None:
    check_golden(golden_file(name), GOLDEN[name].text, request)


def test_every_line_of_a_path_on_a_gpu_says_so() -> None:
    kernel = GOLDEN["cuda-backward"]
    source = kernel.source.source
    lines = source.text.split("\n")
    for path in kernel.plan.paths:
        mine = [lines[n - 1].strip() for n in source.lines_of(path.index)]
        assert any(line.startswith("// path") for line in mine)
        assert any("widen(w[" in line for line in mine)


# target, components and items of segments, rows in a tile
PRELUDES = {"prelude-float64": (DOUBLE, {(3, 4)}, 4), "prelude-bfloat16": (HALF, {(3, 2)}, 0)}


@pytest.mark.parametrize("name", PRELUDES)
def test_text_before_all_kernels(name: str, request: pytest.FixtureRequest) -> None:
    check_golden(FOLDER / f"{name}.cpp", without_headers(prelude_text(*PRELUDES[name]), "cpp") + "\n", request)


def test_every_golden_file_is_of_a_test() -> None:
    assert {file.stem for file in FOLDER.glob("*")} == {*GOLDEN, *PRELUDES}
