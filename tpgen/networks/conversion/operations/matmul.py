"""Large matrix products."""

from __future__ import annotations

import torch
from torch import Tensor

from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.ops import kernel_product
from tpgen.kernels.runtime.targets import why_kernel_unsupported
from tpgen.nn.autocast import is_autocasting
from tpgen.nn.plain_tensors import is_plain_tensor, is_traced
from tpgen.planner.linear import make_matrix_plan

# BLAS clears results and repacks both factors, which is slow for short inner axes, as in nets of weights of edges;
# a kernel writes into memory used before, while the system clears new memory page by page.
WORTH_MATMUL = 2**18  # numbers of a result: smaller ones are as fast by BLAS, unless each is a long sum
LONG, MANY = 32, 2**21  # products in a sum, and in all sums
_WEIGHTS = 2**14  # of long sums, where a graph is traced, whose rows are not known: there may be thousands


def matmul(x: Tensor, weight: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """``x @ (scale * weight)`` of two matrices, differentiable to any order.

    >>> matmul(torch.ones(2, 3), torch.ones(3, 4), scale=2.0)
    tensor([[6., 6., 6., 6.],
            [6., 6., 6., 6.]])
    """
    if torch.compiler.is_compiling() or is_autocasting(x.device) or not _is_matmul_kernel_faster(x, weight):
        return x @ (weight * scale)
    layer = make_matrix_plan(*weight.shape)
    if why_kernel_unsupported(layer):
        return x @ (weight * scale)
    return kernel_product(x, x[:, :0], (weight * scale).flatten(), describe(layer))


def why_no_matmul_kernel(*weights: Tensor) -> str | None:
    """Why no kernel multiplies by the matrices among weights, or None.

    >>> why_no_matmul_kernel(torch.ones(3, 4, dtype=torch.float16))
    'kernels compute in float32, float64 or bfloat16, not in float16'
    """
    matrices = (w for w in weights if w.dim() == 2)
    found = (why_kernel_unsupported(make_matrix_plan(*w.shape), dtype=w.dtype, device=w.device) for w in matrices)
    return next(filter(None, found), None)


def _is_matmul_kernel_faster(x: Tensor, w: Tensor) -> bool:
    if not (x.dim() == w.dim() == 2 and x.dtype == w.dtype):
        return False
    inner, outputs = w.shape
    if is_plain_tensor(x):
        made = x.shape[0] * outputs
        return made >= WORTH_MATMUL or (inner >= LONG and made * inner >= MANY)
    known = type(inner) is type(outputs) is int  # they may be symbols
    return known and is_traced(x) and inner >= LONG and inner * outputs >= _WEIGHTS
