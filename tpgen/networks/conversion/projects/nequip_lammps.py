"""NequIP and Allegro in LAMMPS's Python interface."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from nequip.integrations.lammps_mliap.lmp_mliap_wrapper import NequIPLAMMPSMLIAPWrapper

from tpgen.networks.conversion.convert import convert
from tpgen.networks.conversion.projects.lammps import ConvertedForLammps


class LammpsNequip(ConvertedForLammps, NequIPLAMMPSMLIAPWrapper):
    """A converted NequIP or Allegro model for LAMMPS on a CPU, not compiled."""

    stock_options = MappingProxyType({"model_key": "sole_model", "compile": False})

    def _initialize_model(self, _data: Any) -> None:
        super()._initialize_model(None)  # of no class of Kokkos's
        self.model: Any = convert(self.model, **self.options)

    def build_model_once(self, data: Any) -> None:
        """Build and convert the model at the first call."""
        if self.model is None:
            self._initialize_model(data)
