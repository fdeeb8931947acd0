"""Models for LAMMPS's Python interface (``pair_style mliap unified``): files, and exchanges of ghosts."""

# Once a step, ranks exchange owners of ghosts (periodic images), so that models get each atom once.

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from secrets import randbits
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tpgen._version import __version__
from tpgen.base.errors import InputError, OptionError
from tpgen.base.locks import cached_property
from tpgen.kernels.runtime.memory import empty_tensor
from tpgen.networks.conversion.operations.pairs import limit_convolutions_to_local_rows

PROJECTS = {  # classes of what LAMMPS calls, with their modules here
    "mace": "mace_lammps:LammpsMace",
    "nequip": "nequip_lammps:LammpsNequip",
    "sevenn": "sevennet_lammps:LammpsSevenNet",
}


class ConvertedForLammps:
    """Base of converted models for LAMMPS's interface; pickles tell tpgen's version."""

    options: Mapping[str, Any] = MappingProxyType({})  # of `convert`, where a model is built when LAMMPS runs
    stock_options: Mapping[str, Any] = MappingProxyType({})  # of the project's own class

    @classmethod
    def load_file_for_lammps(cls, source: Path, **options: Any) -> Any:
        """Object for LAMMPS from a model's file or name; ``options`` of `convert`."""
        make: Any = cls
        made = make(str(source), **cls.stock_options)
        made.options = options
        return made

    def build_model_once(self, data: Any) -> None:
        """Build the model at the first call."""
        raise NotImplementedError

    def returns_without_exchange(self, data: Any) -> bool:
        """Whether the project's class returns without exchanges."""
        return data.nlocal == 0 or data.npairs <= 1

    def compute_forces(self, data: Any) -> None:
        """Compute forces on atoms into ``data``; ranks without pairs exchange zeros."""
        self.build_model_once(data)
        if not data.ntotal:
            return
        on_cpu = torch.as_tensor(data.elems).device.type == "cpu"
        if on_cpu:
            data = DeduplicatedAtoms(data, find_atom_owners(data))
        if self.returns_without_exchange(data):
            self._exchange_zeros_as_model_would(data)
        else:
            with limit_convolutions_to_local_rows(data.nlocal, in_pairs=on_cpu and self._has_products_that_take_pairs):
                super().compute_forces(data)  # type: ignore[misc]

    @cached_property
    def _has_products_that_take_pairs(self) -> bool:
        model: Any = self.model  # type: ignore[attr-defined]
        return any(getattr(module, "takes_pairs", False) for module in model.modules())

    def _exchange_zeros_as_model_would(self, data: Any) -> None:
        # as wide and as often as other ranks exchange: a call with a pair of atoms tells both
        pair = _RecordingPairOfAtoms(data.elems[:1])
        super().compute_forces(pair)  # type: ignore[misc]
        for exchange, all_rows in ((data.forward_exchange, pair.sent), (data.reverse_exchange, pair.returned)):
            for rows in all_rows:
                given = rows.new_zeros(data.ntotal, rows.shape[1])
                exchange(given, torch.empty_like(given), rows.shape[1])

    def __reduce__(self) -> tuple:
        held = io.BytesIO()
        torch.save(self.__dict__, held)
        return unpickle_converted, (__version__, type(self).__module__, type(self).__qualname__, held.getvalue())


class _RecordingPairOfAtoms:
    """LAMMPS data of two atoms, which records rows that a model exchanges."""

    nlocal = ntotal = npairs = 2
    energy = 0.0

    def __init__(self, element: Any) -> None:
        """Make two atoms of ``element``."""
        self.elems = torch.as_tensor(element).repeat(2)
        self.pair_i, self.pair_j = torch.tensor([0, 1]), torch.tensor([1, 0])
        self.rij = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
        self.eatoms = torch.zeros(2, dtype=torch.float64)
        self.sent: list[Tensor] = []
        self.returned: list[Tensor] = []

    def forward_exchange(self, rows: Tensor, out: Tensor, _width: int) -> None:
        """Record and copy rows."""
        self.sent.append(out.copy_(rows))

    def reverse_exchange(self, rows: Tensor, out: Tensor, _width: int) -> None:
        """Record and copy rows."""
        self.returned.append(out.copy_(rows))

    def update_pair_forces_gpu(self, _forces: Tensor) -> None:
        """Do nothing."""


def unpickle_converted(written_by: str, module: str, name: str, state: bytes) -> Any:
    """Unpickle a `ConvertedForLammps`; raises `InputError` for another version of tpgen."""
    if written_by != __version__:
        raise InputError(
            f"this file for LAMMPS was written by tpgen {written_by}, and {__version__} is installed here: "
            "write it anew, or install that version"
        )
    found = object.__new__(getattr(import_module(module), name))
    found.__dict__ = torch.load(io.BytesIO(state), map_location="cpu", weights_only=False)
    return found


def write_for_lammps(source: Path, target: Path, project: str | None, **options: Any) -> None:
    """Write a model's file for LAMMPS, converted with options of `convert`."""
    torch.save(_find_lammps_class(project).load_file_for_lammps(source, **options), target)


def _find_lammps_class(project: str | None) -> type[ConvertedForLammps]:
    # of the only installed project by default
    there = [name for name in PROJECTS if find_spec(name) is not None]
    if project is None and len(there) == 1:
        (project,) = there
    if project not in there:
        raise OptionError(
            f"a model's project must be installed here: {', '.join(there) or 'none of ' + ', '.join(PROJECTS)} is; "
            + ("name one by --project" if project is None else f"{project} is not")
        )
    try:
        return resolve_name(f"tpgen.networks.conversion.projects.{PROJECTS[project]}")
    except ImportError as error:
        raise OptionError(
            f"{project}'s class for LAMMPS cannot be imported here ({str(error).partition('. ')[0]}): install LAMMPS's "
            "Python package, with lammps.mliap, where you write the file"
        ) from error


_NUMBERS = 2**32  # more than a rank has atoms


@dataclass(frozen=True, eq=False)
class AtomOwners:
    """Row of each atom's original, atom of each row, whether ranks share atoms."""

    rows: Tensor
    atoms: Tensor
    shares: bool  # whether this rank has images of another one's atoms, or another one of its


def find_atom_owners(data: Any) -> AtomOwners:
    """Find the owners of ghost atoms, by exchanges of all ranks."""
    number, rank, mine = _exchange_owner_numbers_and_ranks(data)
    others = (rank != mine).nonzero().flatten()
    ranks = rank[others].unique(return_inverse=True)[1]
    atoms, places = (ranks * _NUMBERS + number[others]).unique(return_inverse=True)
    first = others.new_empty(len(atoms)).scatter_reduce_(0, places, others, "amin", include_self=False)
    return AtomOwners(
        rows=number.index_put((others,), data.nlocal + places),
        atoms=torch.cat([torch.arange(data.nlocal), first]),
        shares=_do_other_ranks_hold_ghosts_of_local_atoms(data, others) or len(others) > 0,
    )


def _exchange_owner_numbers_and_ranks(data: Any) -> tuple[Tensor, Tensor, float]:
    # number and rank of each atom's owner, and this rank
    mine = float(randbits(52))  # which no other has
    sent = torch.full((data.ntotal, 2), mine, dtype=torch.float64)
    sent[:, 0] = torch.arange(data.ntotal)
    found = torch.empty_like(sent)
    data.forward_exchange(sent, found, 2)
    return found[:, 0].long(), found[:, 1], mine


def _do_other_ranks_hold_ghosts_of_local_atoms(data: Any, foreign_ghosts: Tensor) -> bool:
    # ``others``: images here of atoms on other ranks; shared if another rank holds images of atoms from here
    sent = torch.zeros(data.ntotal, 1, dtype=torch.float64)
    sent[foreign_ghosts] = 1.0
    found = torch.empty_like(sent)
    data.reverse_exchange(sent, found, 1)
    return bool(found[: data.nlocal].any())


class DeduplicatedAtoms:
    """LAMMPS data with each atom once: own atoms, then other ranks' atoms."""

    def __init__(self, data: Any, owners: AtomOwners) -> None:
        """View LAMMPS ``data`` with each atom once."""
        self._data, self._owners = data, owners
        self.nlocal, self.npairs, self.ntotal = data.nlocal, data.npairs, len(owners.atoms)
        self.pair_i, self.rij, self.eatoms = data.pair_i, data.rij, data.eatoms
        self.update_pair_forces_gpu = data.update_pair_forces_gpu

    @cached_property
    def pair_j(self) -> Tensor:
        """Row of each pair's second atom."""
        return self._owners.rows.index_select(0, torch.as_tensor(self._data.pair_j))

    @cached_property
    def elems(self) -> Tensor:
        elements = torch.as_tensor(self._data.elems)
        return elements.index_select(0, self._owners.atoms)

    def _set_energy(self, energy: Any) -> None:
        self._data.energy = energy

    energy = property(fset=_set_energy)

    def forward_exchange(self, rows: Tensor, out: Tensor, width: int) -> None:
        """Write own rows to ``out``, and other atoms' rows from their ranks."""
        out.copy_(rows)
        if self._owners.shares:
            sent, width = _view_as_doubles_if_even(self._expand_rows_to_all_atoms(rows[: self.nlocal]), width)
            self._data.forward_exchange(sent, sent, width)
            out[self.nlocal :] = sent.view(rows.dtype)[self._owners.atoms[self.nlocal :]]

    def reverse_exchange(self, rows: Tensor, out: Tensor, width: int) -> None:
        """Write own rows to ``out``, plus rows of own atoms' images on other ranks."""
        out.copy_(rows)
        if self._owners.shares:
            sent = self._expand_rows_to_all_atoms(rows)
            self._data.reverse_exchange(sent, sent, width)
            out[: self.nlocal] = sent[: self.nlocal]

    def _expand_rows_to_all_atoms(self, rows: Tensor) -> Tensor:
        every = empty_tensor((self._data.ntotal, rows.shape[1]), rows.dtype).zero_()
        every[self._owners.atoms[: len(rows)]] = rows
        return every


def _view_as_doubles_if_even(rows: Tensor, width: int) -> tuple[Tensor, int]:
    # two numbers as one if possible: LAMMPS sends doubles bit by bit
    return (rows.view(torch.float64), width // 2) if rows.dtype == torch.float32 and width % 2 == 0 else (rows, width)
