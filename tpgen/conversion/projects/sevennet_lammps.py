"""SevenNet in LAMMPS's Python interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sevenn.mliap import SevenNetMLIAPWrapper

from tpgen.conversion.convert import convert
from tpgen.conversion.projects.lammps import Converted
from tpgen.conversion.swap import mark_of


class LammpsSevenNet(Converted, SevenNetMLIAPWrapper):
    """A converted model; stock builds it at the first step."""

    def prepare(self, _data: Any) -> None:
        self._ensure_model_initialized()

    def _ensure_model_initialized(self) -> None:
        super()._ensure_model_initialized()
        model: Any = self.model
        if not any(map(mark_of, model.modules())):  # of the steps before
            convert(model, **self.options)

    def is_idle(self, data: Any) -> bool:
        return data.nlocal == 0


def for_lammps(source: Path, **options: Any) -> LammpsSevenNet:
    """The module that LAMMPS calls, of a checkpoint or the name of a model that SevenNet knows.

    SevenNet builds the model at the first step; it is converted then, with these options of `convert`.
    """
    made = LammpsSevenNet(str(source))
    made.options = options
    return made
