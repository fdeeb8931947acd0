"""What a strategy is chosen for, and the choice."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tpgen.form.form import Layout
from tpgen.planner.plan import Plan


@dataclass(frozen=True)
class Choice:
    """A strategy and the reason for it, in words."""

    strategy: str
    reason: str

    def __str__(self) -> str:
        return f"{self.strategy} ({self.reason})"


@dataclass(frozen=True)
class Request:
    """What a strategy is chosen for."""

    plan: Plan
    backend: str = "eager"
    layout: Layout = "mul_ir"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    streams: int = 0
