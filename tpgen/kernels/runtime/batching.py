"""One more batch dimension over a form is more rows: the rule of `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tpgen.kernels.runtime.call import DESTINATIONS, ELEMENTS, PAIRS, ROWS, SHARED, SOURCES, FormCall, OperandShape
from tpgen.kernels.runtime.pairs import rows_of_edges, sums_of_pairs
from tpgen.kernels.runtime.registration import Unfold
from tpgen.kernels.runtime.runtime import kernels_of

Dims = Sequence[int | None]  # the batch dimension of each tensor; None where it has none


def fold_batch(size: int, dims: Dims, call: FormCall) -> tuple[FormCall, Unfold]:
    """A call with the batch folded into the rows, and what unfolds its results.

    ``dims`` are those of the tensors, then of src, dst and index.  Weights that rows share stay one copy where none has
    a batch of its own and no gradient is asked for.  Otherwise those of elements become more elements; those that all
    rows of a product share become weights of each row, and gradients are summed over the rows of each sample.
    """
    if kernels_of(call.description).description.pairs:
        return _fold_pairs(size, dims, call)
    kernels, count = kernels_of(call.description), len(call.tensors)
    signature = kernels.signature(call.call, call.indexed)
    shapes = [g.shape for g in signature.given]
    counts = {s.counts: _rows(x, d) for s, x, d in reversed([*zip(shapes, call.tensors, dims, strict=False)])}
    counts.setdefault(DESTINATIONS, call.nodes)
    each = call.elements is None and counts.get(ELEMENTS, 1) == counts[ROWS] != 1  # a set of weights for each row
    asked = [s for s, d in zip(shapes, dims, strict=False) if d is not None] + [s for _, s in signature.opened]
    spread = each or any(_is_kept(s) and s.dim for s in asked)

    def folded(shape: OperandShape, x: Tensor, dim: int | None) -> Tensor:
        if _is_kept(shape) and not (spread and shape.dim):
            return x if dim is None else x.select(dim, 0)  # empty ones alone have a batch here
        x = _first(x, dim, size)
        return (_of_rows(x, counts[ROWS]) if shape.counts == SHARED else x).flatten(0, 1)

    def unfolded(shape: OperandShape, x: Tensor) -> Tensor:
        if _is_kept(shape) and not (spread and shape.dim):
            return x.expand(size, *x.shape)
        if shape.counts == SHARED:
            return x.reshape(size, counts[ROWS], *x.shape[1:]).sum(1)
        return x.reshape(size, counts[shape.counts], *x.shape[1:])

    def unfold(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(unfolded(shape, x) for (_, shape), x in zip(signature.opened, results, strict=True))

    src, dst, index = dims[count : count + 3]
    shared = any(s.counts == SHARED and s.dim for s in shapes)
    made = call._replace(
        tensors=[folded(*one) for one in zip(shapes, call.tensors, dims, strict=False)],
        src=_offset(call.src, src, size, counts.get(SOURCES, 0)),
        dst=_offset(call.dst, dst, size, counts[DESTINATIONS]),
        elements=_elements(call, index, size, counts if spread and not each else {}),
        description=kernels.product.per_row if spread and shared else call.description,
        nodes=call.nodes * size,
        by_src=None,  # there are more edges
        by_dst=None,
    )
    return made, unfold


def _fold_pairs(size: int, dims: Dims, call: FormCall) -> tuple[FormCall, Unfold]:
    """Fold a call in which two edges share a row of weights: by a row for each edge, whose gradients are added."""
    kernels = kernels_of(call.description)
    signature = kernels.signature(call.call, call.indexed)
    given = [*zip(signature.given, call.tensors, dims[: len(call.tensors)], strict=True)]
    counts = {g.shape.counts: _rows(x, d) for g, x, d in reversed(given)}
    tensors = [rows_of_edges(x, counts[ROWS], int(d == 0)) if g.shape.counts == PAIRS else x for g, x, d in given]
    text = kernels.product.per_edge
    made, unfold_edges = fold_batch(size, dims, call._replace(tensors=tensors, description=text))

    def unfold(results: Sequence[Tensor]) -> tuple[Tensor, ...]:
        found = unfold_edges(results)
        return tuple(
            sums_of_pairs(x, counts[PAIRS], axis=1) if shape.counts == PAIRS else x
            for (_, shape), x in zip(signature.opened, found, strict=True)
        )

    return made, unfold


def _is_kept(shape: OperandShape) -> bool:
    """Whether a tensor may stay as it is, since rows share it."""
    return shape.counts in (SHARED, ELEMENTS)


def _of_rows(x: Tensor, rows: int) -> Tensor:
    """A copy for each row of what all rows of a sample share."""
    return x.unsqueeze(1).expand(x.shape[0], rows, *x.shape[1:])


def _elements(call: FormCall, dim: int | None, size: int, counts: dict[str, int]) -> Tensor | None:
    """Elements of sample n stand from n * elements on, where each sample has its own."""
    if call.elements is None and ELEMENTS in counts:
        return torch.arange(size, device=call.tensors[0].device).repeat_interleave(counts[ROWS])
    return _offset(call.elements, dim, size, counts.get(ELEMENTS, 0))


def _first(x: Tensor, dim: int | None, size: int) -> Tensor:
    """The batch dimension first, added where there is none."""
    return x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _rows(x: Tensor, dim: int | None) -> int:
    """The first axis of one sample."""
    shape = x.shape if dim is None else x.movedim(dim, 0).shape[1:]
    return shape[0]


def _offset(index: Tensor | None, dim: int | None, size: int, rows: int) -> Tensor | None:
    """Indices of sample n point into rows n * rows and on."""
    if index is None:
        return None
    steps = torch.arange(size, device=index.device).unsqueeze(1) * rows
    return (_first(index, dim, size) + steps).reshape(-1)
