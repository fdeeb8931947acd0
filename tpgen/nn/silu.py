r"""SiLU on many rows: memory that was used before, and a second derivative in few passes.

.. math:: f(x) = x\, s, \quad f'(x) = s (1 + x (1 - s)), \quad f''(x) = s (1 - s) (2 + x (1 - 2 s)),
    \qquad s = \frac{1}{1 + e^{-x}}
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from tpgen.kernels.operators.memory import empty
from tpgen.nn.autocast import autocasting
from tpgen.nn.multilinear import is_plain

WORTH = 2**17  # numbers: below, what Python adds to a call is noticed


def silu(x: Tensor) -> Tensor:
    """``x * sigmoid(x)``, differentiable to any order.

    >>> silu(torch.zeros(2))
    tensor([0., 0.])
    """
    if torch.compiler.is_compiling() or not _is_plain(x) or x.numel() < WORTH or autocasting(x.device):
        return nn.functional.silu(x)
    return _Silu.apply(x)


def _is_plain(*tensors: Tensor) -> bool:
    """Whether a call may be one of ours, which have no forward mode: tangents may come to its backward alone."""
    return forward_ad._current_level < 0 and all(map(is_plain, tensors))


class _Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.ops.aten.silu.out(x, out=_like(x))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return _first(g, *ctx.saved_tensors)


class _First(torch.autograd.Function):
    """``g * f'(x)``."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(g, x)
        return torch.ops.aten.silu_backward.grad_input(g, x, grad_input=_like(x))

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, Tensor]:
        g, x = ctx.saved_tensors
        return _first(c, x), _second(c, g, x)


def _first(g: Tensor, x: Tensor) -> Tensor:
    if _is_plain(g):
        return _First.apply(g, x)
    s = torch.sigmoid(x)
    return g * (s * (1 + x * (1 - s)))


def _second(c: Tensor, g: Tensor, x: Tensor) -> Tensor:
    """``c * g * f''(x)``, in place where nothing is to differentiate it."""
    if torch.is_grad_enabled() or not _is_plain(c, g):
        s = torch.sigmoid(x)
        return c * g * (s * (1 - s) * (2 + x * (1 - 2 * s)))
    s = torch.sigmoid(x, out=_like(x))
    inner = torch.addcmul(x, x, s, value=-2, out=_like(x)).add_(2)
    return torch.ops.aten.sigmoid_backward.grad_input(inner, s, grad_input=inner).mul_(g).mul_(c)


def _like(x: Tensor) -> Tensor:
    return empty(tuple(x.shape), x.dtype)
