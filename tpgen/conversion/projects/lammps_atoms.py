"""LAMMPS's atoms as a model needs them: each is there once.

LAMMPS hands over an image of an atom as one more atom, a ghost.  Its features are those of the atom: where that is one
of the rank's own, neighbours can read its row, and an atom of another rank needs one row for all of its images.  So
ranks tell each other once a step who owns each ghost.  A rank that shares no atom with another one has no ghosts then,
and exchanges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from secrets import randbits
from typing import Any

import torch
from torch import Tensor

from tpgen.kernels.runtime.memory import empty

_NUMBERS = 2**32  # more than a rank has atoms


@dataclass(frozen=True, eq=False)
class Owners:
    """Whose image each atom is: the row that stands for it, and the atoms that these rows are taken from."""

    rows: Tensor
    atoms: Tensor
    shares: bool  # whether this rank has images of another one's atoms, or another one of its


def find_owners(data: Any) -> Owners:
    """Ask who owns the ghosts of this rank, as all ranks do at once."""
    number, rank, mine = _told(data)
    others = (rank != mine).nonzero().flatten()
    ranks = rank[others].unique(return_inverse=True)[1]
    atoms, places = (ranks * _NUMBERS + number[others]).unique(return_inverse=True)
    first = others.new_empty(len(atoms)).scatter_reduce_(0, places, others, "amin", include_self=False)
    return Owners(
        rows=number.index_put((others,), data.nlocal + places),
        atoms=torch.cat([torch.arange(data.nlocal), first]),
        shares=_is_held(data, others) or len(others) > 0,
    )


def _told(data: Any) -> tuple[Tensor, Tensor, float]:
    """Number and rank of each atom's owner, and the rank that this one is."""
    mine = float(randbits(52))  # which no other has
    sent = torch.full((data.ntotal, 2), mine, dtype=torch.float64)
    sent[:, 0] = torch.arange(data.ntotal)
    found = torch.empty_like(sent)
    data.forward_exchange(sent, found, 2)
    return found[:, 0].long(), found[:, 1], mine


def _is_held(data: Any, others: Tensor) -> bool:
    """Whether another rank has images of an atom of this one; ``others`` are this rank's images of others' atoms."""
    sent = torch.zeros(data.ntotal, 1, dtype=torch.float64)
    sent[others] = 1.0
    found = torch.empty_like(sent)
    data.reverse_exchange(sent, found, 1)
    return bool(found[: data.nlocal].any())


class OneOfEach:
    """Data of LAMMPS's that a model reads, and hands back: own atoms first, then one image of each that others own."""

    def __init__(self, data: Any, owners: Owners) -> None:
        self._data, self._owners = data, owners
        self.nlocal, self.npairs, self.ntotal = data.nlocal, data.npairs, len(owners.atoms)
        self.pair_i, self.rij, self.eatoms = data.pair_i, data.rij, data.eatoms
        self.update_pair_forces_gpu = data.update_pair_forces_gpu

    @cached_property
    def pair_j(self) -> Tensor:
        return self._owners.rows.index_select(0, torch.as_tensor(self._data.pair_j))

    @cached_property
    def elems(self) -> Tensor:
        elements = torch.as_tensor(self._data.elems)
        return elements.index_select(0, self._owners.atoms)

    def _set_energy(self, energy: Any) -> None:
        self._data.energy = energy

    energy = property(fset=_set_energy)

    def forward_exchange(self, rows: Tensor, out: Tensor, width: int) -> None:
        """Rows of own atoms as they are, and those of others' from the ranks that own them."""
        out.copy_(rows)
        if self._owners.shares:
            sent, width = _in_doubles(self._spread(rows[: self.nlocal]), width)
            self._data.forward_exchange(sent, sent, width)
            out[self.nlocal :] = sent.view(rows.dtype)[self._owners.atoms[self.nlocal :]]

    def reverse_exchange(self, rows: Tensor, out: Tensor, width: int) -> None:
        """Rows of own atoms, to which those of their images on other ranks are added."""
        out.copy_(rows)
        if self._owners.shares:
            sent = self._spread(rows)
            self._data.reverse_exchange(sent, sent, width)
            out[: self.nlocal] = sent[: self.nlocal]

    def _spread(self, rows: Tensor) -> Tensor:
        """A row for each of LAMMPS's atoms: zeros where none of these stands for it."""
        every = empty((self._data.ntotal, rows.shape[1]), rows.dtype).zero_()
        every[self._owners.atoms[: len(rows)]] = rows
        return every


def _in_doubles(rows: Tensor, width: int) -> tuple[Tensor, int]:
    """Two numbers in the place of one where they fit: LAMMPS sends doubles, bit by bit."""
    return (rows.view(torch.float64), width // 2) if rows.dtype == torch.float32 and width % 2 == 0 else (rows, width)
