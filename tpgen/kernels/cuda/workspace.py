"""What kernels take on a GPU beside operands and results, in bytes: orders of edges, and sums of parts.

Whether nodes are so long that they are cut into parts, only the values of an index say: room for all parts is counted.
"""

from __future__ import annotations

import torch

from tpgen.kernels.cuda.counts import AnyPlacement
from tpgen.kernels.cuda.model import blocks_expected
from tpgen.kernels.cuda.parts import most_parts
from tpgen.kernels.cuda.polynomials.launch import Geometry
from tpgen.kernels.cuda.sums import WeightSum

_INDEX = torch.int64.itemsize
# Numbers of each edge while it is sorted: keys and places, each before, after and in the room of torch's own sort.
_SORTED = 6


def product_bytes(p: AnyPlacement, rows: int, owners: int, narrow: int = 0) -> int:
    """Of a kernel of a product on so many rows; on edges with their owners, and so many indices of int32.

    >>> from tpgen.form.linear import form_of
    >>> from tpgen.kernels.cuda.chips import chip_of
    >>> from tpgen.kernels.cuda.placement import cuda_target, place_cuda
    >>> from tpgen.kernels.placement.planning import plan_schedule
    >>> from tpgen.planner.problems import find_problem
    >>> schedule = plan_schedule(form_of(find_problem("mace-large").plan, "mul_ir"), cuda_target("float32"))
    >>> product_bytes(place_cuda(schedule, ("out",), chip_of(90)), 40_000, 0)
    0
    """
    if not p.owner:
        return _weight_sums(p, rows, owners) + narrow * rows * _INDEX
    parts = most_parts(rows, p.chip.processors) * p.row_bytes(p.owner)
    working = parts + _weight_sums(p, rows, owners)
    return order_bytes(rows, owners, working) + narrow * rows * _INDEX


def order_bytes(rows: int, owners: int, working: int) -> int:
    """The order of rows by owner, which is kept, with what comes after it, or while it is made."""
    kept, making = rows + owners + 1, _SORTED * rows
    return max(kept * _INDEX + working, making * _INDEX)


def _weight_sums(p: AnyPlacement, rows: int, owners: int) -> int:
    if not p.sums_weights:
        return 0
    return WeightSum(p.dim["w"], p.number).bytes(blocks_expected(p, rows, owners))


def polynomial_bytes(geometry: Geometry, dtype: torch.dtype, indexed: bool) -> int:
    """Of the kernels of a polynomial: the sums of tasks, and with an index of its elements their order."""
    sums = sum(x.nbytes for x in geometry.scratch(dtype, torch.device("meta")))
    return order_bytes(geometry.sizes.rows, geometry.sizes.elements, sums) if indexed else sums
