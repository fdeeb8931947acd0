"""Bytes that kernels take on a GPU beside operands and results: orders of edges, and sums of parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tpgen.kernels.cuda.counts import AnyPlacement
from tpgen.kernels.cuda.launch import Join
from tpgen.kernels.cuda.model import blocks_expected

_INDEX = torch.int64.itemsize
# Numbers of each key while those of all ends are sorted: keys and places, each before, after and in torch's own room.
_SORTED = 6


def product_workspace(p: AnyPlacement, rows: int, nodes: dict[str, int] | None = None, narrow: int = 0) -> int:
    """Bytes of a product's kernel on so many rows; on edges with nodes of x1 and out, and so many indices of int32.

    >>> from tpgen.form.form import form_of
    >>> from tpgen.kernels.cuda.chips import chip_of
    >>> from tpgen.kernels.cuda.placement import cuda_target, place_cuda
    >>> from tpgen.kernels.placement.planning import plan_schedule
    >>> from tpgen.planner.problems import find_problem
    >>> schedule = plan_schedule(form_of(find_problem("mace-large").plan, "mul_ir"), cuda_target("float32"))
    >>> product_workspace(place_cuda(schedule, ("out",), chip_of(90)), 40_000)
    0
    """
    blocks = blocks_expected(p, rows)
    working = Join(p, blocks).bytes + (p.weight_sum.bytes(blocks) if p.sums_weights else 0)
    working += rows * sum(map(p.row_bytes, p.scattered))
    return order_bytes(rows, [(nodes or {})[o] for o in p.sorted_by], working) + narrow * rows * _INDEX


def order_bytes(rows: int, owners: Sequence[int], working: int) -> int:
    """Orders of rows by their owners, which are kept, with what comes after them, or while they are made."""
    kept = [rows + n + 1 for n in owners]
    making = _SORTED * rows * len(kept)
    return max(sum(kept) * _INDEX + working, making * _INDEX)
