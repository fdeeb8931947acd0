"""What NVRTC makes of kernels, counted in the instructions of the device: few for each number that is moved.

The instructions of a part of a kernel are those that are gone when nothing calls it.  Convolutions and products that
mix copies run loops, whose rounds do not stand in the machine code.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import cycle, product

import pytest

from tests.kernels.cuda.named import BACKWARD, FORWARD, Call, Kernel
from tests.machine import needs_nvdisasm, needs_nvrtc
from tpgen.kernels.cuda.channel_placement import CudaChannelPlacement
from tpgen.kernels.cuda.chips import LANES
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.runtime.polynomials import POLYNOMIAL_CALLS
from tpgen.tools.inspection.stages.cuda import disassemble_to_sass

pytestmark = [needs_nvrtc, needs_nvdisasm]
ARCHITECTURES = (80, 90)
_OPERATION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)")


def operations(source: CudaSource) -> Counter[str]:
    """The instructions of all kernels of a source, by name."""
    found = (_OPERATION.match(line) for line in disassemble_to_sass(source).splitlines())
    return Counter(operation[1] for operation in found if operation)


def executed(source: CudaSource) -> int:
    """Those that some warp executes."""
    found = operations(source)
    return found.total() - found["NOP"]


def without(source: CudaSource, called: str) -> CudaSource:
    """The same kernels, which leave a call out."""
    text = re.sub(called, "", source.text)
    assert text != source.text
    return replace(source, source=replace(source.source, text=text))


# The most instructions of a lane for each number that is moved; about 27 are free on an H200.
PRODUCTS = {FORWARD: 8, BACKWARD: 17}
# Of polynomials, whose arithmetic takes longer than memory: forward, backward, second.
ROWS = {
    "mace-contraction": (62, 93, 157),
    "small-contraction": (39, 30, 35),
    "turned": (20, 36, 38),
    "harmonics": (24, 30, 22),
}


def check(kernel: Kernel, arch: int) -> None:
    source = kernel.source(arch)
    p, found = source.placement, operations(source)
    assert isinstance(p, CudaChannelPlacement)
    assert not {"LDL", "STL"} & set(found), "numbers were put aside in memory"
    assert "ENDCOLLECTIVE" not in found, "the compiler does not know that the lanes of a warp go together"
    assert bool(found["UBLKCP"]) == (arch == 90), "rows come by the copy engine where there is one"
    whole = executed(source)
    of_group = {g.number: whole - executed(without(source, rf"case {g.number}: group_.*break;")) for g in p.groups}
    units = sum(of_group[u.work.number] for u in p.work_units)
    moved = sum(p.dim[o] for o in (*p.row_operands, *p.results)) * p.rows
    assert LANES * units / moved < PRODUCTS[kernel.opened]


@pytest.mark.parametrize(
    "name, opened, arch", [("mace-large", FORWARD, 90), ("mixed-mul", BACKWARD, 90), ("mixed-mul", FORWARD, 80)]
)
def test_few_instructions_for_each_number_moved(name: str, opened: tuple[str, ...], arch: int) -> None:
    check(Kernel(name, opened), arch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, call, arch", [(*row, arch) for row, arch in zip(product(ROWS, POLYNOMIAL_CALLS), cycle(ARCHITECTURES))]
)
def test_a_row_of_a_polynomial(name: str, call: str, arch: int) -> None:
    source = Call(name, call).source(arch)
    p = source.placement
    assert isinstance(p, CudaPolynomialPlacement)
    row = executed(source) - executed(without(source, r"(?<=\n)\s+row\(call, l.*;"))
    numbers = sum(p.operands[slot].dim for slot in (*p.inputs, *p.row_slots))
    assert row / numbers < ROWS[name][POLYNOMIAL_CALLS.index(call)]
