r"""Batch norm of rows of irreps in training, by the kernel `batch_norm.h`.

.. math:: z = w\, (x - m) / \sqrt{v + ε} + b, \quad v = ⟨‖x - m‖^2⟩, \quad m = ⟨x⟩ \text{ of scalars, else } 0

Means run over rows, the norm over a copy's components.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.base.errors import InputError
from tpgen.base.remember import remembered
from tpgen.functions.numbers import can_build_kernel, pack_numbers, run_kernel, write_elementwise_kernel_source
from tpgen.kernels.build.build import load_kernel
from tpgen.kernels.build.compiler import cpu_target
from tpgen.kernels.runtime.memory import empty_tensor
from tpgen.nn.plain_tensors import are_plain

_ROWS, _PARTS = 64, 64  # as batch_norm.h has them


class NormTable(NamedTuple):
    """Column layout for `batch_norm`: irrep copy of each column, columns of scalars, divisors of squared norms."""

    copy: Tensor  # of each column: the copy of an irrep that it is a component of
    scalars: Tensor  # the columns of scalars
    divisor: Tensor  # of each copy: what its squared norm is divided by
    numbers: Tensor  # all of these, as the kernel reads them


def make_norm_table(copies: list[tuple[int, bool]], normalization: str) -> NormTable:
    """Make the table from each copy's (dimension, whether scalar); ``normalization`` is e3nn's.

    >>> table = make_norm_table([(1, True), (3, False)], "component")
    >>> table.copy, table.scalars, table.divisor
    (tensor([0, 1, 1, 1]), tensor([0]), tensor([1, 3]))
    """
    copy = [n for n, (dim, _) in enumerate(copies) for _ in range(dim)]
    scalars = [column for column, n in enumerate(copy) if copies[n][1]]
    divisor = [dim if normalization == "component" else 1 for dim, _ in copies]
    rank = dict(zip(scalars, range(len(scalars)), strict=True))
    numbers = [len(copy), len(copies), *copy, *(rank.get(column, -1) for column in range(len(copy))), *divisor]
    return NormTable(*(torch.tensor(each, dtype=torch.int64) for each in (copy, scalars, divisor, numbers)))


class NormalizedRows(NamedTuple):
    """Normalized rows; mean and variance of the input rows."""

    rows: Tensor
    mean: Tensor  # of each scalar
    variance: Tensor  # of each copy


def batch_norm(table: NormTable, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> NormalizedRows:
    """Normalize rows ``(rows, columns)``, differentiable to any order except through the statistics.

    ``weight`` is by copy, ``bias`` by scalar; all in float32 or float64 on the CPU.  Raises `InputError` for other
    operands or zero rows, `BackendError` without a compiler.

    >>> table = make_norm_table([(1, True), (2, False)], "norm")
    >>> x = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 2.0]])
    >>> batch_norm(table, x, torch.ones(2), torch.zeros(1), 0.0)
    NormalizedRows(rows=tensor([[-1.,  1.,  0.], [ 1.,  0.,  1.]]), mean=tensor([2.]), variance=tensor([1., 4.]))
    """
    shapes = (max(len(x), 1), len(table.copy)), (len(table.divisor),), (len(table.scalars),)
    for name, given, shape in zip(("rows", "weight", "bias"), (x, weight, bias), shapes, strict=True):
        if given.shape != shape or given.dtype != x.dtype:
            raise InputError(
                f"{name}: the norm takes shape {shape} of {x.dtype}, got {tuple(given.shape)} of {given.dtype}"
            )
    return NormalizedRows(*_BatchNorm.apply(table, x.contiguous(), weight.contiguous(), bias.contiguous(), eps))


def can_build_norm(dtype: torch.dtype) -> bool:
    """Whether this machine can build the kernel for a dtype."""
    return can_build_kernel(_build_batch_norm_kernel, dtype)


@remembered("kernels of batch norms")
def _build_batch_norm_kernel(dtype: torch.dtype) -> Callable[..., int]:
    return load_kernel(write_elementwise_kernel_source("batch_norm", dtype), addresses=11, numbers=1)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, table: NormTable, x: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        columns, copies = len(table.copy), len(table.divisor)
        out, moments = empty_tensor(tuple(x.shape), x.dtype), x.new_empty(columns + 2 * copies)
        given = (
            x,
            None,
            weight,
            bias,
            table.numbers,
            pack_numbers(x.dtype, eps),
            moments,
            out,
            None,
            None,
            _allocate_kernel_scratch(x),
        )
        run_kernel(_build_batch_norm_kernel(x.dtype), given, len(x))
        ctx.save_for_backward(x, weight, bias, moments)
        ctx.table, ctx.eps = table, eps
        mean, variance = moments[table.scalars], moments[columns : columns + copies].clone()
        ctx.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, bias, moments = ctx.saved_tensors
        table: NormTable = ctx.table
        if torch.is_grad_enabled() or not are_plain(g):  # derivatives of these are to follow, or many cotangents come
            return None, *_batch_norm_gradients_by_torch(table, x, weight, bias, g, ctx.eps), None
        by_x, by_weight, by_bias = (
            empty_tensor(tuple(x.shape), x.dtype),
            torch.empty_like(weight),
            torch.empty_like(bias),
        )
        g = g.contiguous()
        given = x, g, weight, bias, table.numbers, None, moments, by_x, by_weight, by_bias, _allocate_kernel_scratch(x)
        run_kernel(_build_batch_norm_kernel(x.dtype), given, len(x))
        return None, by_x, by_weight, by_bias, None


def _allocate_kernel_scratch(x: Tensor) -> Tensor:
    parts = min(-(-len(x) // _ROWS), _PARTS)
    return torch.empty(4 * (parts + 1) * (x.shape[1] + cpu_target(x.dtype).lanes), dtype=torch.float64)


def _batch_norm_gradients_by_torch(
    table: NormTable, x: Tensor, weight: Tensor, bias: Tensor, g: Tensor, eps: float
) -> tuple[Tensor, ...]:
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        given = [each if each.requires_grad else each.detach().requires_grad_() for each in (x, weight, bias)]
        out = _batch_norm_by_torch(table, given[0], given[1], given[2], eps)
        return torch.autograd.grad(out, given, g, create_graph=recorded)


def _batch_norm_by_torch(table: NormTable, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    mean = torch.zeros_like(x[0]).index_copy(0, table.scalars, x.mean(0)[table.scalars])
    y = x - mean
    squares = x.new_zeros(len(weight)).index_add(0, table.copy, y.square().mean(0)) / table.divisor
    scale = ((squares + eps).rsqrt() * weight)[table.copy]
    return y * scale + torch.zeros_like(mean).index_copy(0, table.scalars, bias)
