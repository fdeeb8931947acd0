"""Rows of one species together, as a table of rows that a program is given: its sizes are open, its numbers are not."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tpgen.remember import remembered


@dataclass(frozen=True, eq=False)
class Groups:
    """Species of rows, and a table with the rows of each: two species and two columns at least, as sizes are open."""

    species: Tensor  # (rows,): the species of each row
    there: Tensor  # (groups,): the species of each group, all that occur
    table: Tensor  # (groups, most): the rows of each group, -1 behind them
    place: Tensor  # (rows,): where each row stands in the flat table


def find_groups(species: Tensor) -> list[Tensor] | None:
    """The `Groups` of int64 ``(rows,)`` in order, which nobody may write to; None where a program has no such sizes.

    >>> for x in find_groups(torch.tensor([7, 3, 7])):
    ...     print(x.tolist())
    [7, 3, 7]
    [3, 7]
    [[1, -1], [0, 2]]
    [2, 0, 3]
    """
    return list(_groups(species.numpy().tobytes())) if len(species) > 1 else None


@remembered("species of systems, with their rows", entries=64)  # dynamics asks for one again and again
def _groups(numbers: bytes) -> tuple[Tensor, ...]:
    species = torch.frombuffer(bytearray(numbers), dtype=torch.int64)
    there, group, counts = species.unique(return_inverse=True, return_counts=True)
    groups, most, order = max(len(there), 2), max(int(counts.max()), 2), group.argsort(stable=True)
    rows, begins = torch.arange(len(species)), counts.cumsum(0) - counts
    place = torch.empty_like(order)
    place[order] = most * group[order] + rows - begins[group[order]]
    table = torch.full((groups * most,), -1)
    table[place] = rows
    there = there if len(there) > 1 else there.repeat(2)  # the second of them has no rows
    return species, there, table.view(groups, most), place
