"""What a call of a kernel takes beside operands and results, in bytes: what its target says, and copies."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tpgen.kernels.operators.amounts import Amounts
from tpgen.kernels.operators.call import OUT, X1, Call
from tpgen.kernels.operators.runtime import Product, product_of, slots_of
from tpgen.kernels.operators.targets import target_of


def product_workspace(call: Call) -> int:
    """Of a kernel of a product.

    >>> from tpgen.kernels.operators.description import describe
    >>> from tpgen.planner.plan import make_plan
    >>> text = describe(make_plan("8x0e", "1o", "8x1o", [(0, 0, 0, "uvu", True)]))
    >>> x, y, w = torch.ones(2, 8), torch.ones(2, 3), torch.ones(8)
    >>> product_workspace(Call(x, y, w, None, None, None, text, OUT)) < 10_000
    True
    """
    product = product_of(call.description)
    if call.indexed and call.mask & X1 and call.mask & OUT:
        return max(product_workspace(call.opening(mask)) for mask in (call.mask & ~OUT, OUT))
    if not product.live:
        return 0
    copies = _copies([*call.tensors(), *(index for index in (call.src, call.dst) if index is not None)])
    if not product.widens(call.mask, call.x1.dtype, call.indexed, call.x1.device.type):
        return copies + _kernel(product, call, call.x1.dtype)
    wide = sum(2 * x.nbytes for x in call.tensors()) + 2 * _results(product, call)
    return copies + wide + _kernel(product, call, torch.float32)


def _copies(tensors: Iterable[Tensor]) -> int:
    """Kernels read dense rows."""
    return sum(x.numel() * x.itemsize for x in tensors if not x.is_contiguous())


def _results(product: Product, call: Call) -> int:
    opened = [(call.rows * product.dims[3]) if x is None else x.numel() for x in call.point]
    return sum(n for bit, n in enumerate(opened) if call.mask >> bit & 1) * call.x1.itemsize


def _kernel(product: Product, call: Call, dtype: torch.dtype) -> int:
    device = call.x1.device
    target = target_of(device.type)
    if target is None:
        return 0
    indices = [index for index in (call.src, call.dst) if index is not None]
    ends = {"x1": call.x1.shape[0], "out": call.rows} if call.indexed else None
    narrow = sum(index.dtype == torch.int32 for index in indices)
    amounts = Amounts(device, call.x2.shape[0], ends, narrow)
    return target.workspace(product.description.form, slots_of(call.mask), dtype, amounts)
