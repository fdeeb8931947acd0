"""What a kernel of a product takes on the CPU beside operands and results, in bytes: scratch of its threads, orders."""

from __future__ import annotations

import torch

from tpgen.form.form import Form
from tpgen.kernels.operators.amounts import Amounts
from tpgen.kernels.operators.description import schedule
from tpgen.kernels.placement.blocks import MOST_BLOCKS
from tpgen.kernels.placement.place import Placement, place

_INDEX = torch.int64.itemsize


def product_bytes(form: Form, opened: tuple[str, ...], dtype: torch.dtype, amounts: Amounts) -> int:
    """Of a kernel that opens some slots."""
    placed = place(schedule(form, dtype), opened, amounts.ends is not None)
    rows, number, owners = amounts.rows, max(4, dtype.itemsize), amounts.owners(placed.owner)
    order = (owners + 1 + rows + 1) * _INDEX if placed.owner else 0
    scratch = max(sum(placed.scratch.values()), 1) * torch.get_num_threads()
    weights = placed.weight_scratch if "w" in placed.given else 0
    return order + (scratch + weights + _sums(placed, rows)) * number


def _sums(placed: Placement, rows: int) -> int:
    """Numbers in the blocks' parts of a sum over all rows, as the kernel cuts them."""
    if not placed.sums_weights:
        return 0
    most, tile = min(placed.blocks.room, MOST_BLOCKS), placed.blocks.tile
    span = ((rows + most - 1) // most + tile) // tile * tile
    return (rows // span + 2) * max(placed.weight_scratch, placed.schedule.target.lanes)
