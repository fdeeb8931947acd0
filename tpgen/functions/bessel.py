r"""Bessel functions of the lengths of edges times a polynomial cutoff: value and gradient by a kernel, in a pass each.

Derivatives from the second on are those of the definition in torch's operations, as is all that is transformed or
traced.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tpgen.functions.bessel_kernel import CutBessel, bessel_slope, bessel_values
from tpgen.functions.lengths import Lengths, note_lengths
from tpgen.functions.numbers import can_build
from tpgen.kernels.runtime.registration import apply_of, asked_for
from tpgen.nn.autocast import autocasting
from tpgen.nn.multilinear import is_usual

NOW_CUT_BESSEL = "tpgen kernel (Bessel functions and cutoff in one pass)"  # for reports

_START = 1e-4  # of the cutoff: where an interval of lengths begins


def cut_bessel(r: Tensor, w: Tensor, shape: CutBessel) -> tuple[Tensor, Tensor]:
    """The functions ``(lengths, frequencies)`` and the cutoff alone, in the shape of ``r``: see `CutBessel`.

    Differentiable to any order in the lengths ``r``, ``(lengths,)`` or ``(lengths, 1)``, and in the frequencies ``w``.

    >>> rows, cutoff = cut_bessel(torch.tensor([1.0, 5.0]), torch.ones(3), CutBessel(1.0, 4.0, 6))
    >>> rows.shape, cutoff[1].item()
    (torch.Size([2, 3]), 0.0)
    """
    if not takes(r, w):
        return by_definition(r, w, shape)
    records = torch.is_grad_enabled() and (r.requires_grad or w.requires_grad)
    rows, alone = (_recorded if records else bessel_values)(r, w, shape)
    note_lengths(rows, _lengths(r, w, shape))
    return rows, alone


def _lengths(r: Tensor, w: Tensor, shape: CutBessel) -> Lengths:
    def rows(r: Tensor) -> Tensor:
        return by_definition(r, w.detach().to(r.dtype), shape)[0]

    # not from zero on, where functions without a limit are no numbers
    return Lengths(r.reshape(-1, 1), rows, _START * shape.cutoff, shape.cutoff, shape.ends, (w,), (shape,))


def takes(r: Tensor, w: Tensor) -> bool:
    """Whether a kernel computes such a call."""
    return not torch.compiler.is_compiling() and _are_usual(r, w) and not autocasting(r.device) and can_build()


def _are_usual(*tensors: Tensor) -> bool:
    return is_usual(*tensors) and len({x.dtype for x in tensors}) == 1


def by_definition(r: Tensor, w: Tensor, shape: CutBessel) -> tuple[Tensor, Tensor]:
    """Compute the waves ``(edges, n)`` times the cutoff, and the cutoff, shaped as ``r``, in torch's operations."""
    u = _envelope(r, shape)
    return _waves(r.reshape(-1, 1), w, shape) * u.reshape(-1, 1), u


def _envelope(r: Tensor, shape: CutBessel) -> Tensor:
    x, p = r / shape.cutoff, shape.power
    u = 1 - x**p * ((p + 1) * (p + 2) / 2 - x * (p * (p + 2) - x * (p * (p + 1) / 2)))
    return u * (r < shape.cutoff) if shape.ends else u


def _waves(r: Tensor, w: Tensor, shape: CutBessel) -> Tensor:
    """The functions without the cutoff, of lengths in a column."""
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
    def backward(ctx: Any, g: Tensor | None, h: Tensor | None) -> tuple:
        r, w = ctx.saved_tensors
        by_r, by_w = asked_for(ctx.needs_input_grad[:2], ctx.next_functions)
        there = [x for x in (g, h) if x is not None]
        slope = _slope if torch.is_grad_enabled() or not _are_usual(r, *there) else bessel_slope
        return (
            slope(r, w, ctx.shape, g, h) if there and by_r else None,
            _by_frequencies(r, w, ctx.shape, g) if g is not None and by_w else None,
            None,
        )


_recorded = apply_of(_CutBessel)


def _slope(r: Tensor, w: Tensor, shape: CutBessel, g: Tensor | None, h: Tensor | None) -> Tensor:
    """`bessel_slope` in torch's operations."""
    fall = _envelope_slope(r, shape)
    by_alone = fall * (0 if h is None else h)
    if g is None:
        return by_alone
    column = r.reshape(-1, 1)
    waves = _waves(column, w, shape)
    by = column.masked_fill(column == 0, 1) if shape.limit else column  # there, functions with a limit are even
    rise = (shape.prefactor * w.reshape(1, -1) * torch.cos(w.reshape(1, -1) * column) - waves) / by
    rows = rise * _envelope(column, shape) + waves * fall.reshape(-1, 1)
    return by_alone + (g * rows).sum(-1).reshape(r.shape)


def _envelope_slope(r: Tensor, shape: CutBessel) -> Tensor:
    """The slope of the cutoff."""
    x, p = r / shape.cutoff, shape.power
    fall = x ** (p - 1) * (1 - x) ** 2 * (-p * (p + 1) * (p + 2) / 2 / shape.cutoff)
    return fall * (r < shape.cutoff) if shape.ends else fall


def _by_frequencies(r: Tensor, w: Tensor, shape: CutBessel, g: Tensor) -> Tensor:
    column = r.reshape(-1, 1)
    rows = torch.cos(w.reshape(1, -1) * column) * (shape.prefactor * _envelope(column, shape))
    return (g * rows).sum(0).reshape(w.shape)
