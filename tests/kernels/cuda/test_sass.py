"""What NVRTC makes of kernels, counted in the instructions of the device: few for each number that is moved."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from tests.machine import needs_nvdisasm, needs_nvrtc
from tpgen.form.linear import form_of
from tpgen.inspection.stages.cuda import sass_of
from tpgen.kernels.cuda.channel_placement import CudaPlacement
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.counts import instructions
from tpgen.kernels.cuda.generate import CudaSource, generate_cuda
from tpgen.kernels.cuda.groups import LANES, Group
from tpgen.kernels.cuda.placement import cuda_target
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.planner.problems import find_problem

FORWARD, BACKWARD = ("out",), ("x1", "x2", "w")
_OPERATION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)")
# Open slots, and the most instructions of a lane for each number that is moved; about 27 are free on an H200.
CASES = [
    ("mace-large", FORWARD, 6),
    ("mace-large", BACKWARD, 12),
    ("mixed-mul", FORWARD, 8),
    ("mixed-mul", BACKWARD, 17),
]


def operations(source: CudaSource) -> Counter[str]:
    """The instructions of the main kernel, but those that never run."""
    found = Counter[str]()
    for line in sass_of(source).splitlines():
        if operation := _OPERATION.match(line):
            found[operation[1]] += 1
    return found


def executed(found: Counter[str]) -> int:
    return found.total() - found["NOP"]


def without(source: CudaSource, group: Group) -> CudaSource:
    """The same kernel, which leaves a group out."""
    text = re.sub(rf"case {group.number}: group_.*break;", "", source.text)
    assert text != source.text
    return replace(source, source=replace(source.source, text=text))


@needs_nvrtc
@needs_nvdisasm
@pytest.mark.parametrize("name, opened, most", CASES)
def test_few_instructions_for_each_number_moved(name: str, opened: tuple[str, ...], most: float) -> None:
    schedule = plan_schedule(form_of(find_problem(name).plan, "mul_ir"), cuda_target("float32"))
    source = generate_cuda(schedule, opened, chip_of(90))
    p = source.placement
    assert isinstance(p, CudaPlacement)
    whole = operations(source)
    assert not {"LDL", "STL"} & set(whole), "numbers were put aside in memory"
    assert "ENDCOLLECTIVE" not in whole, "the compiler does not know that the lanes of a warp go together"
    assert whole["UBLKCP"] > 0, "rows come by the copy engine"
    of_group = {g.number: executed(whole) - executed(operations(without(source, g))) for g in p.groups}
    units = sum(of_group[u.group.number] for u in p.units)
    moved = sum(p.dim[o] for o in (*p.row_operands, *p.results)) * p.rows
    assert LANES * units / moved < most
    counted = sum(instructions(p, u.group) for u in p.units)
    assert 0.75 < counted / units < 1.3, "the model counts other instructions than there are"
