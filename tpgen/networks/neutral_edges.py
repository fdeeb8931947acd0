"""Edges longer than any cutoff, which change no result."""

# A CUDA graph serves one number of edges.  `EdgePadding` adds edges, from an atom to its image `NEUTRAL_LENGTH` away,
# up to the next of 16 sizes in an octave: a program on a GPU then meets few sizes, and replays them.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import ceil

import torch
from torch import Tensor

from tpgen.networks.signature import Signature, tensors_by_name
from tpgen.networks.sizes import open_sizes

NEUTRAL_LENGTH = 100.0  # length of an edge, in the unit of positions
_LONGEST_CELL = 100.0  # times the shortest one: a cutoff's polynomial of lengths stays finite in float32


class _EdgeTensorKind(Enum):
    INDEX = auto()  # (2, edges), numbers of atoms
    VECTOR = auto()  # (edges, 3), in the unit of positions
    SHIFT = auto()  # (edges, 3), in cells

    @property
    def axis(self) -> int:
        """Axis of edges."""
        return int(self is _EdgeTensorKind.INDEX)


# Names of tensors of edges in MACE, NequIP and Allegro.  SevenNet's cutoffs grow again beyond the cutoff.
_KINDS = {
    "edge_index": _EdgeTensorKind.INDEX,
    "shifts": _EdgeTensorKind.VECTOR,
    "unit_shifts": _EdgeTensorKind.SHIFT,
    "edge_cell_shift": _EdgeTensorKind.SHIFT,
}
_POSITIONS = "positions", "pos"


def padded_size(edges: int) -> int:
    """Next number of edges that programs run with.

    >>> padded_size(1000), padded_size(1025)
    (1024, 1088)
    """
    step = max(1, (1 << edges.bit_length()) // 32)
    return -(-edges // step) * step


@dataclass(frozen=True)
class EdgePadding:
    """Pads a call's tensors by edges beyond any cutoff, and removes their rows from results."""

    edges: Mapping[int, _EdgeTensorKind]  # tensors of edges, by their number
    positions: int
    cell: int | None
    results: tuple[tuple[int, int], ...]  # results of edges, and the axis of these

    @staticmethod
    def read_from_trace(signature: Signature, given: Sequence[Tensor], results: Sequence[Tensor]) -> EdgePadding | None:
        """Find tensors of edges by name; None if one is unknown, or without vectors."""
        numbers = tensors_by_name(signature)
        index, positions, cell = (
            _number_of_first_known_tensor(numbers, names) for names in (("edge_index",), _POSITIONS, ("cell",))
        )
        if index is None or positions is None:
            return None
        size = open_sizes(given[index])[-1]
        known = {numbers[name]: kind for name, kind in _KINDS.items() if name in numbers}
        axes = _list_tensor_axes_of_open_size(size, given)
        edges = {n: kind for n, kind in known.items() if (n, kind.axis) in axes}
        if (
            size is None
            or len(edges) < 2
            or len(axes) > len(edges)
            or (_EdgeTensorKind.SHIFT in edges.values() and cell is None)
        ):
            return None
        return EdgePadding(edges, positions, cell, tuple(_list_tensor_axes_of_open_size(size, results)))

    def add(self, tensors: Sequence[Tensor], size: int | None = None) -> list[Tensor] | None:
        """Pad tensors of edges to ``size``, by default the next size; None if the cell's images are not far."""
        count = self._count_edges(tensors)
        missing, cells = (
            (padded_size(count) if size is None else size) - count,
            self._count_cells_to_neutral_length(tensors),
        )
        if cells is None or not len(tensors[self.positions]):
            return None
        away = {_EdgeTensorKind.VECTOR: NEUTRAL_LENGTH, _EdgeTensorKind.SHIFT: float(cells)}
        made = list(tensors)
        for n, kind in self.edges.items():
            x = tensors[n].detach()
            if (
                kind is _EdgeTensorKind.INDEX
            ):  # all atoms in turn, as a kernel takes the edges of one atom one after another
                atoms = torch.arange(missing, dtype=x.dtype, device=x.device) % len(tensors[self.positions])
                made[n] = torch.cat([x, atoms.expand(2, missing)], 1)
            else:
                far = x.new_zeros(missing, 3)
                far[:, 0] = away[kind]
                made[n] = torch.cat([x, far])
        return made

    def doubled(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """As `add`, doubling edges: a trial that detects means over edges."""
        return self.add(tensors, 2 * self._count_edges(tensors))

    def _count_edges(self, tensors: Sequence[Tensor]) -> int:
        return next(tensors[n].shape[kind.axis] for n, kind in self.edges.items())

    def _count_cells_to_neutral_length(self, tensors: Sequence[Tensor]) -> int | None:
        # how many cells along its first vector are far; 0 if no tensor counts in cells
        if _EdgeTensorKind.SHIFT not in self.edges.values():
            return 0
        assert self.cell is not None
        sides = tensors[self.cell].detach().reshape(-1, 3, 3)[:, 0].norm(dim=1)
        least, most = torch.stack([sides.min(), sides.max()]).tolist()
        return ceil(NEUTRAL_LENGTH / least) if least > 0 and most <= _LONGEST_CELL * least else None

    def take_out(self, results: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Remove rows of added edges from results; ``tensors`` are the call's own."""
        count = self._count_edges(tensors)
        made = list(results)
        for n, axis in self.results:
            made[n] = made[n].narrow(axis, 0, count)
        return made


def _list_tensor_axes_of_open_size(size: str | None, tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    return [(n, axis) for n, x in enumerate(tensors) for axis, other in enumerate(open_sizes(x)) if other == size]


def _number_of_first_known_tensor(numbers: Mapping[str, int], names: Sequence[str]) -> int | None:
    return next((numbers[name] for name in names if name in numbers), None)
