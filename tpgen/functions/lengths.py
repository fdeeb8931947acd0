"""Rows of edges that are functions of the lengths of edges alone, and what functions these are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tpgen.nn.plain_tensors import writes_to

_noted: Any = WeakTensorKeyDictionary()  # beside the tensors: an attribute would go into their pickles


@dataclass(frozen=True, eq=False)
class Lengths:
    """Lengths of edges, and rows as a function of them.

    Parameters
    ----------
    column
        the lengths, ``(edges, 1)``, as autograd knows them.
    rows
        computes rows ``(n, functions)`` of lengths ``(n, 1)``, in any dtype and for any derivative.
    start, end
        the interval of lengths that rows are for.
    ends
        whether rows are zero from ``end`` on; else their functions go on there.
    constants
        tensors that rows are computed with besides.
    shape
        all else that says what the functions are; it can be compared.
    """

    column: Tensor
    rows: Callable[[Tensor], Tensor]
    start: float
    end: float
    ends: bool
    constants: tuple[Tensor, ...]
    shape: tuple[Any, ...]

    def times(self, factor: float) -> Lengths:
        """Return lengths whose rows are multiplied by a number."""
        rows = self.rows
        return replace(self, rows=lambda r: rows(r) * factor, shape=(*self.shape, factor))


def note_lengths(rows: Tensor, lengths: Lengths) -> None:
    """Remember of what lengths rows are, as long as they live and nobody writes to them."""
    if lengths.column.dtype != rows.dtype:
        lengths = replace(lengths, column=lengths.column.to(rows.dtype))
    _noted[rows] = lengths, writes_to(rows)


def lengths_of(rows: Tensor) -> Lengths | None:
    """The lengths that rows were computed from, where that is known."""
    lengths, version = _noted.get(rows, (None, 0))
    return lengths if version == writes_to(rows) else None
