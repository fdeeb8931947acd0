"""SevenNet in LAMMPS's Python interface."""

from __future__ import annotations

from typing import Any

import sevenn._keys as keys
from sevenn.mliap import MLIAPWrappedConvolution, SevenNetMLIAPWrapper

from tpgen.networks.conversion.convert import convert
from tpgen.networks.conversion.operations.pairs import take_first_rows
from tpgen.networks.conversion.projects.lammps import ConvertedForLammps
from tpgen.networks.conversion.swap import get_swap_mark


class _ConvolutionOfLocalRows(MLIAPWrappedConvolution):
    """SevenNet's convolution of local atoms."""

    def forward(self, data: Any) -> Any:
        """Exchange ghosts, convolve, keep local rows."""
        count = int(data[keys.MLIAP_NUM_LOCAL_GHOST][0])
        data[keys.NODE_FEATURE] = take_first_rows(data[keys.NODE_FEATURE], count)
        data = self.conv(self.ghost_exchange(data))
        for name in self._keys_to_narrow:
            data[name] = take_first_rows(data[name], count)
        return data


class LammpsSevenNet(ConvertedForLammps, SevenNetMLIAPWrapper):
    """A converted SevenNet model for LAMMPS, built at the first step."""

    def build_model_once(self, _data: Any) -> None:
        """Build and convert the model at the first call."""
        self._ensure_model_initialized()

    def _ensure_model_initialized(self) -> None:
        super()._ensure_model_initialized()
        model: Any = self.model
        if not any(map(get_swap_mark, model.modules())):  # of the steps before
            convert(model, **self.options)
            for module in model.modules():
                if type(module) is MLIAPWrappedConvolution:
                    module.__class__ = _ConvolutionOfLocalRows

    def returns_without_exchange(self, data: Any) -> bool:
        """Whether the rank has no local atoms."""
        return data.nlocal == 0
