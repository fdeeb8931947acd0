"""Shapes of operands, and random ones of products, for tests, laws, examples and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tpgen.planner.plan import Operand, Plan


def operand_shapes(plan: Plan, rows: int) -> dict[str, tuple[int, ...]]:
    """The shape of every operand of a product of so many rows; ``out`` is that of the result and its cotangent."""
    return {
        "x1": (rows, plan.irreps_in1.dim),
        "x2": (rows, plan.irreps_in2.dim),
        "w": (plan.weight_numel,) if plan.shared_weights else (rows, plan.weight_numel),
        "out": (rows, plan.irreps_out.dim),
    }


def random_operands(
    plan: Plan,
    rows: int,
    names: Iterable[str] = ("x1", "x2", "w"),
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> dict[str, Tensor]:
    """Operands with normally distributed entries, drawn in the order of the names in float64, then rounded.

    >>> from tpgen.planner.presets import channelwise
    >>> found = random_operands(channelwise("8x1o", "1o", "0e"), 5)
    >>> {name: tuple(x.shape) for name, x in found.items()}
    {'x1': (5, 24), 'x2': (5, 3), 'w': (5, 8)}
    """
    shapes = operand_shapes(plan, rows)
    return {
        name: torch.randn(shapes[name], generator=generator, dtype=torch.float64).to(device=device, dtype=dtype)
        for name in names
    }


def polynomial_shape(o: Operand, rows: int, channels: int, elements: int = 1) -> tuple[int, ...]:
    """The shape of an operand of a polynomial; weights have a set for each element."""
    if o.weights:
        return elements, o.dim, channels
    return rows, o.dim * (channels if o.channels else 1)
