"""Edges sorted by owner (the row that an edge adds to), once per index tensor."""

# Facts belong to a part of a base tensor (a row of ``edge_index``) and its version; inference tensors have none.  An
# order holds on its stream; a CUDA graph sorts once per replay.

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tpgen.kernels.cuda.driver import is_cudagraph_tree_active, stream_of


class SortedRows(NamedTuple):
    """Rows (edges) sorted stably by owner, and each owner's first position."""

    first: Tensor
    order: Tensor
    packed: Tensor  # both, side by side, as operators hand them on

    @staticmethod
    def split(packed: Tensor, owners: int) -> SortedRows:
        """Split first positions from sorted edges."""
        return SortedRows(packed[: owners + 1], packed[owners + 1 :], packed)


Known = TypeVar("Known")
_PARTS = 8  # of one tensor, at most: whoever walks over a long one in slices keeps the last of them


@dataclass
class _FactsOfIndexTensor(Generic[Known]):
    version: int
    known: dict[tuple, Known] = field(default_factory=dict)


_FactsByTensor = MutableMapping[Tensor, _FactsOfIndexTensor]  # by the whole tensor, as long as it lives


@dataclass
class IndexFactCache(Generic[Known]):
    """Cache of facts about index tensors, such as sorted edges, until a tensor dies or changes.

    Facts ``on_device`` hold for one stream and CUDA graph.
    """

    on_device: bool = False
    _facts_by_capture: dict[int, _FactsByTensor] = field(default_factory=dict)  # by the graph that records, 0 outside

    def get_or_compute(
        self, index: Tensor, rows: int, compute: Callable[[Tensor, int], Known], capture: int = 0
    ) -> Known:
        """Fact about an index into ``rows`` rows, computed once by ``compute``."""
        # writes to inference tensors are not counted
        if index.is_inference() or (self.on_device and _is_in_graph_pool(index)):
            return compute(index, rows)
        kept = self._get_facts_of_graph_capture(capture)
        parts = _facts_of_unchanged_tensor(kept, index)
        if parts is None:
            parts = kept[_base_tensor(index)] = _FactsOfIndexTensor[Known](index._version)
        part = self._key_of_tensor_part(index, rows)
        found = parts.known.get(part)
        if found is None:
            found = compute(index, rows)
            if len(parts.known) >= _PARTS:
                parts.known.pop(next(iter(parts.known)), None)
            parts.known[part] = found
        return found

    def get_if_cached(self, index: Tensor, rows: int, capture: int = 0) -> Known | None:
        """The cached fact about an index, or None."""
        parts = (
            None
            if index.is_inference()
            else _facts_of_unchanged_tensor(self._get_facts_of_graph_capture(capture), index)
        )
        return None if parts is None else parts.known.get(self._key_of_tensor_part(index, rows))

    def _get_facts_of_graph_capture(self, capture: int) -> _FactsByTensor:
        # facts of graphs captured before are dropped
        for other in list(self._facts_by_capture):  # all at once: another thread may do the same
            if other not in (0, capture):
                self._facts_by_capture.pop(other, None)
        return self._facts_by_capture.setdefault(capture, WeakTensorKeyDictionary())

    def _key_of_tensor_part(self, index: Tensor, rows: int) -> tuple:
        stream = _stream_of_index(index) if self.on_device else 0
        return index.storage_offset(), index.stride(), index.shape, index.dtype, rows, stream


def _facts_of_unchanged_tensor(kept: _FactsByTensor, index: Tensor) -> _FactsOfIndexTensor | None:
    parts = kept.get(_base_tensor(index))
    return parts if parts is not None and parts.version == index._version else None


def _base_tensor(index: Tensor) -> Tensor:
    # views share the version counter of their base
    return index if index._base is None else index._base


_orders, _wide = IndexFactCache[SortedRows](on_device=True), IndexFactCache[Tensor](on_device=True)
_ranges, _ascending = IndexFactCache[bool](), IndexFactCache[bool]()
_NARROW = 2**31


def sort_by_owner(index: Tensor, owners: int) -> SortedRows:
    """Sort edges stably by owner; ``index`` is the owner of each.

    >>> first, order, packed = sort_by_owner(torch.tensor([2, 0, 2]), 3)
    >>> first.tolist(), order.tolist(), packed.tolist()
    ([0, 1, 1, 3], [1, 0, 2], [0, 1, 1, 3, 1, 0, 2])
    """
    keys = index.to(torch.int32 if owners < _NARROW else torch.int64)
    found, order = torch.sort(keys, stable=True)
    first = torch.searchsorted(found, torch.arange(owners + 1, device=index.device, dtype=keys.dtype))
    return SortedRows.split(torch.cat([first, order]), owners)


def sort_by_both_ends(src: Tensor, dst: Tensor, sources: int, nodes: int) -> Tensor:
    """Sort edges by receiver and by sender into one tensor for `split_orders`; an index out of range has no owner.

    >>> by_dst, by_src = split_orders(sort_by_both_ends(torch.tensor([2, 0, 2]), torch.tensor([1, 1, 0]), 3, 2), 3, 2)
    >>> by_dst.packed.tolist(), by_src.packed.tolist()
    ([0, 1, 3, 2, 0, 1], [0, 1, 1, 3, 1, 0, 2])
    """
    edges, bounds = len(dst), nodes + sources + 3
    kind = torch.int32 if bounds < _NARROW else torch.int64
    keys = torch.cat([dst.clamp(-1, nodes).to(kind), src.clamp(-1, sources).to(kind) + (nodes + 2)])
    found, order = torch.sort(keys, stable=True)
    first = torch.searchsorted(found, torch.arange(bounds, device=dst.device, dtype=kind))
    return torch.cat([first[: nodes + 1], order[:edges], first[nodes + 2 :] - edges, order[edges:] - edges])


def split_orders(packed: Tensor, sources: int, nodes: int) -> tuple[SortedRows, SortedRows]:
    """Split a result of `sort_by_both_ends`: orders by receiver and by sender."""
    size = nodes + 1 + (len(packed) - nodes - sources - 2) // 2
    return SortedRows.split(packed[:size], nodes), SortedRows.split(packed[size:], sources)


def compute_in_range(index: Tensor, rows: int) -> bool:
    """Whether all indices are in ``[0, rows)``; waits for the device."""
    return bool(((index >= 0) & (index < rows)).all())


def sort_unless_known(index: Tensor, owners: int, capture: int = 0) -> SortedRows:
    """Order of an index tensor, sorted only if new or changed."""
    return _orders.get_or_compute(index, owners, sort_by_owner, capture)


def remember_both_orders(
    src: Tensor, dst: Tensor, sources: int, nodes: int, capture: int = 0, check: bool = False
) -> None:
    """Remember orders by receiver and by sender from one sort, if new and needed.

    ``check`` also remembers whether indices are in range, and waits for the device.
    """
    ends = (dst, nodes), (src, sources)
    if any(is_remembered_as_ascending(x) or not is_kept(x) or recall_order(x, owners, capture) for x, owners in ends):
        return
    made = split_orders(sort_by_both_ends(src, dst, sources, nodes), sources, nodes)
    for (x, owners), order in zip(ends, made, strict=True):
        _orders.get_or_compute(x, owners, lambda *_, order=order: order, capture)
    if check and not capture:
        bounds = torch.stack([order.first[end] for order in made for end in (0, -1)]).tolist()
        for (x, owners), found in zip(ends, (bounds[:2], bounds[2:]), strict=True):
            _ranges.get_or_compute(x, owners, lambda *_, found=found: found == [0, len(dst)])


def remember_as_ascending(index: Tensor) -> None:
    _ascending.get_or_compute(index, 0, lambda *_: True)


def is_remembered_as_ascending(index: Tensor) -> bool:
    """Whether `remember_as_ascending` got this index, unchanged since.

    >>> index = torch.tensor([0, 0, 2])
    >>> remember_as_ascending(index)
    >>> is_remembered_as_ascending(index), is_remembered_as_ascending(index.mul_(1))
    (True, False)
    """
    return _ascending.get_if_cached(index, 0) is True


def widen_index(index: Tensor, capture: int = 0) -> Tensor:
    """Index as int64; the copy of an int32 index is cached.

    >>> index = torch.tensor([2, 0], dtype=torch.int32)
    >>> widen_index(index).dtype, widen_index(index) is widen_index(index)
    (torch.int64, True)
    """
    if index.dtype == torch.int64:  # kept by what is known of it, it would live for ever
        return index
    return _wide.get_or_compute(index, 0, lambda index, _: index.long(), capture)


def recall_order(index: Tensor, owners: int, capture: int = 0) -> SortedRows | None:
    """Remembered order of an index, or None."""
    return _orders.get_if_cached(index, owners, capture)


def recall_widened_index(index: Tensor, capture: int = 0) -> Tensor | None:
    """Index as int64, or None without a remembered copy."""
    return index if index.dtype == torch.int64 else _wide.get_if_cached(index, 0, capture)


def recall_in_range(index: Tensor, rows: int) -> bool:
    """Whether an index is remembered to be in range."""
    return _ranges.get_if_cached(index, rows) is True


def _stream_of_index(index: Tensor) -> int:
    return stream_of(index.get_device()) if index.is_cuda else 0


def is_kept(index: Tensor) -> bool:
    """Whether device facts about an index may be remembered."""
    return not (index.is_inference() or _is_in_graph_pool(index))


def _is_in_graph_pool(index: Tensor) -> bool:
    return index.is_cuda and is_cudagraph_tree_active(index.get_device())


def is_in_range(index: Tensor, rows: int) -> bool:
    """Whether an index is in range; the first check waits for the device."""
    return _ranges.get_or_compute(index, rows, compute_in_range)
