"""Options of products, and the chosen strategy."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from typing_extensions import TypedDict

from tpgen.form.form import Layout


@dataclass(frozen=True)
class Choice:
    """A chosen strategy, with the reason."""

    strategy: str
    reason: str

    def __str__(self) -> str:
        return f"{self.strategy} ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class Config:
    """Options for writing and running a product.

    ``dynamic``, ``fullgraph`` and ``mode`` go to `torch.compile`; ``max_bytes`` limits intermediates.

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
        """Whether an option for `torch.compile` is set."""
        return (self.dynamic, self.fullgraph, self.mode) != (None, False, None)


class RunOptions(TypedDict, total=False):
    """`Config` keywords that every module accepts."""

    strategy: str
    backend: str
    dynamic: bool | None
    fullgraph: bool
    mode: str | None
    max_bytes: int | None


RUN_FIELDS = tuple(RunOptions.__annotations__)


class ConvertOptions(RunOptions, total=False):
    """Keywords that `tpgen.convert` passes to modules."""

    streams: int


class ModuleOptions(ConvertOptions, total=False):
    """Keywords of a product."""

    layout: Layout


class ProductOptions(ModuleOptions, total=False):
    """Keywords of a product, with compilation of `right`."""

    compile_right: bool


class LinearOptions(RunOptions, total=False):
    """Keywords of a linear layer."""

    layout: str | tuple[str, ...]


class RequestOptions(ModuleOptions, total=False):
    """Keywords for inspecting a plan."""

    dtype: torch.dtype
    device: str
    channels: int  # of a polynomial, whose plan does not say how many there are
    elements: int  # of its weights, or of those of a linear layer


class StageOptions(RequestOptions, total=False):
    """Keywords of a `dump` stage."""

    rows: int


class DirectionOptions(StageOptions, total=False):
    """Keywords of a `dump` stage of one direction."""

    direction: str


# What a module is told at construction; its dtype and device are those of its tensors.
MODULE_FIELDS = tuple(field.name for field in fields(Config) if field.name not in ("dtype", "device"))
