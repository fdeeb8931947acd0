r"""Gates of whole rows by one kernel, `gate.h`: values, gradients, and the gradients of these in one pass each.

.. math:: y_u = k\, f(s_u), \qquad y_{um} = k\, f(s_u)\, v_{um}

A row holds scalars s, of which some are results by themselves and each of the others is the factor of a copy v.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tpgen.functions.numbers import text_of
from tpgen.kernels.build.build import load_kernel
from tpgen.kernels.build.compiler import target
from tpgen.kernels.cpp.text import literal
from tpgen.kernels.cpp.tiles import tile
from tpgen.kernels.runtime.memory import empty
from tpgen.remember import remembered

FUNCTIONS = ("identity", "silu", "tanh", "sigmoid", "abs", "relu")  # structs of functions.h, with a capital


class GateRun(NamedTuple):
    """Copies that stand side by side wherever they are, and go through one function."""

    function: str
    scale: float
    copies: int
    scalar: int  # where their scalars begin in a row
    gated: int  # where the copies begin that these multiply; 0 where there are none
    width: int  # numbers of such a copy; 0 where there are none
    out: int  # where their results begin

    def follows(self, before: GateRun) -> bool:
        """Whether this one goes on where another ends.

        >>> first = GateRun("silu", 1.0, 2, 0, 4, 3, 0)
        >>> GateRun("silu", 1.0, 1, 2, 10, 3, 6).follows(first), GateRun("silu", 1.0, 1, 2, 10, 3, 7).follows(first)
        (True, False)
        """
        n, width = before.copies, before.width
        places = before.scalar + n, before.gated + n * width, width, before.out + n * (width or 1)
        return (self.function, self.scale, *self[3:]) == (before.function, before.scale, *places)


class GateTable(NamedTuple):
    """A gate: how long its rows and its results are, and its runs in the order of results."""

    dim_in: int
    dim_out: int
    runs: tuple[GateRun, ...]


def make_gate_table(copies: Sequence[tuple[str, float, int, int, int]]) -> GateTable:
    """The table of single copies in the order of results: function, scale, scalar, gated and width of each.

    >>> make_gate_table([("silu", 1.0, 0, 0, 0), ("tanh", 2.0, 1, 3, 3), ("tanh", 2.0, 2, 6, 3)]).runs
    (GateRun(function='silu', scale=1.0, copies=1, scalar=0, gated=0, width=0, out=0), \
GateRun(function='tanh', scale=2.0, copies=2, scalar=1, gated=3, width=3, out=1))
    """
    runs: list[GateRun] = []
    out = 0
    for function, scale, scalar, gated, width in copies:
        run = GateRun(function, scale, 1, scalar, gated, width, out)
        if runs and run.follows(runs[-1]):
            runs[-1] = runs[-1]._replace(copies=runs[-1].copies + 1)
        else:
            runs.append(run)
        out += width or 1
    return GateTable(sum(1 + width for *_, width in copies), out, tuple(runs))


def gate_text(table: GateTable, dtype: torch.dtype) -> str:
    """The source of a gate's kernel, in float32 or float64."""
    at = target(dtype)
    tiles = [
        "template <int D> struct Tile;  // W items of D numbers each <-> D vectors of W items",
        *(tile(at.lanes, width) for width in sorted({1} | {run.width for run in table.runs} - {0})),
    ]
    runs = [
        f"STEP<{run.function.capitalize()}, {run.width}>"
        f"(Run{{{run.scalar}, {run.gated}, {run.out}, {run.copies}, {literal(run.scale, at.dtype)}}}, __VA_ARGS__);"
        for run in table.runs
    ]
    sizes = f"enum {{ IN = {table.dim_in}, OUT = {table.dim_out} }};  // numbers of a row, and of its result"
    return text_of("gate", dtype, (*tiles, sizes, " \\\n  ".join(["#define EVERY_RUN(STEP, ...)", *runs])))


@remembered("kernels of gates")
def _kernel(table: GateTable, dtype: torch.dtype) -> Callable[..., int]:
    return load_kernel(gate_text(table, dtype))


def gate_value(table: GateTable, x: Tensor) -> tuple[Tensor]:
    """The results ``(..., dim_out)`` for rows ``(..., dim_in)``, float32 or float64 on the CPU."""
    out = empty((*x.shape[:-1], table.dim_out), x.dtype)
    _call(table, (x,), (out, None, None))
    return (out,)


def gate_first(table: GateTable, g: Tensor, x: Tensor) -> tuple[Tensor]:
    """The gradient by x, for a cotangent g of the results."""
    by_x = empty(tuple(x.shape), x.dtype)
    _call(table, (x, g), (None, None, by_x))
    return (by_x,)


def gate_second(table: GateTable, c: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `gate_first` by g and x, for a cotangent c of it."""
    by_g, by_x = empty(tuple(g.shape), x.dtype), empty(tuple(x.shape), x.dtype)
    _call(table, (x, g, c), (None, by_g, by_x))
    return by_g, by_x


def _call(table: GateTable, given: Sequence[Tensor], made: Sequence[Tensor | None]) -> None:
    held = [x.contiguous() for x in given]  # as long as the kernel reads them
    addresses = [0 if x is None else x.data_ptr() for x in (*held, *[None] * (4 - len(held)), *made, None)]
    torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
    _kernel(table, given[0].dtype)(*addresses, given[0].shape[:-1].numel())
