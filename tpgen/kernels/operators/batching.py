"""One more batch dimension over a form is more rows: the rule of `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tpgen.kernels.operators.call import Call, Dim, W, slots_in
from tpgen.kernels.operators.registration import Unfold
from tpgen.kernels.operators.runtime import product_of

_WEIGHTS = 2  # the position of their slot


def fold_batch(size: int, dims: Call, call: Call) -> tuple[Call, Unfold]:
    """A call with the batch folded into the rows, and what unfolds its results; ``dims`` holds the batch dimensions.

    Shared weights stay shared where they have no batch of their own and no gradient is asked for; otherwise every row
    gets its copy, and gradients are summed over the rows of each sample.
    """
    product = product_of(call.description)
    rows, sources = _rows(call.x2, dims.x2), _rows(call.x1, dims.x1)
    spread = product.shared and product.dims[2] > 0 and (dims.w is not None or bool(call.mask & W))
    keep_weights = (product.shared and not spread) or product.dims[2] == 0
    w = _first(call.w, dims.w, size)
    if keep_weights:  # those with a batch are empty: any sample's are all there is
        w = call.w if dims.w is None else w.sum(0)
    else:
        w = (w.unsqueeze(1).expand(size, rows, product.dims[2]) if spread else w).flatten(0, 1)
    ends = rows
    if call.indexed:
        ends = call.nodes if call.g is None else _rows(call.g, dims.g)
    folded = call._replace(
        x1=_first(call.x1, dims.x1, size).flatten(0, 1),
        x2=_first(call.x2, dims.x2, size).flatten(0, 1),
        w=w,
        g=None if call.g is None else _first(call.g, dims.g, size).flatten(0, 1),
        src=_offset(call.src, dims.src, size, sources),
        dst=_offset(call.dst, dims.dst, size, ends),
        description=product.description.per_row if spread else call.description,
        nodes=call.nodes * size,
    )
    counts = (sources, rows, rows, ends)

    def unfolded(slot: int, value: Tensor) -> Tensor:
        if slot == _WEIGHTS and keep_weights:
            return value.expand(size, *value.shape)
        samples = value.reshape(size, counts[slot], *value.shape[1:])
        return samples.sum(1) if slot == _WEIGHTS and spread else samples

    def unfold(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(unfolded(slot, value) for slot, value in zip(slots_in(call.mask), results, strict=True))

    return folded, unfold


def _first(x: Tensor, dim: Dim | Tensor, size: int) -> Tensor:
    """The batch dimension first, added where there is none."""
    return x.movedim(dim, 0) if isinstance(dim, int) else x.unsqueeze(0).expand(size, *x.shape)


def _rows(x: Tensor, dim: Dim | Tensor) -> int:
    """Rows of one sample."""
    return x.movedim(dim, 0).shape[1] if isinstance(dim, int) else x.shape[0]


def _offset(index: Tensor | None, dim: Dim | Tensor, size: int, rows: int) -> Tensor | None:
    """Indices of sample n point into rows n * rows and on."""
    if index is None:
        return None
    steps = torch.arange(size, device=index.device).unsqueeze(1) * rows
    return (_first(index, dim, size) + steps).reshape(-1)
