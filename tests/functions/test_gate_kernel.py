"""The kernel of gates against the definition in float64, one copy after the other."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.machine import needs_compiler
from tpgen.functions.gate import TORCH, GateTable, gate_gradient, gate_second_grad, gate_value, make_gate_table

pytestmark = needs_compiler

SLOW = {
    "identity": lambda x: x,
    "silu": lambda x: x * torch.sigmoid(x),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "abs": torch.abs,
    "relu": torch.relu,
}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def table(scalars: tuple[int, ...], gated: tuple[tuple[int, int], ...], first: int = 0) -> GateTable:
    """Numbers of scalars, and of copies of some width, each with another function; scalars of copies stand last."""
    copies, at = [], 0
    ends = sum(scalars) + sum(n * width for n, width in gated)
    for place, (n, width) in enumerate([*((n, 0) for n in scalars), *gated]):
        name = [*TORCH][(first + place) % len(TORCH)]
        for _ in range(n):
            copies.append((name, 1 + place / 8, ends if width else at, at if width else 0, width))
            at += width or 1
            ends += bool(width)
    return make_gate_table(copies)


TABLES = {
    "tails": table((5, 3), ((4, 3), (6, 5), (2, 1))),
    "whole vectors": table((64,), ((32, 3), (16, 5)), 1),
    "more than a vector": table((17, 33), ((19, 3), (35, 5)), 2),
    "one": table((1,), ((1, 9),), 3),
    "scalars alone": table((7,), (), 1),
    "copies alone": table((), ((7, 3),), 2),
}


def slow(at: GateTable, x: Tensor) -> Tensor:
    made = []
    for run in at.runs:
        for u in range(run.copies):
            factor = run.scale * SLOW[run.function](x[:, run.scalar + u])
            begin = run.gated + u * run.width
            made.append(factor[:, None] * (x[:, begin : begin + run.width] if run.width else 1))
    return torch.cat(made, 1)


def orders(at: GateTable, c: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """The value, its gradient and the gradients of that, by the definition in float64."""
    c, g, x = (t.detach().double().requires_grad_() for t in (c, g, x))
    out = slow(at, x)
    (first,) = torch.autograd.grad(out, x, g, create_graph=True)
    return out, first, *torch.autograd.grad(first, (g, x), c, materialize_grads=True)


def by_kernel(at: GateTable, c: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return *gate_value(at, x), *gate_gradient(at, g, x), *gate_second_grad(at, c, g, x)


def check(at: GateTable, c: Tensor, g: Tensor, x: Tensor) -> None:
    tolerance = 20 * torch.finfo(x.dtype).eps
    for found, wanted in zip(by_kernel(at, c, g, x), orders(at, c, g, x), strict=True):
        assert found.dtype == x.dtype
        largest = max(wanted.detach().abs().flatten().tolist(), default=0)
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance * largest)


def numbers(at: GateTable, rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    c, x = (torch.randn(rows, at.dim_in, dtype=dtype) for _ in range(2))
    return c, torch.randn(rows, at.dim_out, dtype=dtype), x


@DTYPES
@pytest.mark.parametrize("name", TABLES)
def test_it_is_as_exact_as_its_dtype(name: str, dtype: torch.dtype) -> None:
    check(TABLES[name], *numbers(TABLES[name], 7, dtype))


def test_strided_tensors_many_rows_and_none() -> None:
    at = TABLES["tails"]
    for rows in (3000, 0):
        c, x = torch.randn(2, rows, 2 * at.dim_in, dtype=torch.float64)[..., ::2]
        check(at, c, torch.randn(1, 1, dtype=torch.float64).expand(rows, at.dim_out), x)


def test_nothing_outside_a_row_is_written() -> None:
    at = TABLES["tails"]
    c, g, x = numbers(at, 4, torch.float64)
    apart = [by_kernel(at, *(t[n : n + 1] for t in (c, g, x))) for n in range(4)]
    for found, *rows in zip(by_kernel(at, c, g, x), *apart, strict=True):
        assert torch.equal(found, torch.cat(rows))


@DTYPES
@pytest.mark.parametrize("function", TORCH)
def test_functions_are_exact_near_zero_and_far_out(function: str, dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-20, 20, 997), 1e-3 * torch.randn(100), torch.zeros(1), -torch.zeros(1)]).to(dtype)
    at = make_gate_table([(function, 1.0, n, 0, 0) for n in range(len(x))])
    one = torch.ones(1, len(x), dtype=dtype)
    out, first, by_g, by_x = by_kernel(at, one, one, x[None])
    eps = torch.finfo(dtype).eps
    f, slope, _, bend = orders(at, one, one, x[None])
    torch.testing.assert_close(out.double(), f, rtol=10 * eps, atol=0)
    torch.testing.assert_close(first.double(), slope, rtol=20 * eps, atol=20 * eps)
    torch.testing.assert_close(by_x.double(), bend, rtol=20 * eps, atol=20 * eps)
    assert torch.equal(first, by_g)


@DTYPES
@pytest.mark.parametrize("function", TORCH)
def test_infinite_and_nan(function: str, dtype: torch.dtype) -> None:
    limits = {  # f and f' at minus and plus infinity
        "identity": (-math.inf, math.inf, 1, 1),
        "silu": (math.nan, math.inf, math.nan, math.nan),  # as torch, of infinity times zero
        "tanh": (-1, 1, 0, 0),
        "sigmoid": (0, 1, 0, 0),
        "abs": (math.inf, math.inf, -1, 1),
        "relu": (0, math.inf, 0, 1),
    }
    at = make_gate_table([(function, 1.0, n, 0, 0) for n in range(3)])
    x = torch.tensor([[-math.inf, math.inf, math.nan]], dtype=dtype)
    one = torch.ones_like(x)
    out, first, _, bend = by_kernel(at, one, one, x)
    found = torch.cat([out[0, :2], first[0, :2]])
    wanted = torch.tensor(limits[function], dtype=dtype)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    torch.testing.assert_close(bend[0, :2], 0 * wanted[2:], equal_nan=True)
    assert out[0, 2].isnan()


def test_copies_side_by_side_are_one_run() -> None:
    assert [run.copies for run in TABLES["tails"].runs] == [5, 3, 4, 6, 2]
