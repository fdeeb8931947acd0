"""CUDA kernels of products."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tpgen.kernels.arguments import KernelCall, KernelSpec
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda import driver
from tpgen.kernels.cuda.chips import Chip
from tpgen.kernels.cuda.kernel import CudaKernel, LoadedKernels, PreparedIndices, cuda_device_of
from tpgen.kernels.cuda.launch import EdgeIndices
from tpgen.kernels.cuda.orders import (
    SortedRows,
    is_in_range,
    is_kept,
    is_remembered_as_ascending,
    recall_in_range,
    recall_order,
    recall_widened_index,
    sort_unless_known,
    widen_index,
)
from tpgen.kernels.cuda.placement import AnyPlacement, place_form
from tpgen.kernels.cuda.prelude import COLLECT_ENTRY, ENTRY, JOIN_ENTRY, SUM_ENTRY
from tpgen.kernels.rows import BEYOND, RowIndex, find_index
from tpgen.kernels.sweep.terms import SLOTS


class ProductKernel(CudaKernel):
    """CUDA kernels of a product, convolution or linear layer."""

    @staticmethod
    def place_on_chip(spec: KernelSpec, chip: Chip) -> AnyPlacement:
        """Choose rows and warps of a call's kernel."""
        description = spec.description
        return place_form(
            description.form,
            DTYPES[spec.dtype],
            description.computed_and_cotangent_operands(spec.call)[0],
            chip,
            bool(spec.rules),
        )

    def launch_fields(self, loaded: LoadedKernels) -> list[int]:
        """Fields of the C++ ``struct Launch``."""
        p = loaded.placement
        sum_threads, sum_shared = p.block_sizes_by_kernel.get(SUM_ENTRY, (0, 0))
        fields = {  # of `struct Launch`
            "context": loaded.context,
            "kernel": loaded.address(ENTRY),
            "sum": loaded.address(SUM_ENTRY),
            "join": loaded.address(JOIN_ENTRY),
            "collect": loaded.address(COLLECT_ENTRY),
            "at_once": loaded.concurrent_blocks,
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

    def get_cached_indices(self, indices: Sequence[RowIndex], like: Tensor) -> PreparedIndices | None:
        """Cached indices and sort orders of a call; None for new indices."""
        device = cuda_device_of([like])
        loaded, capture = self._loaded.get(device), driver.captured_graph_number(device)
        if loaded is None:
            return None
        wide, orders = list[Tensor](), list[Tensor | None]()
        for index in indices:
            x, order = index.tensor, index.order
            if x is None or (index.check and not capture and not recall_in_range(x, index.size)):
                return None
            sorts = index.rule.operand in loaded.placement.sorted_by
            if sorts and order is None:
                found = recall_order(x, index.size, capture)
                if found is None and not is_remembered_as_ascending(x):
                    return None
                order = found and found.packed
            known = recall_widened_index(x, capture)
            if known is None:
                return None
            wide.append(known)
            orders.append(order if sorts else None)
        keeps = not capture and all(is_kept(index.tensor) for index in indices if index.tensor is not None)
        return PreparedIndices(wide, orders, loaded.stream if keeps else None)

    def sort_rows(self, loaded: LoadedKernels, call: KernelCall) -> tuple[int, EdgeIndices | None]:
        """Sort edges by owner; return a fault code (0: none) and the order."""
        p = loaded.placement
        return check_and_sort_edges(p.by, call.indices, loaded.device, bool(p.scattered)) if call.indices else (0, None)


def check_and_sort_edges(
    owner: str | None, indices: Sequence[RowIndex], device: int, also_by_source: bool = False
) -> tuple[int, EdgeIndices | None]:
    """Return (0, edges by nodes of operand ``owner``), or (fault code, None) for an index out of range.

    A CUDA graph capture skips the check.
    """
    capture = driver.captured_graph_number(device)
    own = find_index(indices, owner) if owner else None
    order = (
        _given_or_cached_order(own, capture).order
        if own and not is_remembered_as_ascending(_require_index_tensor(own))
        else None
    )
    for place, index in enumerate(indices):
        if index.check and not capture and not is_in_range(_require_index_tensor(index), index.size):
            return BEYOND + place, None
    src, dst = (widen_index(_require_index_tensor(index), capture) for index in indices)
    collected = _given_or_cached_order(indices[0], capture) if also_by_source else None
    return 0, EdgeIndices(order, src, dst, own.size if own else 0, collected)


def _require_index_tensor(index: RowIndex) -> Tensor:
    assert index.tensor is not None
    return index.tensor


def _given_or_cached_order(index: RowIndex, capture: int) -> SortedRows:
    if index.order is not None:
        return SortedRows.split(index.order, index.size)
    return sort_unless_known(_require_index_tensor(index), index.size, capture)
