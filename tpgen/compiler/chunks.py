"""Forms computed some rows at a time, so that what a program keeps on the way stays below a limit.

Rows meet nowhere but in sums: of gradients of what all rows share, and of rows that an index sends to the same place.
So a form at some of its rows, added or put one after the other, is the form at all of them.  The programs of its
derivatives are run in the same way, from the operands alone: nothing is kept between forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.compiler.closed_form import ClosedForm, Rows, Slots
from tpgen.compiler.footprint import Footprint, without_values
from tpgen.errors import InputError
from tpgen.remember import Shelf

Point = Sequence[Tensor | None]
_numbers = count()
# by the number of a form, what it opens, and all sizes but that which is cut
_measured: Shelf[tuple, Taken] = Shelf("bytes of rows computed some at a time")
_FEW, _MORE = 16, 32  # rows that a program is measured with: what it takes is a constant and so much a row


class Batch(NamedTuple):
    """The batch dimensions of a call, and the longest of them, which is cut."""

    shape: tuple[int, ...]
    axis: int

    @property
    def rows(self) -> int:
        return self.shape[self.axis]


class Taken(NamedTuple):
    """Bytes that a program takes: whatever the rows, and for each of them."""

    fixed: int
    each: int

    def rows(self, limit: int) -> int:
        """Number of rows that stay below a limit in bytes."""
        return (limit - self.fixed) // max(self.each, 1)


class ChunkedForm(ClosedForm):
    """A closed form whose programs take at most ``max_bytes`` beside operands and results."""

    def __init__(self, *given: Any, max_bytes: int) -> None:
        super().__init__(*given)
        self._max_bytes = max_bytes
        self._number = next(_numbers)

    def run(self, opened: Slots, read: Slots, rows: Rows, point: Point) -> tuple[Tensor, ...]:
        batch = self._batch(opened, rows, point)
        if batch is None:
            return super().run(opened, read, rows, point)
        size = self._size(opened, read, rows, point, batch)
        if size >= batch.rows:
            return super().run(opened, read, rows, point)
        results: list[Tensor] = []
        for start in range(0, batch.rows, size):
            part = slice(start, min(start + size, batch.rows))
            few = self._rows_of(rows, part), self._part(point, batch, part)
            # no name for what it returns, which would hold it while the next rows are computed
            self._gather(results, opened, super().run(opened, read, *few), batch, part)
        return tuple(x.to(self._like.dtype) for x in results)

    # --- rows ---------------------------------------------------------------------------------------------------

    def _cut(self, slot: int) -> bool:
        """Whether a slot has rows of its own."""
        name = self._form.slots[slot]
        return self._form.row(name) and self._form.index(name) is None

    def _depth(self, slot: int) -> int:
        """Number of dimensions of a slot's tensor behind those of the batch."""
        return len(self._form.shape(self._form.slots[slot]))

    def _batch(self, opened: Slots, rows: Rows, point: Point) -> Batch | None:
        """None where there is nothing to cut."""
        read = [n for n in range(len(point)) if opened != (n,) and self._cut(n)]
        shapes = [x.shape[: x.dim() - self._depth(n)] for n in read if (x := point[n]) is not None]
        shape = torch.broadcast_shapes(*shapes, *(index.shape for index in rows.indices))
        if not shape or max(shape) < 2:
            return None
        return Batch(tuple(shape), max(range(len(shape)), key=lambda axis: shape[axis]))

    def _part(self, point: Point, batch: Batch, part: slice) -> list[Tensor | None]:
        return [x if x is None or not self._cut(n) else self._rows(n, x, batch, part) for n, x in enumerate(point)]

    def _rows(self, slot: int, x: Tensor, batch: Batch, part: slice) -> Tensor:
        axis = batch.axis - len(batch.shape) + x.dim() - self._depth(slot)
        if axis < 0 or x.shape[axis] == 1:  # broadcast along this dimension
            return x
        return x.narrow(axis, part.start, part.stop - part.start)

    def _rows_of(self, rows: Rows, part: slice) -> Rows:
        return replace(rows, indices=[index[part] for index in rows.indices])

    def _gather(self, results: list[Tensor], opened: Slots, made: Sequence[Tensor], batch: Batch, part: slice) -> None:
        """Put the results of some rows into those of all, or add them."""
        if not results:
            results += [self._room(n, x, batch) for n, x in zip(opened, made, strict=True)]
        for n, total, x in zip(opened, results, made, strict=True):
            if self._cut(n):
                total.narrow(batch.axis, part.start, part.stop - part.start).copy_(x)
            else:
                total.add_(x)

    def _room(self, slot: int, like: Tensor, batch: Batch) -> Tensor:
        if not self._cut(slot):  # many parts of few digits lose what is small beside their sum
            return torch.zeros_like(like, dtype=torch.promote_types(like.dtype, torch.float32))
        return like.new_empty((*batch.shape, *like.shape[len(batch.shape) :]))

    # --- how many -----------------------------------------------------------------------------------------------

    def _size(self, opened: Slots, read: Slots, rows: Rows, point: Point, batch: Batch) -> int:
        """Rows that are computed at once."""
        key = self._number, opened, read, (*self._shapes(point, batch, _FEW),), (*rows.sizes.items(),)
        taken = _measured.get(key)
        if taken is None:
            taken = _measured[key] = self._measure(opened, read, rows, point, batch)
        size = taken.rows(self._max_bytes)
        if size < 1:
            raise InputError(
                f"max_bytes: {self._max_bytes} is too little for a single row, which takes {taken.fixed + taken.each} "
                f"bytes beside operands and results (batch {batch.shape}): give as many at least, or use "
                "strategy='kernel', which keeps nothing on the way"
            )
        return size

    def _measure(self, opened: Slots, read: Slots, rows: Rows, point: Point, batch: Batch) -> Taken:
        few, more = (self._taken(opened, read, rows, point, batch, n) for n in (_FEW, _MORE))
        each = -((few - more) // (_MORE - _FEW))
        return Taken(max(few - each * _FEW, 0), each)

    def _taken(self, opened: Slots, read: Slots, rows: Rows, point: Point, batch: Batch, number: int) -> int:
        """Bytes that the program takes for so many rows, its results among them."""

        def run(taken: Footprint) -> int:
            shapes = self._shapes(point, batch, number)
            given = [None if s is None else _empty(s, x) for s, x in zip(shapes, point, strict=True)]
            indices = [_empty((number,), index) for index in rows.indices]
            before = taken.now
            self._called(self._plain, opened, read, replace(rows, indices=indices), given)
            return taken.peak - before

        return without_values(run)

    def _shapes(self, point: Point, batch: Batch, number: int) -> Iterator[tuple[int, ...] | None]:
        """Yield the shape of each operand cut to a number of rows; None for one that is not there."""
        for n, x in enumerate(point):
            if x is None:
                yield None
                continue
            axis = batch.axis - len(batch.shape) + x.dim() - self._depth(n)
            shape = list(x.shape)
            if self._cut(n) and axis >= 0 and shape[axis] != 1:
                shape[axis] = number
            yield tuple(shape)


def _empty(shape: Sequence[int], like: Tensor | None) -> Tensor:
    assert like is not None
    return torch.empty(shape, dtype=like.dtype, device=like.device)
