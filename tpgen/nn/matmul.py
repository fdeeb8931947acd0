"""Matrix products with large results, on memory that was used before.

torch takes new memory for every large result, and the system fills its pages with zeros as they are first touched: that
can cost as much as a product with a short inner axis.  Weights of edges are such results.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tpgen.kernels.operators.memory import empty
from tpgen.nn.autocast import autocasting
from tpgen.nn.multilinear import Point, is_plain, open_slots

WORTH = 2**18  # numbers of a result: smaller ones find memory in torch's own lists


def matmul(x: Tensor, w: Tensor) -> Tensor:
    """``x @ w`` of two matrices, differentiable to any order.

    >>> matmul(torch.ones(2, 3), torch.ones(3, 4)).shape
    torch.Size([2, 4])
    """
    if torch.compiler.is_compiling() or not is_plain(x) or autocasting(x.device) or not _is_large(x, w):
        return x @ w
    return open_slots(_reusing, _plainly, (x, w, None), (2,))[0]


def _is_large(x: Tensor, w: Tensor) -> bool:
    return x.dim() == w.dim() == 2 and x.dtype == w.dtype and x.shape[0] * w.shape[1] >= WORTH


def _factors(point: Point, opened: int) -> tuple[Tensor, Tensor]:
    """The slots of the form sum(x w * g) are matrix products of the other two."""
    x, w, g = point
    return ((g, w.T) if opened == 0 else (x.T, g)) if opened < 2 else (x, w)


def _reusing(point: Point, opened: tuple[int, ...]) -> list[Tensor]:
    pairs = [_factors(point, n) for n in opened]
    return [torch.mm(a, b, out=empty((a.shape[0], b.shape[1]), a.dtype)) for a, b in pairs]


def _plainly(point: Point, opened: tuple[int, ...]) -> list[Tensor]:
    return [a @ b for a, b in (_factors(point, n) for n in opened)]
