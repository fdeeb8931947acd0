"""Polynomials on blocks, in *tasks*: some rows of an element at 32 channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tpgen.base.locks import cached_property
from tpgen.kernels.cuda.chips import LANES, Chip, KernelOnChip
from tpgen.kernels.cuda.prelude import CHANNELS_ENTRY, ENTRY, SUM_ENTRY
from tpgen.kernels.placement.polynomial import PolynomialPlacement, component_runs
from tpgen.kernels.sweep.monomials import merge_sums_by_component
from tpgen.kernels.sweep.statements import Component, Product

_WARPS = 4
_TOGETHER = 40

Item = TypeVar("Item")
ComponentSum = tuple[Component, tuple[Product, ...]]


@dataclass(frozen=True)
class CudaPolynomialPlacement(PolynomialPlacement, KernelOnChip):
    """GPU placement of a polynomial call: blocks, warps, one channel per lane."""

    chip: Chip
    warps: int = _WARPS

    @cached_property
    def scratch(self) -> dict[str, int]:
        """Numbers per lane in shared memory, by slot."""
        return dict.fromkeys((*self.coefficients, *self.adjoints), self.sweep.coefficients)

    registers = 168
    sorted_by = ()  # by an index of elements alone

    @property
    def dtype(self) -> str:
        return self.target.dtype

    @property
    def block_sizes_by_kernel(self) -> dict[str, tuple[int, int]]:
        """Threads and shared bytes by kernel name."""
        weights = {SUM_ENTRY: (self.threads, self.warp_gradients * self.lane_bytes)} if self.open_weights else {}
        channels = {CHANNELS_ENTRY: (self.threads, 0)} if self.channel_sums else {}
        return {ENTRY: (self.threads, self.shared), **weights, **channels}

    @property
    def block_coefficients(self) -> int:
        """Coefficients of a block, per lane."""
        return len(self.coefficients) * self.sweep.coefficients

    @property
    def warp_gradients(self) -> int:
        """Gradients of coefficients of a warp, per lane."""
        return len(self.adjoints) * self.sweep.coefficients

    @property
    def together(self) -> int:
        """Sums over tasks in a warp's registers at once."""
        return min(_TOGETHER, max(1, -(-self.warp_gradients // self.warps)))

    @property
    def ahead(self) -> int:
        """Tasks whose sums a warp loads at once."""
        return max(1, _TOGETHER // self.together)

    @cached_property
    def transpose_size(self) -> int:
        """Numbers per lane (odd) of a warp's shared buffer that transposes segments."""
        moved = [self.operands[s] for s in (*self.inputs, *self.stored)]
        sizes = [size for o in moved if o.channels for _, size in component_runs(o) if size > 1]
        return max(sizes, default=0) | bool(sizes)

    @property
    def shared(self) -> int:
        """Shared bytes of a block."""
        return (self.block_coefficients + self.warps * (self.warp_gradients + self.transpose_size)) * self.lane_bytes

    @property
    def lane_bytes(self) -> int:
        """Bytes of one number for every lane."""
        return LANES * self.number

    @cached_property
    def coefficient_sums_by_warp(self) -> list[list[ComponentSum]]:
        """Coefficients, as sums of products, that each warp computes."""
        made = list(merge_sums_by_component(self.sweep.prologue).items())
        return split_by_size(made, [len(terms) for _, terms in made], self.warps)

    @cached_property
    def weight_gradient_sums_by_warp(self) -> list[list[ComponentSum]]:
        """Gradients of weights, as sums of products, that each warp computes; zeros included."""
        sums = merge_sums_by_component(self.sweep.epilogue)
        places = [Component(s, 0, i) for s in self.open_weights for i in range(self.operands[s].dim)]
        found = [(place, sums.get(place, ())) for place in places]
        return split_by_size(found, [len(terms) + 1 for _, terms in found], self.warps)

    def __str__(self) -> str:
        parts = [
            f"cuda placement: {self.sweep.call}; {self.target.dtype}, {self.chip}",
            f"  a block: rows of one element at {LANES} channels, on {self.warps} warps",
            f"  shared memory: {self.shared} bytes; of a lane {self.block_coefficients} coefficients, and of each warp "
            f"{self.warp_gradients} gradients of them and {self.transpose_size} to turn segments",
        ]
        parts += [f"  {slot}: {self._describe_slot_reads(slot)}" for slot in self.given]
        return "\n".join([*parts, *(f"  -> {slot}: {self._describe_slot_writes(slot)}" for slot in self.opened)])


def split_by_size(items: Sequence[Item], sizes: Sequence[int], parts: int) -> list[list[Item]]:
    """Split items into ``parts`` lists of neighbours with about equal sizes.

    >>> split_by_size("abcde", [1, 1, 4, 1, 1], 2)
    [['a', 'b', 'c'], ['d', 'e']]
    """
    dealt: list[list[Item]] = [[] for _ in range(parts)]
    whole, before = max(1, sum(sizes)), 0
    for item, size in zip(items, sizes, strict=True):
        dealt[min(parts - 1, before * parts // whole)].append(item)
        before += size
    return dealt
