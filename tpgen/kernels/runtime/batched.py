"""Kernel calls for TorchScript and compiled programs."""

# Annotations are objects here, not strings: TorchScript reads them.

from typing import Optional

import torch
from torch import Tensor

from tpgen.kernels.runtime.ops import kernel_polynomial


def run_product(
    x1: Tensor, x2: Tensor, w: Tensor, indices: list[Tensor], description: str, rows: str = "", nodes: int = 0
) -> Tensor:
    """Compute a tensor product by the operator ``tpgen::form``; ``rows`` names the row rule of each index."""
    return torch.ops.tpgen.form([x1, x2, w], indices, description, "x1 x2 w -> out", rows, nodes)[0]


def batched_product(x1: Tensor, x2: Tensor, w: Tensor, description: str, shared: bool) -> Tensor:
    """Product of ``x1 (…, in1)``, ``x2 (…, in2)``, and ``w (numel,)`` shared or ``(…, numel)``; batches broadcast."""
    alike = x1.dim() == 2 and x2.dim() == 2 and x1.size(0) == x2.size(0)
    if alike and (shared or w.size(-1) == 0 or (w.dim() == 2 and w.size(0) == x1.size(0))):
        return run_product(x1, x2, w, [], description)
    batch = torch.broadcast_tensors(_one_entry_per_row(x1), _one_entry_per_row(x2))[0]
    if not shared and w.size(-1) > 0:
        batch = torch.broadcast_tensors(batch, w.narrow(-1, 0, 1))[0]
    # one more leading axis, so that there is a batch axis to flatten even where none is given
    batch = batch.unsqueeze(0)
    x1 = torch.broadcast_tensors(x1, batch)[0].flatten(0, -2)
    x2 = torch.broadcast_tensors(x2, batch)[0].flatten(0, -2)
    if not shared and w.size(-1) > 0:
        w = torch.broadcast_tensors(w, batch)[0].flatten(0, -2)
    out = run_product(x1, x2, w, [], description)
    return out.unflatten(0, batch.shape[:-1]).squeeze(0)


def run_polynomial(tensors: list[Tensor], index: Optional[Tensor], description: str, call: str) -> Tensor:  # noqa: UP045
    """`kernel_polynomial` for TorchScript and compiled programs; tensors have one dtype."""
    if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
        if not torch.compiler.is_compiling():
            return kernel_polynomial(tensors, index, description, call)
    indices: list[Tensor] = [] if index is None else [index]
    return torch.ops.tpgen.form(tensors, indices, description, call, "element")[0]


def _one_entry_per_row(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True) if x.size(-1) == 0 else x.narrow(-1, 0, 1)
