"""Options of how a product is written and run, and the strategy that they come to."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from typing_extensions import TypedDict

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
    """Options of how a product is written and run: everything but what it computes.

    ``dynamic``, ``fullgraph`` and ``mode`` are what `torch.compile` is told by the backends that use it.  ``max_bytes``
    limits what a program keeps on the way (`tpgen.compiler.chunks`).

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
    max_bytes: int | None = None

    @property
    def device_type(self) -> str:
        return torch.device(self.device).type

    @property
    def tells_torch_compile(self) -> bool:
        """Whether it asks anything of `torch.compile`."""
        return (self.dynamic, self.fullgraph, self.mode) != (None, False, None)


class RunOptions(TypedDict, total=False):
    """Fields of `Config` that every module takes as keywords; what is left out is `Config`'s default."""

    strategy: str
    backend: str
    dynamic: bool | None
    fullgraph: bool
    mode: str | None
    max_bytes: int | None


RUN_FIELDS = tuple(RunOptions.__annotations__)


class ConvertOptions(RunOptions, total=False):
    """Options that `tpgen.convert` hands to the modules of a network."""

    streams: int


class ModuleOptions(ConvertOptions, total=False):
    """Options of a product."""

    layout: Layout


class ProductOptions(ModuleOptions, total=False):
    """Options of the module of a plan."""

    compile_right: bool


class LinearOptions(RunOptions, total=False):
    """Options of a linear layer."""

    layout: str | tuple[str, ...]


class RequestOptions(ModuleOptions, total=False):
    """Options of an inspection of a plan, which has no tensors that say its dtype and device."""

    dtype: torch.dtype
    device: str
    channels: int  # of a polynomial, whose plan does not say how many there are
    elements: int  # of its weights, or of those of a linear layer


class StageOptions(RequestOptions, total=False):
    """Options of a stage of `dump`, with the rows that it is traced with where it needs some."""

    rows: int


class DirectionOptions(StageOptions, total=False):
    """Options of a stage of `dump` of one direction of the product."""

    direction: str


# What a module is told at construction; its dtype and device are those of its tensors.
MODULE_FIELDS = tuple(field.name for field in fields(Config) if field.name not in ("dtype", "device"))
