"""MACE in LAMMPS's Python interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mace.calculators.lammps_mliap_mace import LAMMPS_MLIAP_MACE
from torch import Tensor

from tpgen.networks.conversion.convert import convert
from tpgen.networks.conversion.operations.pairs import take_first_rows
from tpgen.networks.conversion.projects.lammps import ConvertedForLammps
from tpgen.networks.conversion.projects.mace_files import read_model
from tpgen.networks.conversion.swap import get_swap_mark


class LammpsMace(ConvertedForLammps, LAMMPS_MLIAP_MACE):
    """A converted MACE model for LAMMPS, also on CPUs, without ``MACE_ALLOW_CPU``."""

    def __init__(self, model: Any) -> None:
        """Wrap ``model`` for LAMMPS."""
        model.lammps_mliap = True
        super().__init__(model)
        self.config.allow_cpu = True

    @classmethod
    def load_file_for_lammps(cls, source: Path, **options: Any) -> LammpsMace:
        """Read and convert a model's file for LAMMPS."""
        model = read_model(source)
        return cls(model if any(map(get_swap_mark, model.modules())) else convert(model, **options))

    def build_model_once(self, data: Any) -> None:
        """Initialize the model at the first call."""
        if not self.initialized:
            self._initialize_device(data)
            for block in self.model.model.interactions:
                block.truncate_ghosts = _take_first_rows_unless_none


def _take_first_rows_unless_none(x: Tensor, count: int | None = None) -> Tensor:
    return x if count is None else take_first_rows(x, count)
