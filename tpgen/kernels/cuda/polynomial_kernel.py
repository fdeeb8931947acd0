"""CUDA kernels of polynomials."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tpgen.kernels.arguments import KernelCall, KernelSpec
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda import driver
from tpgen.kernels.cuda.chips import LANES, Chip
from tpgen.kernels.cuda.kernel import CudaKernel, LoadedKernels, PreparedIndices, cuda_device_of
from tpgen.kernels.cuda.launch import SPAN
from tpgen.kernels.cuda.orders import SortedRows, is_in_range, is_kept, recall_in_range, recall_order, sort_unless_known
from tpgen.kernels.cuda.placement import place_polynomial
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.cuda.prelude import CHANNELS_ENTRY, ENTRY, SUM_ENTRY
from tpgen.kernels.rows import BEYOND, RowIndex

_MOST_SLOTS = 64  # as form.h has it


class PolynomialKernel(CudaKernel):
    """CUDA kernels of a polynomial's call, with rows sorted by chemical element."""

    @staticmethod
    def place_on_chip(spec: KernelSpec, chip: Chip) -> CudaPolynomialPlacement:
        description = spec.description
        return place_polynomial(description.plan, description.sweep(spec.call), DTYPES[spec.dtype], chip)

    def launch_fields(self, loaded: LoadedKernels) -> list[int]:
        """Fields of the C++ ``struct FormLaunch``."""
        p = loaded.placement
        dims = [p.operands[s].dim for s in p.channel_sums]
        fields = {  # of `struct FormLaunch`
            "context": loaded.context,
            "rows": loaded.address(ENTRY),
            "weights": loaded.address(SUM_ENTRY),
            "channels": loaded.address(CHANNELS_ENTRY),
            "at_once": loaded.concurrent_blocks,
            "threads": p.threads,
            "shared": p.shared,
            "weights_shared": loaded.functions[SUM_ENTRY].shared if p.open_weights else 0,
            "number": p.lane_bytes // LANES,
            "added": p.warp_gradients,
            "most_rounds": SPAN,
            "summed": len(dims),
        }
        return [*fields.values(), *dims, *[0] * (_MOST_SLOTS - len(dims))]

    def get_cached_indices(self, indices: Sequence[RowIndex], like: Tensor) -> PreparedIndices | None:
        """Cached element index and sort order of a call; None for a new index."""
        (index,), device = indices, cuda_device_of([like])
        capture, x = driver.captured_graph_number(device), index.tensor
        if x is None:
            return None
        order = recall_order(x, index.size, capture) if capture or recall_in_range(x, index.size) else None
        if order is None:
            return None
        return PreparedIndices([x], [order.packed], None if capture or not is_kept(x) else driver.stream_of(device))

    def __call__(self, call: KernelCall) -> int:
        if call.rows:
            return super().__call__(call)
        for x in call.opened:
            x.zero_()
        return 0

    def sort_rows(self, loaded: LoadedKernels, call: KernelCall) -> tuple[int, SortedRows | None]:
        """Sort rows by element; return a fault code (0: none) and the order."""
        index = call.indices[0]
        if index.tensor is None:
            return 0, None
        capture = driver.captured_graph_number(loaded.device)
        order = sort_unless_known(index.tensor, index.size, capture)
        return (0 if capture or is_in_range(index.tensor, index.size) else BEYOND), order
