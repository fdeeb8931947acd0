"""The order of edges by the row that they are added to: sorted once for an index, as long as its tensor lives.

A network that gives all its convolutions the same tensors sorts each once, and asks once whether it is in range.  Most
give a row of one ``edge_index``, and take that row anew in every layer: so what is known is known of a part of the
whole tensor, and of its version.  Tensors of inference mode have no version, so nothing is kept of them.

An order is made on the stream of the call that asks, and is known to that stream alone: another would read it before
it is there.  A CUDA graph sorts for itself, in every replay, since it may find other edges in its tensors then: once
for all its layers, forward and backward.  What is known in a graph is forgotten when it has ended.

Gradients need edges by sender too: where a call is recorded for them, one sort of twice the keys makes both orders.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tpgen.kernels.cuda.captures import borrows_memory
from tpgen.kernels.cuda.driver import stream_of


class Order(NamedTuple):
    """Order of edges by owner: places at which each owner's begin, and the edges, one owner's as they stood."""

    first: Tensor
    order: Tensor
    whole: Tensor  # both, side by side, as operators hand them on

    @staticmethod
    def of(whole: Tensor, owners: int) -> Order:
        """Take the two apart."""
        return Order(whole[: owners + 1], whole[owners + 1 :], whole)


Known = TypeVar("Known")
_PARTS = 8  # of one tensor, at most: whoever walks over a long one in slices keeps the last of them


@dataclass
class _PartFacts(Generic[Known]):
    """Facts of the parts of a tensor, by their places in it and the rows that they point into."""

    version: int
    known: dict[tuple, Known] = field(default_factory=dict)


_Kept = MutableMapping[Tensor, _PartFacts]  # by the whole tensor, as long as it lives


@dataclass
class Memory(Generic[Known]):
    """Facts of index tensors into so many rows, kept as long as they live and nobody writes to them.

    What stands on the device is known to the stream alone that made it, and to the CUDA graph that records it.
    """

    on_device: bool = False
    _kept: dict[int, _Kept] = field(default_factory=dict)  # by the graph that records, 0 outside

    def of(self, index: Tensor, rows: int, find: Callable[[Tensor, int], Known], capture: int = 0) -> Known:
        """Find a fact once; one of the device once for each stream and recorded graph."""
        if index.is_inference() or (self.on_device and _in_graph_pool(index)):  # writes to the former are not counted
            return find(index, rows)
        kept = self._facts_of_capture(capture)
        parts = _valid_parts(kept, index)
        if parts is None:
            parts = kept[_base_tensor(index)] = _PartFacts[Known](index._version)
        part = self._part_key(index, rows)
        found = parts.known.get(part)
        if found is None:
            found = find(index, rows)
            if len(parts.known) >= _PARTS:
                parts.known.pop(next(iter(parts.known)), None)
            parts.known[part] = found
        return found

    def recall(self, index: Tensor, rows: int, capture: int = 0) -> Known | None:
        """A fact that has been found already."""
        parts = None if index.is_inference() else _valid_parts(self._facts_of_capture(capture), index)
        return None if parts is None else parts.known.get(self._part_key(index, rows))

    def _facts_of_capture(self, capture: int) -> _Kept:
        """Facts of one graph; those of others that were recorded are forgotten."""
        for other in list(self._kept):  # all at once: another thread may do the same
            if other not in (0, capture):
                self._kept.pop(other, None)
        return self._kept.setdefault(capture, WeakTensorKeyDictionary())

    def _part_key(self, index: Tensor, rows: int) -> tuple:
        stream = _stream_of_index(index) if self.on_device else 0
        return index.storage_offset(), index.stride(), index.shape, index.dtype, rows, stream


def _valid_parts(kept: _Kept, index: Tensor) -> _PartFacts | None:
    parts = kept.get(_base_tensor(index))
    return parts if parts is not None and parts.version == index._version else None


def _base_tensor(index: Tensor) -> Tensor:
    """The tensor that an index is a part of: they count writes together."""
    return index if index._base is None else index._base


_orders, _wide = Memory[Order](on_device=True), Memory[Tensor](on_device=True)
_ranges, _ascending = Memory[bool](), Memory[bool]()
_NARROW = 2**31


def order_of(index: Tensor, owners: int) -> Order:
    """The edges by their owner; in numbers of four bytes, which are sorted in half the time.

    >>> first, order, whole = order_of(torch.tensor([2, 0, 2]), 3)
    >>> first.tolist(), order.tolist(), whole.tolist()
    ([0, 1, 1, 3], [1, 0, 2], [0, 1, 1, 3, 1, 0, 2])
    """
    keys = index.to(torch.int32 if owners < _NARROW else torch.int64)
    found, order = torch.sort(keys, stable=True)
    first = torch.searchsorted(found, torch.arange(owners + 1, device=index.device, dtype=keys.dtype))
    return Order.of(torch.cat([first, order]), owners)


def orders_of(src: Tensor, dst: Tensor, sources: int, nodes: int) -> Tensor:
    """The edges by receiver and then by sender, in one sort: keys of senders stand behind all those of receivers.

    An index that points nowhere is moved beside the owners of its end, so that both have the edges to themselves.

    >>> by_dst, by_src = both_of(orders_of(torch.tensor([2, 0, 2]), torch.tensor([1, 1, 0]), 3, 2), 3, 2)
    >>> by_dst.whole.tolist(), by_src.whole.tolist()
    ([0, 1, 3, 2, 0, 1], [0, 1, 1, 3, 1, 0, 2])
    """
    edges, bounds = len(dst), nodes + sources + 3
    kind = torch.int32 if bounds < _NARROW else torch.int64
    keys = torch.cat([dst.clamp(-1, nodes).to(kind), src.clamp(-1, sources).to(kind) + (nodes + 2)])
    found, order = torch.sort(keys, stable=True)
    first = torch.searchsorted(found, torch.arange(bounds, device=dst.device, dtype=kind))
    return torch.cat([first[: nodes + 1], order[:edges], first[nodes + 2 :] - edges, order[edges:] - edges])


def both_of(whole: Tensor, sources: int, nodes: int) -> tuple[Order, Order]:
    """Take the orders by receiver and by sender apart."""
    size = nodes + 1 + (len(whole) - nodes - sources - 2) // 2
    return Order.of(whole[:size], nodes), Order.of(whole[size:], sources)


def in_range(index: Tensor, rows: int) -> bool:
    """Whether all of an index is in range; waits for the device."""
    return bool(((index >= 0) & (index < rows)).all())


def known_order(index: Tensor, owners: int, capture: int = 0) -> Order:
    """Order of an index tensor, sorted anew only where the tensor is another, or was written to.

    ``capture`` is the CUDA graph that records the call (`captures.capture_of`).
    """
    return _orders.of(index, owners, order_of, capture)


def know_both(src: Tensor, dst: Tensor, sources: int, nodes: int, capture: int = 0, check: bool = False) -> None:
    """Sort edges by both ends at once, where neither order is known or needless, and both may be kept.

    Where edges are to be checked, their order says whether they are in range; the device is waited for once.
    """
    ends = (dst, nodes), (src, sources)
    if any(ascends(x) or not is_kept(x) or recall_order(x, owners, capture) for x, owners in ends):
        return
    made = both_of(orders_of(src, dst, sources, nodes), sources, nodes)
    for (x, owners), order in zip(ends, made, strict=True):
        _orders.of(x, owners, lambda *_, order=order: order, capture)
    if check and not capture:
        bounds = torch.stack([order.first[end] for order in made for end in (0, -1)]).tolist()
        for (x, owners), found in zip(ends, (bounds[:2], bounds[2:]), strict=True):
            _ranges.of(x, owners, lambda *_, found=found: found == [0, len(dst)])


def note_ascending(index: Tensor) -> None:
    """Remember that an index ascends as it stands, so that nobody sorts by it."""
    _ascending.of(index, 0, lambda *_: True)


def ascends(index: Tensor) -> bool:
    """Whether an index is known to ascend; of what somebody has written to since, nothing is known.

    >>> index = torch.tensor([0, 0, 2])
    >>> note_ascending(index)
    >>> ascends(index), ascends(index.mul_(1))
    (True, False)
    """
    return _ascending.recall(index, 0) is True


def known_wide(index: Tensor, capture: int = 0) -> Tensor:
    """An index in int64, as kernels read it: of int32 a copy, made once for each tensor as its order is.

    >>> index = torch.tensor([2, 0], dtype=torch.int32)
    >>> known_wide(index).dtype, known_wide(index) is known_wide(index)
    (torch.int64, True)
    """
    if index.dtype == torch.int64:  # kept by what is known of it, it would live for ever
        return index
    return _wide.of(index, 0, lambda index, _: index.long(), capture)


def recall_order(index: Tensor, owners: int, capture: int = 0) -> Order | None:
    """The order that is known of an index tensor."""
    return _orders.recall(index, owners, capture)


def recall_wide(index: Tensor, capture: int = 0) -> Tensor | None:
    """An index in int64, where it is at hand."""
    return index if index.dtype == torch.int64 else _wide.recall(index, 0, capture)


def recall_inside(index: Tensor, rows: int) -> bool:
    """Whether all of an index is known to be in range."""
    return _ranges.recall(index, rows) is True


def _stream_of_index(index: Tensor) -> int:
    return stream_of(index.get_device()) if index.is_cuda else 0


def is_kept(index: Tensor) -> bool:
    """Whether what is found of an index on the device may be kept: writes are counted, and its memory is its own."""
    return not (index.is_inference() or _in_graph_pool(index))


def _in_graph_pool(index: Tensor) -> bool:
    return index.is_cuda and borrows_memory(index.get_device())


def is_inside(index: Tensor, rows: int) -> bool:
    """Whether all of an index is in range; waits for the device, once for each tensor."""
    return _ranges.of(index, rows, in_range)
