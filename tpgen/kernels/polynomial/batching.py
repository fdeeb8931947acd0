"""One more batch dimension over a polynomial is more rows, and more elements where weights have it too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fold_batch(
    size: int,
    in_dims: Sequence[int | None],
    tensors: Sequence[Tensor],
    index_dim: int | None,
    index: Tensor | None,
    weights: Sequence[bool],
    opens_weights: bool,
) -> tuple[list[Tensor], Tensor | None]:
    """Tensors and index with the batch folded into rows; weights keep one copy where nothing asks for more."""
    rows = next(_first(x, dim, size).shape[1] for x, dim, w in zip(tensors, in_dims, weights, strict=True) if not w)
    elements = next(
        (_first(x, dim, size).shape[1] for x, dim, w in zip(tensors, in_dims, weights, strict=True) if w), 1
    )
    per_row = index is None and elements == rows != 1
    batched = any(w and dim is not None for dim, w in zip(in_dims, weights, strict=True))
    spread = opens_weights or batched or per_row
    folded = [
        _first(x, dim, size).flatten(0, 1) if spread or not w else x
        for x, dim, w in zip(tensors, in_dims, weights, strict=True)
    ]
    return folded, _folded_index(index, index_dim, size, rows, elements, spread and not per_row)


def _folded_index(
    index: Tensor | None, dim: int | None, size: int, rows: int, elements: int, spread: bool
) -> Tensor | None:
    """Elements of sample n stand from n * elements on, where each sample has its own."""
    if index is None:
        return torch.arange(size).repeat_interleave(rows) if spread else None
    steps = torch.arange(size, device=index.device).unsqueeze(1) * (elements if spread else 0)
    return (_first(index, dim, size) + steps).reshape(-1)


def _first(x: Tensor, dim: int | None, size: int) -> Tensor:
    """The batch dimension first, added where there is none."""
    return x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
