"""Edge lengths that determine edge rows, by rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tpgen.nn.plain_tensors import count_writes

_noted: Any = WeakTensorKeyDictionary()  # beside the tensors: an attribute would go into their pickles


@dataclass(frozen=True, eq=False)
class RowsByLength:
    """Edge features (rows) as a function of edge lengths.

    Parameters
    ----------
    column
        lengths ``(edges, 1)`` with their graph.
    rows
        maps ``(n, 1)`` to ``(n, functions)``, differentiable to any order.
    start, end
        valid interval of lengths.
    ends
        whether rows vanish from ``end`` on.
    constants
        tensors that ``rows`` reads.
    shape
        comparable identity of ``rows``.
    """

    column: Tensor
    rows: Callable[[Tensor], Tensor]
    start: float
    end: float
    ends: bool
    constants: tuple[Tensor, ...]
    shape: tuple[Any, ...]

    def scale_rows(self, factor: float) -> RowsByLength:
        """A copy with rows multiplied by a factor."""
        rows = self.rows
        return replace(self, rows=lambda r: rows(r) * factor, shape=(*self.shape, factor))


def register_lengths(rows: Tensor, lengths: RowsByLength) -> None:
    """Register the lengths that determine a tensor ``rows``, until a write to ``rows``."""
    if lengths.column.dtype != rows.dtype:
        lengths = replace(lengths, column=lengths.column.to(rows.dtype))
    _noted[rows] = lengths, count_writes(rows)


def find_registered_lengths(rows: Tensor) -> RowsByLength | None:
    """Registered lengths of rows, or None."""
    lengths, version = _noted.get(rows, (None, 0))
    return lengths if version == count_writes(rows) else None
