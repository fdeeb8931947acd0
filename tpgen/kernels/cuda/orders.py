"""The order of edges by the row that they are added to: sorted once for an index, as long as its tensor lives.

A network that gives all its convolutions the same tensors sorts each once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


class Order(NamedTuple):
    """Where the edges of each owner begin in their order, and that order, which keeps those of one as they stood."""

    first: Tensor
    order: Tensor
    inside: Tensor  # whether every index is in range, on the device


@dataclass
class _Known:
    version: int
    owners: int
    order: Order
    checked: bool = False


_known = WeakTensorKeyDictionary()


def order_of(index: Tensor, owners: int) -> Order:
    """The edges by their owner.

    >>> first, order, _ = order_of(torch.tensor([2, 0, 2]), 3)
    >>> first.tolist(), order.tolist()
    ([0, 1, 1, 3], [1, 0, 2])
    """
    found, order = torch.sort(index, stable=True)
    first = torch.searchsorted(found, torch.arange(owners + 1, device=index.device))
    return Order(first, order, in_range(found[:1], owners) & in_range(found[-1:], owners))


def in_range(index: Tensor, rows: int) -> Tensor:
    return ((index >= 0) & (index < rows)).all()


def known_order(index: Tensor, owners: int, keep: bool) -> Order:
    """The same, sorted anew only where the tensor is another, or was written to; nothing new is kept unless told to."""
    known = _find(index, owners)
    if known is not None:
        return known.order
    made = order_of(index, owners)
    if keep and not index.is_inference():  # writes to such a tensor are not counted
        _known[index] = _Known(index._version, owners, made)
    return made


def _find(index: Tensor, owners: int) -> _Known | None:
    known: _Known | None = None if index.is_inference() else _known.get(index)
    return known if known and (known.version, known.owners) == (index._version, owners) else None


def is_inside(index: Tensor, rows: int) -> bool:
    """Whether all of an index is in range; waits for the device, once for each tensor that is known."""
    known = _find(index, rows)
    if known is None:
        return bool(in_range(index, rows))
    if not known.checked:
        known.checked = bool(known.order.inside)
    return known.checked
