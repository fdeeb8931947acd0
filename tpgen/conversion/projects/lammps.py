"""Models for LAMMPS's Python interface (``pair_style mliap unified``): their files, their part in exchanges of ghosts.

A project has a class for that interface.  `Converted` goes before it: the model then gets each atom once, convolutions
return the rank's own rows alone, nets of edges run once for each pair, and a rank without atoms takes part in the
exchanges that the others wait for.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tpgen._version import __version__
from tpgen.conversion.operations.local_rows import local_rows
from tpgen.conversion.projects.lammps_atoms import OneOfEach, find_owners
from tpgen.errors import InputError, OptionError

PROJECTS = {"mace": "mace_lammps", "nequip": "nequip_lammps", "sevenn": "sevennet_lammps"}


class Converted:
    """Base of a project's class for LAMMPS.  Its pickle says which tpgen wrote it before it is opened."""

    options: Mapping[str, Any] = MappingProxyType({})  # of `convert`, where a model is built when LAMMPS runs

    def prepare(self, data: Any) -> None:
        """Build the model, where that is not done yet."""
        raise NotImplementedError

    def is_idle(self, data: Any) -> bool:
        """Whether the project's class returns without the exchanges."""
        return data.nlocal == 0 or data.npairs <= 1

    def compute_forces(self, data: Any) -> None:
        self.prepare(data)
        if not data.ntotal:
            return
        on_cpu = torch.as_tensor(data.elems).device.type == "cpu"
        if on_cpu:
            data = OneOfEach(data, find_owners(data))
        if self.is_idle(data):
            self._take_part(data)
        else:
            with local_rows(data.nlocal, in_pairs=on_cpu and self._takes_pairs):
                super().compute_forces(data)  # type: ignore[misc]

    @cached_property
    def _takes_pairs(self) -> bool:
        """Whether the model has convolutions of pairs of edges."""
        model: Any = self.model  # type: ignore[attr-defined]
        return any(getattr(module, "takes_pairs", False) for module in model.modules())

    def _take_part(self, data: Any) -> None:
        """Exchange zeros, as wide and as often as the others exchange: a pair of atoms says how."""
        pair = _Pair(data.elems[:1])
        super().compute_forces(pair)  # type: ignore[misc]
        for exchange, all_rows in ((data.forward_exchange, pair.sent), (data.reverse_exchange, pair.returned)):
            for rows in all_rows:
                given = rows.new_zeros(data.ntotal, rows.shape[1])
                exchange(given, torch.empty_like(given), rows.shape[1])

    def __reduce__(self) -> tuple:
        held = io.BytesIO()
        torch.save(self.__dict__, held)
        return opened, (__version__, type(self).__module__, type(self).__qualname__, held.getvalue())


class _Pair:
    """Two atoms of an element, as LAMMPS would hand them over, and the rows that they would exchange."""

    nlocal = ntotal = npairs = 2
    energy = 0.0

    def __init__(self, element: Any) -> None:
        self.elems = torch.as_tensor(element).repeat(2)
        self.pair_i, self.pair_j = torch.tensor([0, 1]), torch.tensor([1, 0])
        self.rij = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
        self.eatoms = torch.zeros(2, dtype=torch.float64)
        self.sent: list[Tensor] = []
        self.returned: list[Tensor] = []

    def forward_exchange(self, rows: Tensor, out: Tensor, _width: int) -> None:
        self.sent.append(out.copy_(rows))

    def reverse_exchange(self, rows: Tensor, out: Tensor, _width: int) -> None:
        self.returned.append(out.copy_(rows))

    def update_pair_forces_gpu(self, _forces: Tensor) -> None:
        """These atoms are nobody's."""


def opened(written_by: str, module: str, name: str, held: bytes) -> Any:
    """Read a file for LAMMPS; an error in one line where it was written by another tpgen."""
    if written_by != __version__:
        raise InputError(
            f"this file for LAMMPS was written by tpgen {written_by}, and {__version__} is installed here: "
            "write it anew, or install that version"
        )
    found = object.__new__(getattr(import_module(module), name))
    found.__dict__ = torch.load(io.BytesIO(held), map_location="cpu", weights_only=False)
    return found


def write_for_lammps(source: Path, target: Path, project: str | None, **options: Any) -> None:
    """Write the file of a model as one for LAMMPS, converted with these options."""
    torch.save(_maker(project)(source, **options), target)


def _maker(project: str | None) -> Callable[..., Any]:
    """The function of a project, or of the only one that is installed, that makes of a file what LAMMPS calls."""
    there = [name for name in PROJECTS if find_spec(name) is not None]
    if project is None and len(there) == 1:
        (project,) = there
    if project not in there:
        raise OptionError(
            f"a model's project must be installed here: {', '.join(there) or 'none of ' + ', '.join(PROJECTS)} is; "
            + ("name one by --project" if project is None else f"{project} is not")
        )
    try:
        return import_module(f"tpgen.conversion.projects.{PROJECTS[project]}").for_lammps
    except ImportError as error:
        raise OptionError(
            f"{project}'s class for LAMMPS cannot be imported here ({str(error).partition('. ')[0]}): install LAMMPS's "
            "Python package, with lammps.mliap, where you write the file"
        ) from error
