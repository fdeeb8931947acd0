"""The `torch.func.vmap` rule of forms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tpgen.kernels.rows import DESTINATIONS, GROUPED, PAIRED, ROWS, SHARED, RowIndex
from tpgen.kernels.runtime.call import FormCall, OperandShape
from tpgen.kernels.runtime.pairs import rows_of_edges, sums_of_pairs
from tpgen.kernels.runtime.registration import Unfold
from tpgen.kernels.runtime.runtime import kernels_of

Dims = Sequence[int | None]  # the batch dimension of each tensor; None where it has none


def fold_batch(size: int, dims: Dims, call: FormCall) -> tuple[FormCall, Unfold]:
    """Fold a batch into a call's rows; return the call and the function that unfolds results.

    ``dims`` are batch dimensions of tensors, indices and orders.
    """
    if size == 1:
        return _fold_single_sample(dims, call)
    if any(rule.way == PAIRED for rule in call.rules):
        return _fold_paired_weights(size, dims, call)
    kernels, count = kernels_of(call.description), len(call.tensors)
    signature = kernels.signature(call.call, call.rules)
    shapes, kept = [g.shape for g in signature.given], _axes_shared_by_rows(call)
    counts = {s.counts: x.shape[int(d == 0)] for s, x, d in reversed([*zip(shapes, call.tensors, dims, strict=False)])}
    counts.setdefault(DESTINATIONS.into, call.nodes)
    # a set of weights for each row
    each = any(i.tensor is None and counts.get(i.rule.into, 1) == counts[ROWS] != 1 for i in call.indices)
    asked = [s for s, d in zip(shapes, dims, strict=False) if d is not None] + [s for _, s in signature.opened]
    spread = each or any(s.counts in kept and s.dim for s in asked)

    def tensor_of_folded_rows(shape: OperandShape, x: Tensor, dim: int | None) -> Tensor:
        if shape.counts in kept and not (spread and shape.dim):
            return x if dim is None else x.select(dim, 0)  # empty ones alone have a batch here
        x = _move_batch_first(x, dim, size)
        return (_repeat_per_row(x, counts[ROWS]) if shape.counts == SHARED else x).flatten(0, 1)

    def unfolded_result(shape: OperandShape, x: Tensor) -> Tensor:
        if shape.counts in kept and not (spread and shape.dim):
            return x.expand(size, *x.shape)
        if shape.counts == SHARED:
            return x.reshape(size, counts[ROWS], *x.shape[1:]).sum(1)
        return x.reshape(size, counts[shape.counts], *x.shape[1:])

    def unfold(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(unfolded_result(shape, x) for (_, shape), x in zip(signature.opened, results, strict=True))

    def index_of_folded_rows(index: RowIndex, dim: int | None) -> RowIndex:
        into, apart = index.rule.into, index.rule.into not in kept or (spread and not each)
        if index.tensor is None and into in counts and apart:
            samples = torch.arange(size, device=call.tensors[0].device)
            return index._replace(tensor=samples.repeat_interleave(counts[ROWS]), order=None)
        tensor = _offset_indices(index.tensor, dim, size, counts.get(into, 0) if apart else 0)
        return RowIndex(index.rule, tensor, index.size * size)  # whose order is another: there are more rows

    shared = any(s.counts == SHARED and s.dim for s in shapes)
    own = iter(dims[count:])
    made = call._replace(
        tensors=[tensor_of_folded_rows(*one) for one in zip(shapes, call.tensors, dims, strict=False)],
        description=kernels.product.per_row if spread and shared else call.description,
    )
    indices = call.indices
    return made.with_indices(
        [index_of_folded_rows(i, None if i.tensor is None else next(own)) for i in indices]
    ), unfold


def _fold_single_sample(dims: Dims, call: FormCall) -> tuple[FormCall, Unfold]:
    tensors = [x if d is None else x.select(d, 0) for x, d in zip((*call.tensors, *call.at), dims, strict=True)]
    count = len(call.tensors)
    made = call._replace(tensors=tensors[:count], at=tensors[count:])
    return made, lambda results: tuple(x.unsqueeze(0) for x in results)


def _fold_paired_weights(size: int, dims: Dims, call: FormCall) -> tuple[FormCall, Unfold]:
    signature = kernels_of(call.description).signature(call.call, call.rules)
    count = len(call.tensors)
    given = [*zip(signature.given, call.tensors, dims[:count], strict=True)]
    counts = {g.shape.counts: x.shape[int(d == 0)] for g, x, d in reversed(given)}
    pairs = {rule.into for rule in call.rules if rule.way == PAIRED}
    tensors = [rows_of_edges(x, counts[ROWS], int(d == 0)) if g.shape.counts in pairs else x for g, x, d in given]
    below = call._replace(tensors=tensors, rules=tuple(rule for rule in call.rules if rule.way != PAIRED))
    made, unfold_edges = fold_batch(size, dims, below)

    def unfold(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
        found = unfold_edges(results)
        return tuple(
            sums_of_pairs(x, counts[shape.counts], axis=1) if shape.counts in pairs else x
            for (_, shape), x in zip(signature.opened, found, strict=True)
        )

    return made, unfold


def _axes_shared_by_rows(call: FormCall) -> set[str]:
    # axes of what rows share, which may stay as they are
    return {SHARED} | {rule.into for rule in call.rules if rule.way == GROUPED}


def _repeat_per_row(x: Tensor, rows: int) -> Tensor:
    return x.unsqueeze(1).expand(x.shape[0], rows, *x.shape[1:])


def _move_batch_first(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _offset_indices(index: Tensor | None, dim: int | None, size: int, rows: int) -> Tensor | None:
    # sample n owns rows from n * rows on
    if index is None:
        return None
    steps = torch.arange(size, device=index.device).unsqueeze(1) * rows
    return (_move_batch_first(index, dim, size) + steps).reshape(-1)
