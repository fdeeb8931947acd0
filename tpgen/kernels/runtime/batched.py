"""A kernel's product for operands with any batch dimensions."""

# Annotations are objects here, not strings: TorchScript reads them.

import torch
from torch import Tensor

import tpgen.kernels.runtime.ops  # noqa: F401  (defines torch.ops.tpgen)


def batched_product(x1: Tensor, x2: Tensor, w: Tensor, description: str, shared: bool) -> Tensor:
    """The product of ``x1 (…, in1)`` and ``x2 (…, in2)`` with ``w (numel,)`` shared or ``(…, numel)``.

    Batch dimensions broadcast; rows that need no broadcasting go to the kernel as they are.
    """
    alike = x1.dim() == 2 and x2.dim() == 2 and x1.size(0) == x2.size(0)
    if alike and (shared or w.size(-1) == 0 or (w.dim() == 2 and w.size(0) == x1.size(0))):
        return torch.ops.tpgen.product(x1, x2, w, description)
    batch = torch.broadcast_tensors(_first_entry(x1), _first_entry(x2))[0]
    if not shared and w.size(-1) > 0:
        batch = torch.broadcast_tensors(batch, w.narrow(-1, 0, 1))[0]
    # one more leading axis, so that there is a batch axis to flatten even where none is given
    batch = batch.unsqueeze(0)
    x1 = torch.broadcast_tensors(x1, batch)[0].flatten(0, -2)
    x2 = torch.broadcast_tensors(x2, batch)[0].flatten(0, -2)
    if not shared and w.size(-1) > 0:
        w = torch.broadcast_tensors(w, batch)[0].flatten(0, -2)
    out = torch.ops.tpgen.product(x1, x2, w, description)
    return out.unflatten(0, batch.shape[:-1]).squeeze(0)


def _first_entry(x: Tensor) -> Tensor:
    """The tensor cut to length one along its last axis, also where that is empty."""
    return x.sum(-1, keepdim=True) if x.size(-1) == 0 else x.narrow(-1, 0, 1)
