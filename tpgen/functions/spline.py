"""Cubic splines of functions of one number."""

# On a step of length h, with t = (r - r_i) / h, the polynomial
#
#     f(r) = f_i + t h f'_i + t^2 (3 d_i - e_i) + t^3 (e_i - 2 d_i),
#     d_i = f_{i+1} - f_i - h f'_i,  e_i = h (f'_{i+1} - f'_i)
#
# matches values and slopes at both ends.  Values err by at most h^4 |f''''| / 384, slopes by sqrt(3) h^3 |f''''| / 216.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tpgen.base.errors import TpgenError
from tpgen.functions.numbers import build_elementwise_kernel, can_build_kernel, pack_numbers, run_kernel
from tpgen.kernels.runtime.memory import empty_tensor
from tpgen.kernels.runtime.registration import find_used_gradients, get_unchecked_apply
from tpgen.nn.autocast import is_autocasting
from tpgen.nn.plain_tensors import are_plain

_STEPS = (256, 512, 1024, 2048, 4096)  # how many are tried
SLOPE_ERROR = 1e-6  # error of slopes that is small enough, relative to the largest slope of any function
_WORST = 0.5 - 1 / 12**0.5  # the part of a step where slopes err most


@dataclass(frozen=True, eq=False)
class Spline:
    """Cubic splines on an interval, constant outside.

    Parameters
    ----------
    start, step
        start of the first step, and length of each.
    table
        ``(steps, 4, functions)``: coefficients of 1, t, t^2, t^3.
    values_error, slopes_error
        largest measured error, relative to the largest value or slope.
    """

    start: float
    step: float
    table: Tensor
    values_error: float
    slopes_error: float

    def to(self, dtype: torch.dtype) -> Spline:
        """The splines, with the table in a dtype."""
        return replace(self, table=self.table.to(dtype))

    def __str__(self) -> str:
        return (
            f"cubic splines of lengths, {len(self.table)} steps, "
            f"values within {self.values_error:.0e}, slopes within {self.slopes_error:.0e} of the largest"
        )


def make_spline(function: Callable[[Tensor], Tensor], start: float, end: float) -> Spline:
    """Fit splines with the fewest steps for a slope error of at most `SLOPE_ERROR`, or with 4096.

    ``function`` maps ``(n, 1)`` in float64, row by row, to ``(n, functions)``, twice differentiable.

    >>> spline = make_spline(lambda r: torch.cat([r.sin(), r.cos()], 1), 0.0, 3.0)
    >>> spline.table.shape, spline.slopes_error < 1e-6
    (torch.Size([256, 4, 2]), True)
    """
    for steps in _STEPS:
        spline = _fit_spline(function, start, end, steps)
        if spline.slopes_error <= SLOPE_ERROR:
            break
    return spline


def _fit_spline(function: Callable[[Tensor], Tensor], start: float, end: float, steps: int) -> Spline:
    step = (end - start) / steps
    ends = start + step * torch.arange(steps + 1, dtype=torch.float64).unsqueeze(1)
    f, slopes = _compute_values_and_slopes(function, ends)
    m = slopes * step
    d, e = f.diff(dim=0) - m[:-1], m.diff(dim=0)
    spline = Spline(start, step, torch.stack([f[:-1], m[:-1], 3 * d - e, e - 2 * d], 1), 0.0, 0.0)
    return replace(
        spline,
        values_error=_largest_relative_spline_error(function, spline, 0.5, 0),
        slopes_error=_largest_relative_spline_error(function, spline, _WORST, 1),
    )


def _largest_relative_spline_error(
    function: Callable[[Tensor], Tensor], spline: Spline, part: float, derivative_order: int
) -> float:
    # the largest error of values (order 0) or slopes (1) a part of the way into each step, relative to the largest
    between = spline.start + spline.step * (torch.arange(len(spline.table), dtype=torch.float64).unsqueeze(1) + part)
    wanted, found = (
        _compute_values_and_slopes(f, between)[derivative_order] for f in (function, make_interpolant(spline))
    )
    return float((wanted - found).abs().max() / wanted.abs().max().clamp_min(torch.finfo(torch.float64).tiny))


def _compute_values_and_slopes(function: Callable[[Tensor], Tensor], r: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        r = r.detach().requires_grad_()
        values = function(r)
        u = torch.zeros_like(values, requires_grad=True)
        (sums,) = torch.autograd.grad(values, r, u, create_graph=True)
        (slopes,) = torch.autograd.grad(sums.sum(), u)
    return values.detach(), slopes


def make_interpolant(spline: Spline) -> Callable[[Tensor], Tensor]:
    """Splines as a function of ``(n, 1)`` by PyTorch operations, differentiable to any order."""

    def interpolate_by_torch(r: Tensor) -> Tensor:
        at = (r.reshape(-1, 1) - spline.start) / spline.step
        which = at.detach().nan_to_num().floor().clamp(0, len(spline.table) - 1).long()
        t = at - which
        t = torch.where(t < 0, 0, torch.where(t > 1, 1, t))  # what is no number stays none, in gradients too
        one, by_t, by_square, by_cube = spline.table[which.flatten()].unbind(1)
        return one + t * (by_t + t * (by_square + t * by_cube))

    return interpolate_by_torch


def evaluate_spline(spline: Spline, r: Tensor, constants: Sequence[Tensor] = ()) -> Tensor:
    """Compute values ``(n, functions)`` at ``r`` ``(n, 1)`` by the kernel.

    Only a first gradient by ``r`` exists; others, also of ``constants``, raise `TpgenError` in backward.
    """
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in (r, *constants)):
        return _run_spline_kernel(spline, r, None)
    return _values(spline, r, *constants)


def can_run_spline(r: Tensor) -> bool:
    """Whether a kernel computes splines at lengths ``r``."""
    usual = not torch.compiler.is_compiling() and are_plain(r) and not is_autocasting(r.device)
    return usual and can_build_kernel(build_elementwise_kernel, "spline", r.dtype)


_NO_TRAINING = (
    "radial='spline' is for inference: it has values and forces, and no {}. Train the network as tpgen.restore(network)"
    " gives it back, or converted without radial='spline'"
)


class _SplineValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, spline: Spline, r: Tensor, *_constants: Tensor) -> Tensor:
        ctx.save_for_backward(r)
        ctx.spline = spline
        return _run_spline_kernel(spline, r, None)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        by_r, *by_constants = find_used_gradients(ctx.needs_input_grad[1:], ctx.next_functions)
        if any(by_constants):
            raise TpgenError(_NO_TRAINING.format("gradients of parameters"))
        (r,) = ctx.saved_tensors
        slope = _slope if torch.is_grad_enabled() else _run_spline_kernel
        return (None, slope(ctx.spline, r, g) if by_r else None, *(None for _ in by_constants))


class _SplineSlope(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, spline: Spline, r: Tensor, g: Tensor) -> Tensor:
        return _run_spline_kernel(spline, r, g)

    @staticmethod
    def backward(_ctx: Any, _cotangent: Tensor) -> tuple:
        raise TpgenError(_NO_TRAINING.format("second derivatives"))


_values, _slope = get_unchecked_apply(_SplineValues), get_unchecked_apply(_SplineSlope)


def _run_spline_kernel(spline: Spline, r: Tensor, g: Tensor | None) -> Tensor:
    # compute values, or for a cotangent g the gradient by r
    functions, dtype = spline.table.shape[2], spline.table.dtype
    r, g = r.contiguous(), None if g is None else g.contiguous()
    out = empty_tensor((r.numel(), functions), dtype) if g is None else torch.empty_like(r)
    grid = pack_numbers(dtype, spline.start, spline.step, len(spline.table), functions)
    rows, by_r = (out, None) if g is None else (None, out)
    run_kernel(build_elementwise_kernel("spline", dtype), (r, spline.table, grid, g, rows, by_r), r.numel())
    return out
