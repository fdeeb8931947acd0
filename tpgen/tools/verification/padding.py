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
from tpgen.tools.verification.subject import Run, TensorsByName

_FULL = "no molecule of the call is padded, which would show how: give molecules of several sizes"
_Call = Callable[[Run, TensorsByName], TensorsByName]


class UnknownPadding(NotCompared):
    """Nothing shows the padding of molecules."""


@dataclass(frozen=True, eq=False)
class _PaddedMolecules:
    """A call's tensors as ``rows`` of real atoms, and the ``fills`` of padding (None: unknown)."""

    rows: TensorsByName
    fills: Mapping[str, Tensor | None]

    def flattening(self, call: _Call) -> _Call:
        """Wrap a call to take and return rows of atoms."""

        def flat_call(run: Run, operands: TensorsByName) -> TensorsByName:
            padded, places, shape = self._padded_operands_places_and_shape(operands)
            found = call(run, padded)
            return {name: y[places] if y.shape[:2] == shape else y for name, y in found.items()}

        return flat_call

    def padding(self, arguments: Callable[[TensorsByName], Any]) -> Callable[[TensorsByName], Any]:
        """Wrap a function of padded tensors to take rows of atoms."""
        return lambda operands: arguments(self._padded_operands_places_and_shape(operands)[0])

    def _padded_operands_places_and_shape(
        self, operands: TensorsByName
    ) -> tuple[TensorsByName, tuple[Tensor, Tensor], tuple[int, int]]:
        rows = {**{name: self.rows[name] for name in self.fills}, BATCH: self.rows[BATCH], **operands}
        molecules = rows.pop(BATCH).long().cpu()
        counts = torch.bincount(molecules)
        shape = len(counts), int(counts.max())
        places = molecules, _places_within_molecules(molecules, counts)
        padded = {name: self._pad(name, rows[name], places, shape) for name in self.fills}
        return {**rows, **padded}, places, shape

    def _pad(self, name: str, x: Tensor, places: tuple[Tensor, Tensor], shape: tuple[int, int]) -> Tensor:
        fill = self.fills[name]
        if fill is None:
            if len(x) != shape[0] * shape[1]:
                raise UnknownPadding(_FULL)
            fill = x[0].detach()
        held = fill.to(x).expand(*shape, *x.shape[1:]).clone()
        return held.index_put(tuple(at.to(x.device) for at in places), x)


def _places_within_molecules(molecules: Tensor, counts: Tensor) -> Tensor:
    # the position of each atom in its molecule
    order = torch.argsort(molecules, stable=True)
    within = torch.arange(len(molecules)) - (counts.cumsum(0) - counts)[molecules[order]]
    return torch.empty_like(within).scatter_(0, order, within)


def read_padded_molecules(tensors: TensorsByName) -> _PaddedMolecules | None:
    """Read padded molecules, by a mask, negative species, or species 0 at the origin; None without."""
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


def _find_mask_of_real_atoms(labels: list[Tensor], points: Tensor) -> Tensor | None:
    # all that are atoms, which come first in their molecules; None where labels say different things
    masks = [x == x[:1, :1] for x in labels if x.dtype == torch.bool]
    species = [x for x in labels if x.dtype != torch.bool]
    negative = [x >= 0 for x in species if bool((x < 0).any())]
    zeros = [x != 0 for x in species if bool((x == 0).any()) and not bool(points[x == 0].any())]  # at the origin
    said = [real for real in (masks or negative or zeros) if not bool(real.all())]
    every = torch.ones_like(labels[0], dtype=torch.bool)
    real = said[0] if said else every
    return real if all(torch.equal(x, real) and torch.equal(x.cummin(1).values, x) for x in said) else None
