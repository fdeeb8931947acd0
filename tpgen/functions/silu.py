r"""SiLU of large tensors, :math:`f(x) = x\, s(x)` with the sigmoid s, into reused memory.

.. math:: f' = s\,(1 + x (1 - s)), \quad f'' = s (1 - s) (2 + x (1 - 2 s))
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tpgen.functions.numbers import (
    KernelFunction,
    build_elementwise_kernel,
    can_build_kernel,
    recorded_function,
    run_kernel,
)
from tpgen.kernels.runtime.memory import empty_tensor
from tpgen.nn.autocast import is_autocasting
from tpgen.nn.plain_tensors import are_plain

WORTH_SILU = 2**15  # numbers: below, what Python adds to a call is noticed


def silu(x: Tensor) -> Tensor:
    """Compute ``x * sigmoid(x)``, differentiable to any order.

    >>> silu(torch.zeros(2))
    tensor([0., 0.])
    """
    if torch.compiler.is_compiling() or not are_plain(x) or x.numel() < WORTH_SILU or is_autocasting(x.device):
        return nn.functional.silu(x)
    if not (x.requires_grad and torch.is_grad_enabled()):
        return _silu_without_graph(x)
    return recorded_function(_SECOND if can_build_kernel() else _FIRST, None, 0, x)[0]


def _silu_without_graph(x: Tensor) -> Tensor:
    return torch.ops.aten.silu.out(x, out=empty_tensor(tuple(x.shape), x.dtype))


def _silu_gradient(g: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.silu_backward.grad_input(g, x, grad_input=empty_tensor(tuple(x.shape), x.dtype))


def silu_second_grad(c: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``c f'(x)`` and ``c g f''(x)``: the gradients of ``g f'(x)`` by g and x.

    Tensors are float32 or float64 on the CPU, of one shape.

    >>> x = torch.zeros(1)
    >>> silu_second_grad(x + 1, x + 1, x)
    (tensor([0.5000]), tensor([0.5000]))
    """
    if not can_build_kernel(build_elementwise_kernel, "silu", x.dtype):
        s = torch.sigmoid(x)
        return c * s * (1 + x * (1 - s)), c * g * s * (1 - s) * (2 + x * (1 - 2 * s))
    given = [t.contiguous() for t in (x, g, c)]
    by_g, by_x = (empty_tensor(tuple(x.shape), x.dtype) for _ in range(2))
    run_kernel(build_elementwise_kernel("silu", x.dtype), (*given, None, by_g, by_x), x.numel())
    return by_g, by_x


# torch's own has no tangents of its gradient
_FIRST = KernelFunction(
    lambda _, x: x * torch.sigmoid(x), (lambda _, x: (_silu_without_graph(x),), lambda _, g, x: (_silu_gradient(g, x),))
)
# where a kernel can be built
_SECOND = _FIRST._replace(kernels=(*_FIRST.kernels, lambda _, c, g, x: silu_second_grad(c, g, x)))
