"""Products, convolutions and linear layers on CUDA devices: edges sorted, the rows launched, and what follows them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from tpgen.kernels.arguments import Edges, KernelCall, KernelSpec
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda import captures
from tpgen.kernels.cuda.chips import Chip
from tpgen.kernels.cuda.kernel import CudaKernel, Loaded, cuda_device_of
from tpgen.kernels.cuda.launch import EdgeRows
from tpgen.kernels.cuda.orders import (
    Order,
    ascends,
    is_inside,
    is_kept,
    known_order,
    known_wide,
    recall_inside,
    recall_order,
    recall_wide,
)
from tpgen.kernels.cuda.placement import AnyPlacement, place_form
from tpgen.kernels.cuda.prelude import COLLECT_ENTRY, ENTRY, JOIN_ENTRY, SUM_ENTRY
from tpgen.kernels.sweep.terms import SLOTS

_SOURCES, _DESTINATIONS = 2, 3  # faults


class KnownEdges(NamedTuple):
    """Edges that are sorted and in range: both ends in int64, and their orders, none of an end that ascends."""

    src: Tensor
    dst: Tensor
    by_src: Tensor | None
    by_dst: Tensor | None
    stream: int | None  # to which that stays known; None: it is of this call alone


class ProductKernel(CudaKernel):
    """A form of paths with open slots."""

    @staticmethod
    def place(spec: KernelSpec, chip: Chip) -> AnyPlacement:
        description = spec.description
        return place_form(description.form, DTYPES[spec.dtype], description.read(spec.call)[0], chip, spec.indexed)

    def fields(self, loaded: Loaded) -> list[int]:
        p = loaded.placement
        sum_threads, sum_shared = p.entries.get(SUM_ENTRY, (0, 0))
        fields = {  # of `struct Launch`
            "context": loaded.context,
            "kernel": loaded.address(ENTRY),
            "sum": loaded.address(SUM_ENTRY),
            "join": loaded.address(JOIN_ENTRY),
            "collect": loaded.address(COLLECT_ENTRY),
            "at_once": loaded.at_once,
            "rows": p.rows,
            "threads": p.threads,
            "shared": p.shared,
            "number": p.number,
            "weights": p.dim["w"] if p.sums_weights else 0,
            "sum_threads": sum_threads,
            "sum_shared": sum_shared,
            "by": SLOTS.index(p.by) if p.by else -1,
            "owned": p.dim[p.owner] if p.owner else 0,
            "collected": sum(p.dim[slot] for slot in p.scattered),
        }
        return [*fields.values()]

    def recall(self, edges: Edges, like: Tensor) -> KnownEdges | None:
        """The edges, where they are sorted and known to be in range, which a recorded graph does not ask."""
        device = cuda_device_of([like])
        loaded, capture = self._loaded.get(device), captures.capture_of(device)
        ends = {"x1": (edges.src, edges.sources), "out": (edges.dst, edges.destinations)}
        if loaded is None or (edges.check and not capture and not all(recall_inside(*end) for end in ends.values())):
            return None
        given = {"x1": edges.by_src, "out": edges.by_dst}
        orders = {slot: given[slot] for slot in loaded.placement.sorted_by}
        for slot in (slot for slot, order in orders.items() if order is None):
            found = recall_order(*ends[slot], capture)
            if found is None and not ascends(ends[slot][0]):
                return None
            orders[slot] = found and found.whole
        src, dst = recall_wide(edges.src, capture), recall_wide(edges.dst, capture)
        if src is None or dst is None:
            return None
        by_src, by_dst = map(orders.get, ends)
        keeps = not capture and is_kept(edges.src) and is_kept(edges.dst)
        return KnownEdges(src, dst, by_src, by_dst, loaded.stream if keeps else None)

    def order(self, loaded: Loaded, call: KernelCall) -> tuple[int, EdgeRows | None]:
        p, edges = loaded.placement, call.edges
        return (0, None) if edges is None else ordered_edges(p.by, edges, loaded.device, bool(p.scattered))


def ordered_edges(owner: str | None, edges: Edges, device: int, scattered: bool = False) -> tuple[int, EdgeRows | None]:
    """The edges by owner, or the fault of one that points nowhere; a CUDA graph that is captured cannot ask."""
    capture = captures.capture_of(device)
    index, owners = (edges.src, edges.sources) if owner == "x1" else (edges.dst, edges.destinations)
    given = {"x1": edges.by_src, "out": edges.by_dst}
    order = _order(index, owners, given[owner], capture).order if owner and not ascends(index) else None
    if edges.check and not capture:
        if not is_inside(edges.src, edges.sources):
            return _SOURCES, None
        if not is_inside(edges.dst, edges.destinations):
            return _DESTINATIONS, None
    src, dst = (known_wide(end, capture) for end in (edges.src, edges.dst))
    collected = _order(edges.src, edges.sources, edges.by_src, capture) if scattered else None
    return 0, EdgeRows(order, src, dst, owners if owner else 0, collected)


def _order(index: Tensor, owners: int, given: Tensor | None, capture: int) -> Order:
    """Take the order that is given, or find it."""
    return known_order(index, owners, capture) if given is None else Order.of(given, owners)
