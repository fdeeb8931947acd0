"""Padded molecules, ``(molecules, atoms, 3)``, as rows of atoms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tpgen.networks.trial import is_floating
from tpgen.tools.verification.findings import NotCompared
from tpgen.tools.verification.reading import BATCH
from tpgen.tools.verification.subject import CallableModule, TensorsByName

_FULL = "no molecule of the call is padded, which would show how: give molecules of several sizes"
_Call = Callable[[CallableModule, TensorsByName], TensorsByName]


class UnknownPadding(NotCompared):
    """Nothing shows the padding of molecules."""


@dataclass(frozen=True, eq=False)
class _PaddedMolecules:
    """Padded tensors as ``rows`` of real atoms, and padding values ``fills``."""

    rows: TensorsByName
    fills: Mapping[str, Tensor | None]

    def wrap_call_for_atom_rows(self, call: _Call) -> _Call:
        """Wrap a call of padded tensors to take and return rows of atoms."""

        def call_padded_and_select_atom_rows(run: CallableModule, operands: TensorsByName) -> TensorsByName:
            padded, places, shape = self._pad_operands_and_locate_atoms(operands)
            found = call(run, padded)
            return {name: y[places] if y.shape[:2] == shape else y for name, y in found.items()}

        return call_padded_and_select_atom_rows

    def wrap_arguments_for_atom_rows(self, arguments: Callable[[TensorsByName], Any]) -> Callable[[TensorsByName], Any]:
        """Wrap a function of padded tensors to take rows of atoms."""
        return lambda operands: arguments(self._pad_operands_and_locate_atoms(operands)[0])

    def _pad_operands_and_locate_atoms(
        self, operands: TensorsByName
    ) -> tuple[TensorsByName, tuple[Tensor, Tensor], tuple[int, int]]:
        rows = {**{name: self.rows[name] for name in self.fills}, BATCH: self.rows[BATCH], **operands}
        molecules = rows.pop(BATCH).long().cpu()
        counts = torch.bincount(molecules)
        shape = len(counts), int(counts.max())
        places = molecules, _index_of_each_atom_in_molecule(molecules, counts)
        padded = {name: self._pad_atom_rows(name, rows[name], places, shape) for name in self.fills}
        return {**rows, **padded}, places, shape

    def _pad_atom_rows(
        self,
        tensor_name: str,
        atom_rows: Tensor,
        molecule_and_position: tuple[Tensor, Tensor],
        padded_shape: tuple[int, int],
    ) -> Tensor:
        fill = self.fills[tensor_name]
        if fill is None:
            if len(atom_rows) != padded_shape[0] * padded_shape[1]:
                raise UnknownPadding(_FULL)
            fill = atom_rows[0].detach()
        held = fill.to(atom_rows).expand(*padded_shape, *atom_rows.shape[1:]).clone()
        return held.index_put(tuple(at.to(atom_rows.device) for at in molecule_and_position), atom_rows)


def _index_of_each_atom_in_molecule(molecule_of_atom: Tensor, atom_counts: Tensor) -> Tensor:
    # the position of each atom in its molecule
    order = torch.argsort(molecule_of_atom, stable=True)
    within = torch.arange(len(molecule_of_atom)) - (atom_counts.cumsum(0) - atom_counts)[molecule_of_atom[order]]
    return torch.empty_like(within).scatter_(0, order, within)


def detect_padded_molecules(tensors: TensorsByName) -> _PaddedMolecules | None:
    """Find padded molecules, by a mask, negative species, or species 0 at the origin."""
    floating = [x for x in tensors.values() if is_floating(x)]
    if BATCH in tensors or any(x.dim() == 2 and x.shape[1] == 3 for x in floating):
        return None
    shapes = {x.shape[:2] for x in floating if x.dim() == 3 and x.shape[2] == 3}
    own = {name: x for name, x in tensors.items() if x.shape[:2] in shapes}
    labels = [x for x in own.values() if x.dim() == 2 and not x.is_floating_point()]
    if len({x.shape for x in labels}) != 1 or any(x.dim() > 2 and x.shape[1] == x.shape[2] for x in own.values()):
        return None
    real = _find_mask_of_real_atoms(
        labels, next(x for x in own.values() if x.shape[2:] == (3,) and x.is_floating_point())
    )
    if real is None:
        return None
    own = {name: x for name, x in own.items() if x.shape[:2] == real.shape}
    rows = {name: x[real] if name in own else x for name, x in tensors.items()}
    fills = {name: None if bool(real.all()) else x[~real][0].clone() for name, x in own.items()}
    return _PaddedMolecules({**rows, BATCH: real.nonzero()[:, 0]}, fills)


def _find_mask_of_real_atoms(masks_and_species: list[Tensor], points: Tensor) -> Tensor | None:
    # all that are atoms, which come first in their molecules; None where labels say different things
    masks = [x == x[:1, :1] for x in masks_and_species if x.dtype == torch.bool]
    species = [x for x in masks_and_species if x.dtype != torch.bool]
    negative = [x >= 0 for x in species if bool((x < 0).any())]
    zeros = [x != 0 for x in species if bool((x == 0).any()) and not bool(points[x == 0].any())]  # at the origin
    said = [real for real in (masks or negative or zeros) if not bool(real.all())]
    every = torch.ones_like(masks_and_species[0], dtype=torch.bool)
    real = said[0] if said else every
    return real if all(torch.equal(x, real) and torch.equal(x.cummin(1).values, x) for x in said) else None
