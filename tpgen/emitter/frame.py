"""The frame around a strategy: gather and flatten rows before, sum and scatter after."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce, wraps
from math import prod
from operator import add
from typing import Any

import torch

from tpgen.emitter.graph_writer import GraphWriter, Traced
from tpgen.emitter.lowering import FlatOperands, SegmentResult
from tpgen.form.form import Form, SlotNames
from tpgen.planner.plan import ELEMENT


@dataclass(frozen=True)
class FormPlaceholders:
    """Placeholders of a form's graph: operands, row indices, row counts of results."""

    operands: dict[SlotNames, Traced]
    indices: dict[str, Traced] = field(default_factory=dict)
    sizes: dict[str, Traced] = field(default_factory=dict)  # by the index that points into those rows


Body = Callable[[GraphWriter, Form, FlatOperands], list[SegmentResult]]
Strategy = Callable[[GraphWriter, Form, FormPlaceholders], Traced]


def make_strategy(write_terms: Body) -> Strategy:
    """Add gathers, broadcasting and scatter to a function that writes terms of flat rows."""

    @wraps(write_terms)
    def write_form_of_any_batch(writer: GraphWriter, form: Form, placeholders: FormPlaceholders) -> Traced:
        batch, flat, rows = _flatten_batch(form, _gather_indexed_operands(writer, form, placeholders))
        results = write_terms(writer, form, FlatOperands(writer, form, flat, rows)) if form.live_terms else []
        out = _sum_and_concatenate_segments(writer, form, results, next(iter(flat.values())), rows)
        if not form.live_terms:
            # weights that a product has not may be anywhere, on another device too
            held = [x for name, x in flat.items() if all(form.operand(part).dim > 0 for part in name.split("*"))]
            with writer.serving((), "sum"):  # zeros that autograd derives from operands: sums of nothing are added
                out = reduce(add, (x.narrow(-1, 0, 0).sum() for x in held), out)
        if not form.row(form.opened):
            return out
        with writer.serving((), "reshape"):
            out = out.unflatten(0, batch.shape[:-1]).squeeze(0)
        return _scatter_result_by_row_index(writer, form, placeholders, out)

    return write_form_of_any_batch


def _gather_indexed_operands(
    writer: GraphWriter, form: Form, placeholders: FormPlaceholders
) -> dict[SlotNames, Traced]:
    found = dict(placeholders.operands)
    for slot, x in found.items():
        index = form.index(slot)
        if index is not None and (index != ELEMENT or any(form.shape(slot))):  # no weights may have any shape
            found[slot] = gather_rows(writer, x, placeholders.indices[index])
    return found


def _scatter_result_by_row_index(
    writer: GraphWriter, form: Form, placeholders: FormPlaceholders, result: Traced
) -> Traced:
    # sums rows that an index sends to the same place
    index = form.index(form.opened)
    if index is None:
        return result
    return scatter_add_rows(
        writer, result, placeholders.indices[index], (placeholders.sizes[index], *form.shape(form.opened))
    )


def gather_rows(writer: GraphWriter, x: Traced, index: Traced) -> Traced:
    """Select rows of a tensor by index."""
    with writer.serving((), "gather"):
        return x.index_select(0, index)


def scatter_add_rows(writer: GraphWriter, x: Traced, index: Traced, shape: tuple) -> Traced:
    """Scatter-add rows into zeros of a shape."""
    with writer.serving((), "scatter"):
        return x.new_zeros(shape).index_add(0, index, x)


def _flatten_batch(form: Form, operands: dict[SlotNames, Traced]) -> tuple[Traced, dict[str, Traced], Traced]:
    # broadcast and flatten batch dimensions: (tensor of batch shape, flat operands, row count)
    probes = []
    for slot, x in operands.items():
        if form.row(slot):
            for name in slot[:-1]:  # a matrix operand has two trailing axes
                x = _narrow_to_one(x, -2, form.operand(name).dim).squeeze(-2)
            probes.append(_narrow_to_one(x, -1, form.operand(slot[-1]).dim))
    batch = torch.broadcast_tensors(*probes)[0] if len(probes) > 1 else probes[0]
    batch = batch.unsqueeze(0)
    flat = {}
    for slot, x in operands.items():
        name = "*".join(slot)
        if not form.row(slot):
            flat[name] = x
        elif len(slot) == 1:
            # one more leading axis, so that there is a batch axis to flatten even where none is given
            full = torch.broadcast_tensors(x, batch)[0] if len(probes) > 1 else x.unsqueeze(0)
            flat[name] = full.flatten(0, -2)
        else:
            full = torch.broadcast_tensors(x, batch.unsqueeze(-1))[0] if len(probes) > 1 else x.unsqueeze(0)
            flat[name] = full.flatten(0, -3)
    row = next(x for name, x in flat.items() if form.row(tuple(name.split("*"))))
    return batch, flat, row.size(0)


def _narrow_to_one(x: Traced, axis: int, dim: int) -> Traced:
    # also an empty axis
    return torch.narrow(x, axis, 0, 1) if dim > 0 else x.sum(axis, keepdim=True)


def _sum_and_concatenate_segments(
    writer: GraphWriter, form: Form, results: list[SegmentResult], like: Traced, rows: Traced
) -> Traced:
    if results and not results[0].segments:
        return results[0].tensor
    batch = (rows,) if form.row(form.opened) else ()
    by_segment: dict[tuple[int, ...], list[SegmentResult]] = {}
    for result in results:
        by_segment.setdefault(result.segments, []).append(result)

    def concatenate_segments(chosen_segments: tuple[int, ...], remaining_operands: tuple[str, ...]) -> Any:
        if not remaining_operands:
            found = by_segment.get(chosen_segments, ())
            served = tuple(sorted({i for r in found for i in r.instructions}))
            with writer.serving(served, "sum"):
                if not found:
                    return like.new_zeros((*batch, *_list_dims_of_segments(form, chosen_segments)))
                return reduce(add, (r.tensor for r in found))
        segments = range(len(form.operand(remaining_operands[0]).segments))
        if not any(key[: len(chosen_segments)] == chosen_segments for key in by_segment):
            with writer.serving((), "sum"):
                return like.new_zeros(
                    (*batch, *_list_dims_of_segments(form, chosen_segments), *form.shape(remaining_operands))
                )
        pieces = [
            concatenate_segments((*chosen_segments, s), remaining_operands[1:])
            for s in segments
            if prod(_list_dims_of_segments(form, (*chosen_segments, s))) > 0
        ]
        if len(pieces) == 1:
            return pieces[0]
        with writer.serving((), "reshape"):
            return torch.cat(pieces, dim=len(chosen_segments) - len(form.opened))

    return concatenate_segments((), form.opened)


def _list_dims_of_segments(form: Form, segments: Iterable[int]) -> tuple[int, ...]:
    bounds = (form.operand(name).segments[s] for name, s in zip(form.opened, segments, strict=False))
    return tuple(stop - start for start, stop in bounds)
