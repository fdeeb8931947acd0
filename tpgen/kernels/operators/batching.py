"""One more batch dimension over a form is more rows: the rule of `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tpgen.kernels.operators.runtime import W, product_of

Unfold = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


def fold_batch(
    size: int,
    in_dims: Sequence[int | None],
    x1: Tensor,
    x2: Tensor,
    w: Tensor,
    g: Tensor | None,
    description: str,
    mask: int,
    src: Tensor | None,
    dst: Tensor | None,
    nodes: int,
) -> tuple[tuple, Unfold]:
    """Arguments with the batch folded into the rows, and what unfolds the results.

    Shared weights stay shared where they have no batch of their own and no gradient is asked for; otherwise every row
    gets its copy, and gradients are summed over the rows of each sample.
    """
    product = product_of(description)
    rows = _rows(x2, in_dims[1])
    spread = product.shared and product.dims[2] > 0 and (in_dims[2] is not None or bool(mask & W))
    operands = [None if x is None else _first(x, dim, size) for x, dim in zip((x1, x2, w, g), in_dims, strict=False)]
    if spread:
        assert operands[2] is not None
        operands[2] = operands[2].unsqueeze(1).expand(size, rows, product.dims[2])
        description = product.description.per_row
    keep_weights = (product.shared and not spread) or product.dims[2] == 0
    folded = [None if x is None or (n == 2 and keep_weights) else x.flatten(0, 1) for n, x in enumerate(operands)]
    if keep_weights:  # those with a batch are empty: any sample's are all there is
        folded[2] = w if in_dims[2] is None else w.movedim(in_dims[2], 0).sum(0)
    sources, ends = _rows(x1, in_dims[0]), rows
    if src is not None:
        ends = nodes if g is None else _rows(g, in_dims[3])
    src, dst = _offset(src, in_dims[6], size, sources), _offset(dst, in_dims[7], size, ends)
    counts = (sources, rows, rows, ends)

    def unfolded(slot: int, value: Tensor) -> Tensor:
        if slot == 2 and keep_weights:
            return value.expand(size, *value.shape)
        samples = value.reshape(size, counts[slot], *value.shape[1:])
        return samples.sum(1) if slot == 2 and spread else samples

    def unfold(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
        slots = [n for n in range(4) if mask >> n & 1]
        return tuple(unfolded(slot, value) for slot, value in zip(slots, results, strict=True))

    return (*folded, description, mask, src, dst, nodes * size), unfold


def _first(x: Tensor, dim: int | None, size: int) -> Tensor:
    """The batch dimension first, added where there is none."""
    return x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _rows(x: Tensor, dim: int | None) -> int:
    """Rows of one sample."""
    return x.shape[0] if dim is None else x.movedim(dim, 0).shape[1]


def _offset(index: Tensor | None, dim: int | None, size: int, rows: int) -> Tensor | None:
    """Indices of sample n point into rows n * rows and on."""
    if index is None:
        return None
    steps = torch.arange(size, device=index.device).unsqueeze(1) * rows
    return (_first(index, dim, size) + steps).reshape(-1)
