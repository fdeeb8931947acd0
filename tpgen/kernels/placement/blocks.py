"""Blocks of rows, independent of the number of threads: sums have one order."""

from __future__ import annotations

from dataclasses import dataclass

_GRAIN = 16384  # numbers a block should touch at least: handing a block to a thread costs about as much as 200 of them
_SUMS = 2**24  # numbers in the blocks' parts of a sum over all rows: 64 MB
MOST_BLOCKS = 32  # where each has such a part
WORTH_THREADS = 65536  # numbers that a call touches


@dataclass(frozen=True)
class Blocks:
    """Sizes of a CPU's blocks of rows; up to ``most_blocks`` if each sums over rows."""

    tile: int  # rows taken at a time
    touched: int  # numbers that one row touches
    part: int  # numbers summed over all rows

    @property
    def rows_of_block(self) -> int:
        return self.tile * max(1, _GRAIN // max(1, self.tile * self.touched))

    def __str__(self) -> str:
        if self.part:
            return f"rows in up to {min(MOST_BLOCKS, self.most_blocks)} blocks, tiles of {self.tile}"
        return f"blocks of {self.rows_of_block} rows, tiles of {self.tile}"

    @property
    def most_blocks(self) -> int:
        return max(1, _SUMS // max(1, self.part))


def areas_text(areas: dict[str, int]) -> str:
    """Format scratch areas and sizes.

    >>> areas_text({"s_x1": 64, "T": 16})
    's_x1[64], T[16], 80 numbers a thread'
    """
    return ", ".join([*(f"{name}[{size}]" for name, size in areas.items()), f"{sum(areas.values())} numbers a thread"])
