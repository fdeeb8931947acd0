"""How much a call of a kernel is given: what the bytes that it takes beside operands and results depend on."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Amounts(NamedTuple):
    """Rows of a product; of a convolution its edges, and the rows that each end of them points into."""

    device: torch.device
    rows: int
    ends: dict[str, int] | None = None  # by slot: sources of x1, destinations of out
    narrow: int = 0  # indices of int32

    def owners(self, owner: str | None) -> int:
        """Rows that edges are summed for."""
        return (self.ends or {}).get(owner or "", 0)
