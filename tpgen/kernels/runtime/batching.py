"""The `torch.func.vmap` rule of forms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tpgen.kernels.rows import DESTINATIONS, GROUPED, PAIRED, ROWS, SHARED, RowIndex
from tpgen.kernels.runtime.call import FormCall, OperandShape
from tpgen.kernels.runtime.pairs import repeat_paired_rows, sum_paired_rows
from tpgen.kernels.runtime.registration import Unfold
from tpgen.kernels.runtime.runtime import kernels_of

Dims = Sequence[int | None]  # the batch dimension of each tensor; None where it has none


def fold_vmap_batch(batch_size: int, batch_dims: Dims, call: FormCall) -> tuple[FormCall, Unfold]:
    """Fold a vmap batch into the rows of a call; return the call, and a function that splits results by sample."""
    if batch_size == 1:
        return _fold_batch_of_one(batch_dims, call)
    if any(rule.way == PAIRED for rule in call.rules):
        return _fold_batch_of_edge_pairs(batch_size, batch_dims, call)
    kernels, count = kernels_of(call.description), len(call.tensors)
    signature = kernels.signature(call.call, call.rules)
    shapes, kept = [g.shape for g in signature.given], _axes_shared_by_rows(call)
    counts = {
        s.counts: x.shape[int(d == 0)] for s, x, d in reversed([*zip(shapes, call.tensors, batch_dims, strict=False)])
    }
    counts.setdefault(DESTINATIONS.into, call.nodes)
    # a set of weights for each row
    each = any(i.tensor is None and counts.get(i.rule.into, 1) == counts[ROWS] != 1 for i in call.indices)
    asked = [s for s, d in zip(shapes, batch_dims, strict=False) if d is not None] + [s for _, s in signature.opened]
    spread = each or any(s.counts in kept and s.dim for s in asked)

    def fold_operand_rows(shape: OperandShape, operand: Tensor, batch_dim: int | None) -> Tensor:
        if shape.counts in kept and not (spread and shape.dim):
            return operand if batch_dim is None else operand.select(batch_dim, 0)  # empty ones alone have a batch here
        operand = _move_batch_first(operand, batch_dim, batch_size)
        return (_repeat_per_row(operand, counts[ROWS]) if shape.counts == SHARED else operand).flatten(0, 1)

    def split_result_by_sample(shape: OperandShape, result: Tensor) -> Tensor:
        if shape.counts in kept and not (spread and shape.dim):
            return result.expand(batch_size, *result.shape)
        if shape.counts == SHARED:
            return result.reshape(batch_size, counts[ROWS], *result.shape[1:]).sum(1)
        return result.reshape(batch_size, counts[shape.counts], *result.shape[1:])

    def split_results_by_sample(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(split_result_by_sample(shape, x) for (_, shape), x in zip(signature.opened, results, strict=True))

    def fold_row_index(index: RowIndex, batch_dim: int | None) -> RowIndex:
        into, apart = index.rule.into, index.rule.into not in kept or (spread and not each)
        if index.tensor is None and into in counts and apart:
            samples = torch.arange(batch_size, device=call.tensors[0].device)
            return index._replace(tensor=samples.repeat_interleave(counts[ROWS]), order=None)
        tensor = _flatten_batched_index(index.tensor, batch_dim, batch_size, counts.get(into, 0) if apart else 0)
        return RowIndex(index.rule, tensor, index.size * batch_size)  # whose order is another: there are more rows

    shared = any(s.counts == SHARED and s.dim for s in shapes)
    own = iter(batch_dims[count:])
    made = call._replace(
        tensors=[fold_operand_rows(*one) for one in zip(shapes, call.tensors, batch_dims, strict=False)],
        description=kernels.product_description.text_with_row_weights if spread and shared else call.description,
    )
    indices = call.indices
    return made.with_indices(
        [fold_row_index(i, None if i.tensor is None else next(own)) for i in indices]
    ), split_results_by_sample


def _fold_batch_of_one(batch_dims: Dims, call: FormCall) -> tuple[FormCall, Unfold]:
    tensors = [x if d is None else x.select(d, 0) for x, d in zip((*call.tensors, *call.at), batch_dims, strict=True)]
    count = len(call.tensors)
    made = call._replace(tensors=tensors[:count], at=tensors[count:])
    return made, lambda results: tuple(x.unsqueeze(0) for x in results)


def _fold_batch_of_edge_pairs(batch_size: int, batch_dims: Dims, call: FormCall) -> tuple[FormCall, Unfold]:
    signature = kernels_of(call.description).signature(call.call, call.rules)
    count = len(call.tensors)
    given = [*zip(signature.given, call.tensors, batch_dims[:count], strict=True)]
    counts = {g.shape.counts: x.shape[int(d == 0)] for g, x, d in reversed(given)}
    pairs = {rule.into for rule in call.rules if rule.way == PAIRED}
    tensors = [repeat_paired_rows(x, counts[ROWS], int(d == 0)) if g.shape.counts in pairs else x for g, x, d in given]
    below = call._replace(tensors=tensors, rules=tuple(rule for rule in call.rules if rule.way != PAIRED))
    made, unfold_edges = fold_vmap_batch(batch_size, batch_dims, below)

    def split_results_by_sample(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
        found = unfold_edges(results)
        return tuple(
            sum_paired_rows(x, counts[shape.counts], axis=1) if shape.counts in pairs else x
            for (_, shape), x in zip(signature.opened, found, strict=True)
        )

    return made, split_results_by_sample


def _axes_shared_by_rows(call: FormCall) -> set[str]:
    # axes of what rows share, which may stay as they are
    return {SHARED} | {rule.into for rule in call.rules if rule.way == GROUPED}


def _repeat_per_row(x: Tensor, rows: int) -> Tensor:
    return x.unsqueeze(1).expand(x.shape[0], rows, *x.shape[1:])


def _move_batch_first(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _flatten_batched_index(
    index: Tensor | None, batch_dim: int | None, batch_size: int, rows_per_sample: int
) -> Tensor | None:
    # sample n owns rows from n * rows on
    if index is None:
        return None
    steps = torch.arange(batch_size, device=index.device).unsqueeze(1) * rows_per_sample
    return (_move_batch_first(index, batch_dim, batch_size) + steps).reshape(-1)
