"""Gates, as `GateTable` tells them: a kernel for the value, for gradients at once, and for the gradients of these.

Derivatives from the third on are torch's operations, as is all that is transformed, traced or compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.errors import InputError
from tpgen.functions.gate_kernel import GateTable, gate_first, gate_second, gate_value
from tpgen.functions.numbers import can_build
from tpgen.kernels.runtime.registration import apply_of
from tpgen.nn.multilinear import is_usual

TORCH: dict[str, Callable[[Tensor], Tensor]] = {  # the functions of tables
    "identity": lambda x: x,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "relu": torch.relu,
}


def gate(table: GateTable, x: Tensor, kernels: bool = True) -> Tensor:
    """The results ``(..., dim_out)`` of a gate for rows ``(..., dim_in)``, differentiable to any order.

    Raises `InputError` for rows of another length.

    >>> from tpgen.functions.gate_kernel import make_gate_table
    >>> table = make_gate_table([("relu", 2.0, 0, 0, 0), ("abs", 1.0, 1, 2, 3)])
    >>> gate(table, torch.tensor([[1.0, -2.0, 3.0, 4.0, 5.0]]))
    tensor([[ 2.,  6.,  8., 10.]])
    """
    asked = isinstance(x, Tensor) and not torch.jit.is_tracing()
    if asked and (x.dim() == 0 or x.shape[-1] != table.dim_in):
        raise InputError(f"features: the gate takes rows of {table.dim_in} numbers, got shape {tuple(x.shape)}")
    if torch.compiler.is_compiling() or not (kernels and is_usual(x) and can_build()):
        return gate_by_torch(table, x)
    recorded = x.requires_grad and torch.is_grad_enabled()
    (made,) = _recorded(table, 0, x) if recorded else gate_value(table, x)
    return made


def gate_by_torch(table: GateTable, x: Tensor) -> Tensor:
    """Compute a gate of rows ``(..., in)`` in torch's operations: the definition, and what traces and scripts hold."""
    places = sorted({table.dim_in, *(place for run in table.runs for place in (run.scalar, run.gated))})
    split = x.split([end - begin for begin, end in pairwise(places)], -1)
    parts = {place: split[n] for n, place in enumerate(places[:-1])}  # a proxy has no length to go through
    made = []
    for run in table.runs:
        factor = TORCH[run.function](parts[run.scalar])
        factor = factor if run.scale == 1.0 else factor * run.scale
        if run.width:
            copies = parts[run.gated].unflatten(-1, (run.copies, run.width))
            factor = (copies * factor.unsqueeze(-1)).flatten(-2)
        made.append(factor)
    return torch.cat(made, -1) if made else x


class _Derivative(torch.autograd.Function):
    """A gate (order 0, at x), its gradient (order 1, at g and x), or the gradients of that (order 2, at c, g and x)."""

    @staticmethod
    def forward(ctx: Any, table: GateTable, order: int, *point: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*point)
        ctx.table, ctx.order = table, order
        return _KERNELS[order](table, *point)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        table, point, order = ctx.table, ctx.saved_tensors, ctx.order + 1
        if order == len(_KERNELS) or not is_usual(*cotangents):
            found = _pulled_back(table, ctx.order, point, cotangents)
        elif torch.is_grad_enabled():
            found = _Derivative.apply(table, order, *cotangents, *point)
        else:
            found = _KERNELS[order](table, *cotangents, *point)
        return None, None, *found


_KERNELS: tuple[Callable[..., tuple[Tensor, ...]], ...] = (gate_value, gate_first, gate_second)  # by order
_recorded = apply_of(_Derivative)


def _by_torch(table: GateTable, order: int, *point: Tensor) -> tuple[Tensor, ...]:
    """Compute a gate (order 0) or its derivative of an order, in torch's operations."""
    if order == 0:
        return (gate_by_torch(table, *point),)
    return _pulled_back(table, order - 1, point[1:], point[:1])


def _pulled_back(
    table: GateTable, order: int, point: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The gradients of an order at a point, in any transform, and with a graph where one is wanted of them."""
    pull = torch.func.vjp(partial(_by_torch, table, order), *point)[1]
    return pull(tuple(cotangents))
