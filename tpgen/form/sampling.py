"""Random operands, and their shapes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tpgen.planner.plan import ELEMENT, SHARED, Operand, Plan


def random_operands(
    plan: Plan,
    rows: int,
    names: Iterable[str] = ("x1", "x2", "w"),
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> dict[str, Tensor]:
    """Draw normally distributed operands by name, in float64 before rounding.

    >>> from tpgen.planner.presets import channelwise
    >>> found = random_operands(channelwise("8x1o", "1o", "0e"), 5)
    >>> {name: tuple(x.shape) for name, x in found.items()}
    {'x1': (5, 24), 'x2': (5, 3), 'w': (5, 8)}
    """
    found = {}
    for o in (plan.operand(name) for name in names):
        shape = {SHARED: (), ELEMENT: (1,)}.get(o.rows, (rows,)) + (o.dim,)
        found[o.name] = torch.randn(shape, generator=generator, dtype=torch.float64).to(device=device, dtype=dtype)
    return found


def find_operand_shape(o: Operand, rows: int, channels: int, elements: int = 1) -> tuple[int, ...]:
    if o.weights:
        return elements, o.dim, channels
    return rows, o.dim * (channels if o.channels else 1)
