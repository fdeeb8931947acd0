"""Bytes that a call of a polynomial's kernel takes beside operands and results: what its target says, and copies."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tpgen.kernels.operators.targets import polynomial_target_of
from tpgen.kernels.polynomial.runtime import kernels_of


def polynomial_workspace(tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str) -> int:
    """Bytes of the workspace of ``tpgen::polynomial`` with these arguments."""
    kernels, device = kernels_of(description), tensors[0].device
    signature, target = kernels.signature(call), polynomial_target_of(device.type)
    copies = sum(x.numel() * x.itemsize for x in tensors if not x.is_contiguous())
    if target is None:
        return copies
    sweep, sizes = kernels.sweep(signature.call), signature.sizes(tensors, index)
    own = target.workspace_polynomial(kernels.plan, sweep, tensors[0].dtype, sizes, index is not None, device)
    return own + copies
