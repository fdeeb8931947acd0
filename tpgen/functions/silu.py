r"""SiLU on many numbers, :math:`f(x) = x\, s(x)` with the sigmoid s: on memory that was used before.

.. math:: f' = s\,(1 + x (1 - s)), \quad f'' = s (1 - s) (2 + x (1 - 2 s))

torch has kernels of f and f'.  Of the gradients of f' it makes some fifteen operations, each with a tensor of its own,
and a kernel, `silu.h`, one pass.  Derivatives from the third on are torch's operations, as is all that is transformed
or traced.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tpgen.functions.numbers import can_build, kernel_of, run_kernel
from tpgen.kernels.runtime.memory import empty
from tpgen.kernels.runtime.registration import apply_of
from tpgen.nn.autocast import autocasting
from tpgen.nn.multilinear import is_usual

WORTH_SILU = 2**15  # numbers: below, what Python adds to a call is noticed


def silu(x: Tensor) -> Tensor:
    """``x * sigmoid(x)``, differentiable to any order.

    >>> silu(torch.zeros(2))
    tensor([0., 0.])
    """
    if torch.compiler.is_compiling() or not is_usual(x) or x.numel() < WORTH_SILU or autocasting(x.device):
        return nn.functional.silu(x)
    return _recorded(x) if x.requires_grad and torch.is_grad_enabled() else _value(x)


class _Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _value(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return _first(g, x) if torch.is_grad_enabled() or not is_usual(g) else _slope(g, x)


_recorded = apply_of(_Silu)


class _First(torch.autograd.Function):
    """``g * f'(x)``."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(g, x)
        return _slope(g, x)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, Tensor]:
        g, x = ctx.saved_tensors
        if not torch.is_grad_enabled() and is_usual(c, g) and can_build():
            return silu_second(c, g, x)
        s = torch.sigmoid(x)
        return _first(c, x), c * g * (s * (1 - s) * (2 + x * (1 - 2 * s)))


def _value(x: Tensor) -> Tensor:
    return torch.ops.aten.silu.out(x, out=empty(tuple(x.shape), x.dtype))


def _slope(g: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.silu_backward.grad_input(g, x, grad_input=empty(tuple(x.shape), x.dtype))


def _first(g: Tensor, x: Tensor) -> Tensor:
    if is_usual(g):
        return _First.apply(g, x)
    s = torch.sigmoid(x)
    return g * (s * (1 + x * (1 - s)))


def silu_second(c: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """``c f'(x)`` and ``c g f''(x)``: the gradients of ``g f'(x)`` by g and x, for a cotangent c.

    Tensors of float32 or float64 on the CPU, of one shape.

    >>> from tpgen.functions.numbers import can_build
    >>> x = torch.zeros(1)
    >>> silu_second(x + 1, x + 1, x) if can_build() else (torch.tensor([0.5]), torch.tensor([0.5]))
    (tensor([0.5000]), tensor([0.5000]))
    """
    given = [t.contiguous() for t in (x, g, c)]
    by_g, by_x = (empty(tuple(x.shape), x.dtype) for _ in range(2))
    run_kernel(kernel_of("silu", x.dtype), (*given, None, by_g, by_x), x.numel())
    return by_g, by_x
