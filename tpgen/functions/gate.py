r"""Gates of whole rows, by the kernel `gate.h`.

.. math:: y_u = k\, f(s_u), \quad y_{um} = k\, f(s_u)\, v_{um}

A row holds scalars s, each activated alone or the factor of a gated copy v.
"""

# PyTorch operations compute derivatives from order 3 on, and traced calls.

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tpgen.base.errors import InputError
from tpgen.base.remember import remembered
from tpgen.functions.numbers import (
    KernelFunction,
    can_build_kernel,
    recorded_function,
    run_kernel,
    write_elementwise_kernel_source,
)
from tpgen.kernels.build.build import load_kernel
from tpgen.kernels.build.compiler import cpu_target
from tpgen.kernels.cpp.text import number_literal
from tpgen.kernels.cpp.tiles import tile_transposes_text
from tpgen.kernels.runtime.given import as_floating_tensor
from tpgen.kernels.runtime.memory import empty_tensor
from tpgen.nn.plain_tensors import are_plain

TORCH: dict[str, Callable[[Tensor], Tensor]] = {  # the functions of tables: structs of functions.h, with a capital
    "identity": lambda x: x,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "relu": torch.relu,
}


class _RunOfEqualGates(NamedTuple):
    function: str
    scale: float
    copies: int
    scalar: int  # where their scalars begin in a row
    gated: int  # where the copies begin that these multiply; 0 where there are none
    width: int  # numbers of such a copy; 0 where there are none
    out: int  # where their results begin

    def continues_run(self, previous: _RunOfEqualGates) -> bool:
        """Whether this run continues ``previous`` in input and output.

        >>> first, second = (_RunOfEqualGates("silu", 1.0, *places) for places in ((2, 0, 4, 3, 0), (1, 2, 10, 3, 6)))
        >>> second.continues_run(first), second._replace(out=7).continues_run(first)
        (True, False)
        """
        n, width = previous.copies, previous.width
        places = previous.scalar + n, previous.gated + n * width, width, previous.out + n * (width or 1)
        return (self.function, self.scale, *self[3:]) == (previous.function, previous.scale, *places)


class GateTable(NamedTuple):
    """Layout of a gate: lengths of input and output rows, runs of equal gates in output order."""

    dim_in: int
    dim_out: int
    runs: tuple[_RunOfEqualGates, ...]


def make_gate_table(copies: Sequence[tuple[str, float, int, int, int]]) -> GateTable:
    """Make the table of gates in output order: (function, scale, column of scalar, of gated copy, its width or 0).

    >>> make_gate_table([("silu", 1.0, 0, 0, 0), ("tanh", 2.0, 1, 3, 3), ("tanh", 2.0, 2, 6, 3)]).runs
    (_RunOfEqualGates(function='silu', scale=1.0, copies=1, scalar=0, gated=0, width=0, out=0), \
_RunOfEqualGates(function='tanh', scale=2.0, copies=2, scalar=1, gated=3, width=3, out=1))
    """
    runs: list[_RunOfEqualGates] = []
    out = 0
    for function, scale, scalar, gated, width in copies:
        run = _RunOfEqualGates(function, scale, 1, scalar, gated, width, out)
        if runs and run.continues_run(runs[-1]):
            runs[-1] = runs[-1]._replace(copies=runs[-1].copies + 1)
        else:
            runs.append(run)
        out += width or 1
    return GateTable(sum(1 + width for *_, width in copies), out, tuple(runs))


def _write_gate_kernel_source(table: GateTable, dtype: torch.dtype) -> str:
    at = cpu_target(dtype)
    tiles = [
        "template <int D> struct Tile;  // W items of D numbers each <-> D vectors of W items",
        *(tile_transposes_text(at.lanes, width) for width in sorted({1} | {run.width for run in table.runs} - {0})),
    ]
    runs = [
        f"STEP<{run.function.capitalize()}, {run.width}>"
        f"(Run{{{run.scalar}, {run.gated}, {run.out}, {run.copies}, {number_literal(run.scale, at.dtype)}}}"
        ", __VA_ARGS__);"
        for run in table.runs
    ]
    sizes = f"enum {{ IN = {table.dim_in}, OUT = {table.dim_out} }};  // numbers of a row, and of its result"
    return write_elementwise_kernel_source(
        "gate", dtype, (*tiles, sizes, " \\\n  ".join(["#define EVERY_RUN(STEP, ...)", *runs]))
    )


@remembered("kernels of gates")
def _build_gate_kernel(table: GateTable, dtype: torch.dtype) -> Callable[..., int]:
    return load_kernel(_write_gate_kernel_source(table, dtype), addresses=8, numbers=1)


def gate_value(table: GateTable, x: Tensor) -> tuple[Tensor]:
    """Compute `gate` by the kernel, without an autograd graph, for CPU tensors."""
    out = empty_tensor((*x.shape[:-1], table.dim_out), x.dtype)
    _run_gate_kernel(table, (x,), (out, None, None))
    return (out,)


def gate_gradient(table: GateTable, g: Tensor, x: Tensor) -> tuple[Tensor]:
    """Compute the gradient of `gate` by x, for a cotangent g."""
    by_x = empty_tensor(tuple(x.shape), x.dtype)
    _run_gate_kernel(table, (x, g), (None, None, by_x))
    return (by_x,)


def gate_second_grad(table: GateTable, c: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradients of `gate_gradient` by g and x, for a cotangent c."""
    by_g, by_x = empty_tensor(tuple(g.shape), x.dtype), empty_tensor(tuple(x.shape), x.dtype)
    _run_gate_kernel(table, (x, g, c), (None, by_g, by_x))
    return by_g, by_x


def _run_gate_kernel(table: GateTable, inputs: Sequence[Tensor], results: Sequence[Tensor | None]) -> None:
    held = [x.contiguous() for x in inputs]  # as long as the kernel reads them
    operands = (*held, *[None] * (4 - len(held)), *results)
    run_kernel(_build_gate_kernel(table, inputs[0].dtype), operands, inputs[0].shape[:-1].numel())


def gate(table: GateTable, x: Tensor, kernels: bool = True) -> Tensor:
    """Apply a gate to rows ``(..., dim_in)``; returns ``(..., dim_out)``, differentiable to any order.

    Raises `InputError` for rows of another length.

    >>> table = make_gate_table([("relu", 2.0, 0, 0, 0), ("abs", 1.0, 1, 2, 3)])
    >>> gate(table, torch.tensor([[1.0, -2.0, 3.0, 4.0, 5.0]]))
    tensor([[ 2.,  6.,  8., 10.]])
    """
    x = as_floating_tensor("features", x, torch.get_default_dtype())
    asked = isinstance(x, Tensor) and not torch.jit.is_tracing()
    if asked and (x.dim() == 0 or x.shape[-1] != table.dim_in):
        raise InputError(f"features: the gate takes rows of {table.dim_in} numbers, got shape {tuple(x.shape)}")
    if torch.compiler.is_compiling() or not (
        kernels and are_plain(x) and can_build_kernel(_build_gate_kernel, table, x.dtype)
    ):
        return gate_by_torch(table, x)
    recorded = x.requires_grad and torch.is_grad_enabled()
    (made,) = recorded_function(_GATE, table, 0, x) if recorded else gate_value(table, x)
    return made


def gate_by_torch(table: GateTable, x: Tensor) -> Tensor:
    """Compute `gate` by PyTorch operations."""
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


_GATE = KernelFunction(gate_by_torch, (gate_value, gate_gradient, gate_second_grad))
