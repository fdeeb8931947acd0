"""The usual call of a product or a layer, recognised in few steps: of small ones so many are made that steps show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tpgen.kernels.runtime.call import OUT, ProductCall
from tpgen.kernels.runtime.forms import products
from tpgen.nn.autocast import autocasting

if TYPE_CHECKING:
    from tpgen.nn.linear import Linear
    from tpgen.nn.tensor_product import TensorProduct


def quick_call(
    product: TensorProduct | Linear,
    text: str,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    src: Tensor | None = None,
    dst: Tensor | None = None,
    nodes: int | None = 0,
) -> Tensor | None:
    """The result by the kernel of a description; None for any other call, and where it does not fit.

    Edges have as many nodes as x has rows where nothing is said.  Weights and mask are read past what `Module` does to
    find a parameter or a buffer.
    """
    if weight is not None:
        w = weight if product.weight_numel else None
    else:
        w = (product._parameters if product.internal_weights else product._buffers).get("weight")
    if not text or not (isinstance(x, Tensor) and isinstance(y, Tensor) and isinstance(w, Tensor)):
        return None
    like = product._buffers["output_mask"]
    if like is None or x.dtype != like.dtype or (weight is None and w.numel() != product.weight_numel):
        return None
    if nodes is None and x.dim():
        nodes = x.shape[0]
    if type(nodes) is not int or not (src is None or (isinstance(src, Tensor) and isinstance(dst, Tensor))):
        return None  # a size that a trace must not be asked, or no tensors
    made = products.at_once(ProductCall(x, y, w, None, src, dst, text, OUT, nodes))
    return made[0] if made else None


def is_plain(product: TensorProduct, x: Tensor, y: Tensor, w: Tensor) -> bool:
    """Whether a call needs none of the thorough checks: rows alike, nothing to convert, nothing to complain of."""
    like = product.output_mask
    if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.dim() == 2) or product.streams:
        return False
    rows, dtype, device = x.shape[0], like.dtype, like.device
    return (
        x.shape[1] == product._in1_dim
        and y.shape == (rows, product._in2_dim)
        and (product.shared_weights or w.shape == (rows, product.weight_numel))
        and x.dtype == dtype
        and y.dtype == dtype
        and w.dtype == dtype
        and x.layout == y.layout == w.layout == torch.strided
        and x.device == device
        and y.device == device
        and w.device == device
        and not autocasting(device)
    )
