"""What attacks draw: plans, layouts, operands that lie in memory in unusual ways, graphs."""

from __future__ import annotations

import torch
from e3nn.o3 import Irrep
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.plans import multiplicities
from tpgen.planner.modes import MODES
from tpgen.planner.plan import Plan
from tpgen.planner.product import make_plan

DEGREES = st.sampled_from(["0e", "0o", "1o", "1e", "2e"])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """One to three instructions of any modes; outputs that are shared by paths, dead, or reached by none."""
    in1, in2, out, instructions = [], [], [], []
    for n in range(draw(st.integers(1, 3))):
        mode = draw(st.sampled_from(sorted(MODES)))
        weighted = MODES[mode].needs_weight or draw(st.booleans())
        copies = multiplicities(mode, weighted, draw(st.integers(1, 5)), draw(st.integers(1, 3)))
        first, second = Irrep(draw(DEGREES)), Irrep(draw(DEGREES))
        third = draw(st.sampled_from(sorted(first * second)))
        for segments, mul, ir in zip((in1, in2, out), copies, (first, second, third), strict=True):
            segments.append((mul, ir))
        instructions.append((n, n, n, mode, weighted, draw(st.sampled_from([1.0, 0.3, 4.0, 0.0]))))
    if draw(st.booleans()):
        out.append((2, Irrep("3o")))
    if draw(st.booleans()) and len(instructions) > 1 and out[0] == out[1]:
        instructions[1] = (1, 1, 0, *instructions[1][3:])
    return make_plan(in1, in2, out, instructions, shared_weights=draw(st.booleans()))


@st.composite
def laid_out(draw: st.DrawFn, values: Tensor) -> Tensor:
    """The same numbers, somewhere else in memory."""
    kind = draw(st.sampled_from(["dense", "transposed", "offset", "strided"]))
    if kind == "transposed" and values.dim() == 2:
        return values.T.contiguous().T
    if kind == "offset":
        return torch.empty(values.numel() + 1, dtype=values.dtype)[1:].view(values.shape).copy_(values)
    if kind == "strided":
        wide = torch.full((*values.shape, 2), float("nan"), dtype=values.dtype)
        return wide.select(-1, 0).copy_(values)
    return values


def random_operands(plan: Plan, seed: int, x_rows: int, rows: int) -> tuple[Tensor, ...]:
    made = torch.Generator().manual_seed(seed)
    weights = (plan.weight_numel,) if plan.shared_weights else (rows, plan.weight_numel)
    shapes = ((x_rows, plan.irreps_in1.dim), (rows, plan.irreps_in2.dim), weights)
    return tuple(torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes)
