"""SevenNet as LAMMPS calls it, built from seeds where a checkpoint would be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.networks import sevenn


class Checkpoint(SimpleNamespace):
    """In the place of a SevenNet's checkpoint that is read: builds the same model each time."""

    def build_model(self, **_: Any) -> Any:
        return sevenn(8, torch.float32, **self.size).model
