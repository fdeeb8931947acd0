"""The frame around a strategy: batch dimensions broadcast and flattened, operands split into segments, and the results
summed, concatenated and given their batch dimensions back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce, wraps
from math import prod
from operator import add
from typing import Any

import torch

from tpgen.emitter.graph_writer import GraphWriter, Traced
from tpgen.emitter.lowering import Inputs, Result
from tpgen.form.form import Form, group_dim

Given = dict[tuple[str, ...], Traced]  # placeholders by group
Body = Callable[[GraphWriter, Form, Inputs], list[Result]]
Strategy = Callable[[GraphWriter, Form, Given], Traced]


def framed(body: Body) -> Strategy:
    """A strategy from a function that writes the terms of a form for flat rows."""

    @wraps(body)
    def write(writer: GraphWriter, form: Form, given: Given) -> Traced:
        batch, flat, rows = _broadcast(writer, form, given)
        results = body(writer, form, Inputs(writer, form, flat, rows)) if form.live_terms else []
        out = _assembled(writer, form, results, next(iter(flat.values())), rows)
        if not form.row(form.opened):
            return out
        with writer.serving((), "reshape"):
            return out.unflatten(0, batch.shape[:-1]).squeeze(0)

    return write


def _broadcast(writer: GraphWriter, form: Form, given: Given) -> tuple[Traced, dict[str, Traced], Traced]:
    """Broadcast the batch dimensions of all row operands against each other and flatten them into one.

    Returns a tensor that has the batch dimensions (one leading axis more, one trailing axis of length one), the flat
    operands, and the number of rows.
    """
    probes = []
    for group, x in given.items():
        if form.row(group):
            for name in group[:-1]:  # a matrix operand has two trailing axes
                x = _first_entry(x, -2, form.operand(name).dim).squeeze(-2)
            probes.append(_first_entry(x, -1, form.operand(group[-1]).dim))
    batch = torch.broadcast_tensors(*probes)[0] if len(probes) > 1 else probes[0]
    batch = batch.unsqueeze(0)
    flat = {}
    for group, x in given.items():
        name = "*".join(group)
        if not form.row(group):
            flat[name] = x
        elif len(group) == 1:
            # one more leading axis, so that there is a batch axis to flatten even where none is given
            flat[name] = (
                torch.broadcast_tensors(x, batch)[0].flatten(0, -2)
                if len(probes) > 1
                else x.unsqueeze(0).flatten(0, -2)
            )
        else:
            full = torch.broadcast_tensors(x, batch.unsqueeze(-1))[0] if len(probes) > 1 else x.unsqueeze(0)
            flat[name] = full.flatten(0, -3)
    row = next(x for name, x in flat.items() if form.row(tuple(name.split("*"))))
    return batch, flat, row.size(0)


def _first_entry(x: Traced, axis: int, dim: int) -> Traced:
    """The tensor cut to length one along an axis, also where that axis is empty."""
    return torch.narrow(x, axis, 0, 1) if dim > 0 else x.sum(axis, keepdim=True)


def _assembled(writer: GraphWriter, form: Form, results: list[Result], like: Traced, rows: Traced) -> Traced:
    """Sum the results of each segment, put zeros where there are none, concatenate."""
    if results and not results[0].segments:
        return results[0].tensor
    batch = (rows,) if form.row(form.opened) else ()
    by_segment: dict[tuple[int, ...], list[Result]] = {}
    for result in results:
        by_segment.setdefault(result.segments, []).append(result)

    def assemble(chosen: tuple[int, ...], remaining: tuple[str, ...]) -> Any:
        if not remaining:
            return _segment_sum(
                writer, by_segment.get(chosen, ()), lambda: _zeros(like, (*batch, *_dims(form, chosen)))
            )
        segments = range(len(form.operand(remaining[0]).segments))
        if not any(key[: len(chosen)] == chosen for key in by_segment):
            with writer.serving((), "sum"):
                return _zeros(like, (*batch, *_dims(form, chosen), *group_dim(form, remaining)))
        pieces = [assemble((*chosen, s), remaining[1:]) for s in segments if prod(_dims(form, (*chosen, s))) > 0]
        if len(pieces) == 1:
            return pieces[0]
        with writer.serving((), "reshape"):
            return torch.cat(pieces, dim=len(chosen) - len(form.opened))

    return assemble((), form.opened)


def _dims(form: Form, segments: Iterable[int]) -> tuple[int, ...]:
    bounds = (form.operand(name).segments[s] for name, s in zip(form.opened, segments, strict=False))
    return tuple(stop - start for start, stop in bounds)


def _zeros(like: Traced, shape: tuple) -> Traced:
    return like.new_zeros(shape)


def _segment_sum(writer: GraphWriter, results: Iterable[Result], zeros: Callable[[], Traced]) -> Traced:
    found = tuple(results)
    if not found:
        with writer.serving((), "sum"):
            return zeros()
    with writer.serving(tuple(sorted({i for r in found for i in r.instructions})), "sum"):
        return reduce(add, (r.tensor for r in found))
