"""Plans that put every mode through a schedule, with odd multiplicities and outputs that nothing reaches."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import torch
from torch import Tensor

from tpgen.form.sampling import random_operands
from tpgen.kernels.arguments import KernelSpec
from tpgen.kernels.rows import EDGES
from tpgen.kernels.runtime.call import FormCall, make_product_call
from tpgen.kernels.runtime.description import description_of_plan
from tpgen.planner.modes import MODES
from tpgen.planner.plan import Plan
from tpgen.planner.product import make_plan

VARIANTS = tuple(
    (mode.name, weighted, shared)
    for mode in MODES.values()
    for weighted, shared in ((True, True), (True, False), (False, True))
    if weighted or not mode.needs_weight
)


def multiplicities(mode: str, weighted: bool, m1: int, m2: int) -> tuple[int, int, int]:
    """Copies of both inputs and the output, where the free ones are m1 and m2."""
    if mode in ("uuw", "uuu", "uvu<v", "u<vw"):
        m2 = m1
    mixed = m1 + 1 if weighted else 1
    out = {
        "uvu": m1,
        "uvv": m2,
        "uuu": m1,
        "uvuv": m1 * m2,
        "uvu<v": comb(m1, 2),
        "u<vw": mixed,
        "uvw": mixed,
        "uuw": mixed,
    }
    return m1, m2, out[mode]


def mode_plan(mode: str, weighted: bool, shared: bool, m1: int, m2: int) -> Plan:
    """Scalar legs, the cross product, two paths into one output, and an output without a path."""
    a, b, c = multiplicities(mode, weighted, m1, m2)
    instructions = [
        (0, 0, 0, mode, weighted),
        (1, 0, 1, mode, weighted, 0.7),
        (1, 1, 2, mode, weighted),
        (1, 1, 0, mode, weighted, 2.0),
    ]
    return make_plan(
        f"{a}x0e+{a}x1o", f"{b}x1o+{b}x2e", f"{c}x1o+{c}x1e+{c}x3o+2x3e", instructions, shared_weights=shared
    )


def operands(plan: Plan, rows: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Random x1, x2, w and cotangent."""
    return random_operands(plan, rows, ("x1", "x2", "w", "out"), dtype=dtype)


def forward_spec(plan: Plan, dtype: torch.dtype = torch.float32) -> KernelSpec:
    """The kernel of a forward call of rows."""
    return KernelSpec(description_of_plan(plan), make_product_call(("out",)), dtype)


NAMES = ("x1", "x2", "w", "out")


def slots_of(mask: int) -> str:
    """Names of the slots in a mask: bits of x1, x2, w and out.

    >>> slots_of(9)
    'x1 out'
    """
    return " ".join(name for n, name in enumerate(NAMES) if mask >> n & 1)


def call(
    opened: str, *tensors: Tensor, text: str = "", edges: Sequence[Tensor | None] = (), nodes: int = 0
) -> FormCall:
    """A call that opens some slots, given as many of x1, x2, w and the cotangent as it reads."""
    slots = make_product_call(tuple(opened.split()))
    at = [end for end in edges if end is not None]
    return FormCall(tensors[: len(slots.given)], at, text, str(slots), EDGES if edges else (), nodes)


def gradients(
    text: str, *tensors: Tensor, opened: str = "x1 x2 w", edges: Sequence[Tensor | None] = ()
) -> list[Tensor]:
    """The gradients of a product, by the operator."""
    return torch.ops.tpgen.form(*call(opened, *tensors, text=text, edges=edges).to_arguments())
