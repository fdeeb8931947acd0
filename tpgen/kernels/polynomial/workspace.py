"""Bytes that a call of a polynomial's kernel takes beside operands and results.

These are lists of tasks (rows by element, cut into spans), sums that are stored when all tasks are done, scratch of
each thread, and copies of operands that are not contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tpgen.kernels.polynomial.runtime import kernels_of

_INDEX = torch.int64.itemsize  # tasks and the order of rows are int64
_ACCUMULATED = torch.float32.itemsize  # bfloat16 is stored only: sums and scratch of it are float32


def polynomial_workspace(tensors: Sequence[Tensor], index: Tensor | None, description: str, call: str) -> int:
    """Bytes of the workspace of ``tpgen::polynomial`` with these arguments."""
    kernels = kernels_of(description)
    signature, dtype = kernels.signature(call), tensors[0].dtype
    sizes = signature.sizes(tensors, index)
    placed = kernels.placement(signature.call, dtype)
    most = sizes.elements + (sizes.rows // placed.span if placed.span else 0) + 1
    tasks = (sizes.elements + 1 + sizes.rows + 2 * most) * _INDEX
    sums = sum(sizes.rows * placed.operands[slot].dim for slot in placed.summed)
    scratch = max(1, sum(placed.scratch.values())) * placed.target.lanes * torch.get_num_threads()
    copies = sum(x.numel() * x.itemsize for x in tensors if not x.is_contiguous())
    return tasks + (sums + scratch) * max(_ACCUMULATED, dtype.itemsize) + copies
