"""NequIP as LAMMPS calls it, stock and converted, built from seeds where a checkpoint would be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from nequip.integrations.lammps_mliap.lmp_mliap_wrapper import NequIPLAMMPSMLIAPWrapper

from benchmarks.networks import nequip
from tpgen.networks.conversion.projects.nequip_lammps import LammpsNequip


class Seeded:
    """Base that goes before NequIP's class for LAMMPS, and builds its model."""

    def __init__(self, file: Path, dtype: torch.dtype, size: dict[str, Any]) -> None:
        self.case = (dtype, size)
        super().__init__(str(file), "sole_model", compile=False)  # type: ignore[call-arg]

    def _load_model_from_bytes(self) -> Any:
        dtype, size = self.case
        return nequip(8, dtype, **size).model


class Stock(Seeded, NequIPLAMMPSMLIAPWrapper):
    """NequIP's own, on a CPU, which it does not take by itself where LAMMPS has KOKKOS."""

    def _initialize_model(self, _data: Any) -> None:
        super()._initialize_model(None)


class Fast(Seeded, LammpsNequip):
    """The class of a file that `tpgen lammps` writes."""
