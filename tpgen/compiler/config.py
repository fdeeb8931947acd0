"""How a product is written and run, and which strategy that comes to."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from tpgen.form.form import Layout


@dataclass(frozen=True)
class Choice:
    """A strategy and the reason for it, in words."""

    strategy: str
    reason: str

    def __str__(self) -> str:
        return f"{self.strategy} ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class Config:
    """How a product is written and run: everything but what it computes.

    ``dynamic``, ``fullgraph`` and ``mode`` are what `torch.compile` is told by the backends that use it.

    >>> Config(backend="inductor", mode="max-autotune").tells_torch_compile
    True
    """

    layout: Layout = "mul_ir"
    strategy: str = "auto"
    backend: str = "eager"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    streams: int = 0
    dynamic: bool | None = None
    fullgraph: bool = False
    mode: str | None = None

    @property
    def device_type(self) -> str:
        return torch.device(self.device).type

    @property
    def tells_torch_compile(self) -> bool:
        """Whether it asks anything of `torch.compile`."""
        return (self.dynamic, self.fullgraph, self.mode) != (None, False, None)


# What a module is told at construction; its dtype and device are those of its tensors.
MODULE_FIELDS = tuple(field.name for field in fields(Config) if field.name not in ("dtype", "device"))
