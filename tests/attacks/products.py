"""What attacks draw: plans, layouts, operands that lie in memory in unusual ways, graphs."""

from __future__ import annotations

from random import Random

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


# around the limits of kernels: paths of one function, `_MANY` of them, and what users have met
CROWDS = (4, 5, 31, 32, 33, 36, 64, 65, 119, 120, 121)
_CROWD_MODES = (("uuu",), ("uvu",), ("uvv",), ("uvuv",), ("uuu", "uvu"), ("uvu", "uvv"), ("uvw",), tuple(sorted(MODES)))


@st.composite
def crowds(draw: st.DrawFn) -> Plan:
    """Products of many paths, of one mode or of several; inputs and outputs that paths share, or each its own."""
    random = Random(draw(st.integers(0, 2**32)))  # one number: hypothesis draws few
    count, modes = random.choice(CROWDS), random.choice(_CROWD_MODES)
    mul, second, own = random.choice([1, 2, 4, 5, 8, 9]), random.randint(1, 2), random.random() < 0.5
    ends: tuple[list[tuple[int, Irrep]], ...] = ([], [], [])
    places: tuple[dict[tuple[int, Irrep], int], ...] = ({}, {}, {})
    instructions = []
    for _ in range(count):
        mode = random.choice(modes)
        weighted = MODES[mode].needs_weight or random.random() < 0.6
        one, two = (Irrep(random.choice(["0e", "0o", "1o", "1e"])) for _ in range(2))
        entries = zip(
            multiplicities(mode, weighted, mul, second), (one, two, random.choice(list(one * two))), strict=True
        )
        instructions.append((
            *(_place(entry, end, known, own) for entry, end, known in zip(entries, ends, places, strict=True)),
            mode, weighted, random.choice([1.0, 0.3]),
        ))  # fmt: skip
    return make_plan(*ends, instructions, shared_weights=random.random() < 0.5)


def _place(
    entry: tuple[int, Irrep], end: list[tuple[int, Irrep]], known: dict[tuple[int, Irrep], int], own: bool
) -> int:
    """The number of a segment: a new one, or the one that is alike."""
    if own or entry not in known:
        known[entry] = len(end)
        end.append(entry)
    return known[entry]


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
