r"""The gradients of SiLU's gradient, :math:`f(x) = x\, s(x)` with the sigmoid s, by a kernel: `silu.h`.

.. math:: f' = s\,(1 + x (1 - s)), \quad f'' = s (1 - s) (2 + x (1 - 2 s))

torch has kernels of f and f'; of what comes next it makes some fifteen operations, each with a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tpgen.kernels.cpp.prelude import header, type_names
from tpgen.kernels.cpp.text import read_header
from tpgen.kernels.libraries.build import load
from tpgen.kernels.libraries.compiler import find_compiler, target
from tpgen.kernels.operators.memory import empty
from tpgen.remember import remembered


def silu_text(dtype: torch.dtype) -> str:
    """The source of the kernel for a dtype, float32 or float64.

    >>> "tpgen_kernel" in silu_text(torch.float32)
    True
    """
    parts = [type_names(target(dtype)), *map(header, ("system", "threads", "plain"))]
    return "\n".join([*(part.strip("\n") for part in parts), read_header(Path(__file__).with_name("silu.h"))])


def has_silu() -> bool:
    """Whether a kernel can be built here."""
    return find_compiler() is not None


@remembered("kernels of activations")
def _kernel(dtype: torch.dtype) -> Callable[..., int]:
    return load(silu_text(dtype))


def silu_second(c: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """``c f'(x)`` and ``c g f''(x)``: the gradients of ``g f'(x)`` by g and x, for a cotangent c.

    Tensors of float32 or float64 on the CPU, of one shape.

    >>> x = torch.zeros(1)
    >>> silu_second(x + 1, x + 1, x) if has_silu() else (torch.tensor([0.5]), torch.tensor([0.5]))
    (tensor([0.5000]), tensor([0.5000]))
    """
    given = [t.contiguous() for t in (x, g, c)]
    by_g, by_x = (empty(tuple(x.shape), x.dtype) for _ in range(2))
    torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
    _kernel(x.dtype)(*(t.data_ptr() for t in given), 0, by_g.data_ptr(), by_x.data_ptr(), 0, 0, x.numel())
    return by_g, by_x
