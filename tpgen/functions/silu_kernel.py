r"""The gradients of SiLU's gradient, :math:`f(x) = x\, s(x)` with the sigmoid s, by a kernel: `silu.h`.

.. math:: f' = s\,(1 + x (1 - s)), \quad f'' = s (1 - s) (2 + x (1 - 2 s))

torch has kernels of f and f'; of what comes next it makes some fifteen operations, each with a tensor of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tpgen.functions.numbers import kernel_of
from tpgen.kernels.runtime.memory import empty


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
    torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
    kernel_of("silu", x.dtype)(*(t.data_ptr() for t in given), 0, by_g.data_ptr(), by_x.data_ptr(), 0, 0, x.numel())
    return by_g, by_x
