"""What a strategy is chosen for, and the choice."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tpgen.form.linear import AnyPlan


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

    plan: AnyPlan
    backend: str = "eager"
    layout: str | tuple[str, ...] = "mul_ir"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    streams: int = 0
