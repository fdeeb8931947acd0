"""What a call of a polynomial's kernel takes beside operands and results, in bytes: tasks, sums, scratch, copies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tpgen.kernels.polynomial.runtime import kernels_of

_INDEX = torch.int64.itemsize


def polynomial_workspace(tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str) -> int:
    """Of ``tpgen::polynomial`` with these arguments."""
    kernels = kernels_of(description)
    signature, dtype = kernels.signature(call), tensors[0].dtype
    sizes = signature.sizes(tensors, index)
    placed = kernels.placement(signature.call, dtype)
    most = sizes.elements + (sizes.rows // placed.span if placed.span else 0) + 1
    tasks = (sizes.elements + 1 + sizes.rows + 2 * most) * _INDEX
    sums = sum(sizes.rows * placed.operands[slot].dim for slot in placed.summed)
    scratch = max(1, sum(placed.scratch.values())) * placed.target.lanes * torch.get_num_threads()
    copies = sum(x.numel() * x.itemsize for x in tensors if not x.is_contiguous())
    return tasks + (sums + scratch) * max(4, dtype.itemsize) + copies
