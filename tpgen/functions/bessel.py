r"""Bessel basis of edge lengths times a polynomial cutoff, by the kernel `bessel.h`.

.. math:: f_n(r) = a\, \sin(w_n r) / r \cdot u(r / c), \quad
    u(x) = 1 - \tfrac{(p + 1)(p + 2)}{2} x^p + p (p + 2) x^{p + 1} - \tfrac{p (p + 1)}{2} x^{p + 2}
"""

# PyTorch operations compute derivatives from order 2 on, and traced calls.

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tpgen.base.remember import remembered
from tpgen.functions.lengths import RowsByLength, register_lengths
from tpgen.functions.numbers import build_elementwise_kernel, can_build_kernel, pack_numbers, run_kernel
from tpgen.kernels.build.compiler import find_compiler, why_no_compiler
from tpgen.kernels.runtime.given import as_floating_tensor
from tpgen.kernels.runtime.memory import empty_tensor
from tpgen.kernels.runtime.registration import find_used_gradients, get_unchecked_apply
from tpgen.nn.autocast import is_autocasting
from tpgen.nn.plain_tensors import are_plain

_START = 1e-4  # of the cutoff: where an interval of lengths begins


def name_cut_bessel_code() -> str:
    """Name the code that computes Bessel functions with a cutoff, for reports."""
    if not find_compiler():
        return f"its own code (kernels need a C++ compiler, and {why_no_compiler()})"
    return "tpgen kernel (Bessel functions and cutoff in one pass)"


def cut_bessel(r: Tensor, w: Tensor, shape: CutBessel) -> tuple[Tensor, Tensor]:
    """Compute Bessel functions times cutoff, ``(lengths, frequencies)``, and the cutoff in the shape of ``r``.

    Differentiable to any order in lengths ``r``, ``(lengths,)`` or ``(lengths, 1)``, and frequencies ``w``.

    >>> rows, cutoff = cut_bessel(torch.tensor([1.0, 5.0]), torch.ones(3), CutBessel(1.0, 4.0, 6))
    >>> rows.shape, cutoff[1].abs().item()
    (torch.Size([2, 3]), 0.0)
    """
    r = as_floating_tensor("lengths", r, w.dtype)
    if not can_run_bessel_kernel(r, w):
        return bessel_by_torch(r, w, shape)
    records = torch.is_grad_enabled() and (r.requires_grad or w.requires_grad)
    rows, alone = (_recorded if records else bessel_values)(r, w, shape)
    register_lengths(rows, _make_rows_by_length(r, w, shape))
    return rows, alone


def _make_rows_by_length(r: Tensor, w: Tensor, shape: CutBessel) -> RowsByLength:
    def rows_of_lengths(r: Tensor) -> Tensor:
        return bessel_by_torch(r, w.detach().to(r.dtype), shape)[0]

    # not from zero on, where functions without a limit are no numbers
    return RowsByLength(
        r.reshape(-1, 1), rows_of_lengths, _START * shape.cutoff, shape.cutoff, shape.ends, (w,), (shape,)
    )


def can_run_bessel_kernel(r: Tensor, w: Tensor) -> bool:
    """Whether the kernel of Bessel functions takes lengths ``r`` and frequencies ``w``."""
    usual = not torch.compiler.is_compiling() and _are_plain_of_one_dtype(r, w) and not is_autocasting(r.device)
    return usual and can_build_kernel(build_elementwise_kernel, "bessel", r.dtype)


def _are_plain_of_one_dtype(*tensors: Tensor) -> bool:
    return are_plain(*tensors) and len({x.dtype for x in tensors}) == 1


def bessel_by_torch(r: Tensor, w: Tensor, shape: CutBessel) -> tuple[Tensor, Tensor]:
    """Compute `cut_bessel` by PyTorch operations."""
    u = _cutoff_envelope(r, shape)
    return _bessel_waves(r.reshape(-1, 1), w, shape) * u.reshape(-1, 1), u


def _cutoff_envelope(r: Tensor, shape: CutBessel) -> Tensor:
    x, p = r / shape.cutoff, shape.power
    u = 1 - (p + 1) * (p + 2) / 2 * x**p + p * (p + 2) * x ** (p + 1) - p * (p + 1) / 2 * x ** (p + 2)
    return u * (r < shape.cutoff) if shape.ends else u


def _bessel_waves(r: Tensor, w: Tensor, shape: CutBessel) -> Tensor:
    w = w.reshape(1, -1)
    return shape.prefactor * (w * torch.sinc(w * r / torch.pi) if shape.limit else torch.sin(w * r) / r)


class _CutBessel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, r: Tensor, w: Tensor, shape: CutBessel) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(r, w)
        ctx.shape = shape
        ctx.set_materialize_grads(False)
        return bessel_values(r, w, shape)

    @staticmethod
    def backward(ctx: Any, g_rows: Tensor | None, g_cutoff: Tensor | None) -> tuple[Tensor | None, ...]:
        r, w = ctx.saved_tensors
        by_r, by_w = find_used_gradients(ctx.needs_input_grad[:2], ctx.next_functions)
        there = [x for x in (g_rows, g_cutoff) if x is not None]
        slope = (
            _length_gradient_by_torch
            if torch.is_grad_enabled() or not _are_plain_of_one_dtype(r, *there)
            else bessel_length_gradient
        )
        return (
            slope(r, w, ctx.shape, g_rows, g_cutoff) if there and by_r else None,
            _frequency_gradient_by_torch(r, w, ctx.shape, g_rows) if g_rows is not None and by_w else None,
            None,
        )


_recorded = get_unchecked_apply(_CutBessel)


def _length_gradient_by_torch(
    r: Tensor, w: Tensor, shape: CutBessel, g_rows: Tensor | None, g_cutoff: Tensor | None
) -> Tensor:
    fall = _cutoff_envelope_slope(r, shape)
    by_alone = fall * (0 if g_cutoff is None else g_cutoff)
    if g_rows is None:
        return by_alone
    column = r.reshape(-1, 1)
    waves = _bessel_waves(column, w, shape)
    rise = (shape.prefactor * w.reshape(1, -1) * torch.cos(w.reshape(1, -1) * column) - waves) / column
    if shape.limit:  # functions are even at zero; their second derivatives are no numbers, as those of torch.sinc
        rise = torch.where(column == 0, 0, rise)
    rows = rise * _cutoff_envelope(column, shape) + waves * fall.reshape(-1, 1)
    return by_alone + (g_rows * rows).sum(-1).reshape(r.shape)


def _cutoff_envelope_slope(r: Tensor, shape: CutBessel) -> Tensor:
    x, p = r / shape.cutoff, shape.power
    fall = x ** (p - 1) * (1 - x) ** 2 * (-p * (p + 1) * (p + 2) / 2 / shape.cutoff)
    return fall * (r < shape.cutoff) if shape.ends else fall


def _frequency_gradient_by_torch(r: Tensor, w: Tensor, shape: CutBessel, g_rows: Tensor) -> Tensor:
    column = r.reshape(-1, 1)
    one = 1 if shape.limit else column / column  # no number of no length
    rows = torch.cos(w.reshape(1, -1) * column) * (shape.prefactor * _cutoff_envelope(column, shape) * one)
    return (g_rows * rows).sum(0).reshape(w.shape)


@dataclass(frozen=True)
class CutBessel:
    """Constants of Bessel functions with a polynomial cutoff.

    Parameters
    ----------
    prefactor, cutoff, power
        a, c and p of the formula; p is at least 1.
    ends
        zero the functions from the cutoff on.
    limit
        take the limit at length 0, not NaN.
    """

    prefactor: float
    cutoff: float
    power: int
    ends: bool = True
    limit: bool = False


def bessel_values(r: Tensor, w: Tensor, shape: CutBessel) -> tuple[Tensor, Tensor]:
    """Compute `cut_bessel` by the kernel, without an autograd graph, for CPU tensors."""
    r, w = r.contiguous(), w.contiguous()
    rows, alone = empty_tensor((r.numel(), w.numel()), r.dtype), torch.empty(r.shape, dtype=r.dtype)
    return (rows, alone) if _run_bessel_kernel(r, w, shape, None, None, rows, alone) else bessel_by_torch(r, w, shape)


def bessel_length_gradient(
    r: Tensor, w: Tensor, shape: CutBessel, g_rows: Tensor | None, g_cutoff: Tensor | None
) -> Tensor:
    """Compute the gradient of `cut_bessel` by ``r``, for cotangents of its two results."""
    r, w, found = r.contiguous(), w.contiguous(), torch.empty(r.shape, dtype=r.dtype)
    given = [None if x is None else x.contiguous() for x in (g_rows, g_cutoff)]
    return (
        found
        if _run_bessel_kernel(r, w, shape, *given, None, None, found)
        else _length_gradient_by_torch(r, w, shape, g_rows, g_cutoff)
    )


def _run_bessel_kernel(r: Tensor, w: Tensor, shape: CutBessel, *others: Tensor | None) -> bool:
    operands = (r, w, _pack_bessel_constants(shape, w.numel(), r.dtype), *others)
    return run_kernel(build_elementwise_kernel("bessel", r.dtype), operands, r.numel()) == 0


@remembered("constants of Bessel functions", entries=64)
def _pack_bessel_constants(shape: CutBessel, functions: int, dtype: torch.dtype) -> ctypes.Array:
    # C array: prefactor, cutoff, power, end, least length, number of functions
    end = shape.cutoff if shape.ends else math.inf
    least = torch.finfo(dtype).tiny ** 0.5 if shape.limit else 0.0  # whose square is a number too
    return pack_numbers(dtype, shape.prefactor, shape.cutoff, shape.power, end, least, functions)
