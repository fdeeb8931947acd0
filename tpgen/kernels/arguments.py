"""A call that a kernel is built for, and arguments besides operands and results: sizes, and edges of a convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.form.call import Call
from tpgen.planner.plan import OF_MONOMIALS, OF_PATHS

# bits of `Edges.how`, as kernels/cpp/edges.h has them; above them stand rows of weights
_CHECKED, _NARROW_SRC, _NARROW_DST, _WEIGHTS = 1, 2, 4, 3


class KernelSpec(NamedTuple):
    """A call of a form, in a dtype, of rows or of edges: all that a kernel is built for."""

    description: Any  # `AnyDescription`
    call: Call
    dtype: torch.dtype
    indexed: bool = False


def by_form(paths: Callable[..., Any], monomials: Callable[..., Any]) -> Callable[..., Any]:
    """Choose a function of a `KernelSpec` by what its form consists of."""
    functions = {OF_PATHS: paths, OF_MONOMIALS: monomials}
    return lambda spec, *rest: functions[spec.description.plan.maker.form](spec, *rest)


@dataclass(frozen=True)
class Edges:
    """Source and destination of each edge, int64 or int32, how many rows they point into, and whether to check that.

    Where somebody has sorted them by either, that is given too.
    """

    src: Tensor
    dst: Tensor
    sources: int
    destinations: int
    check: bool
    by_src: Tensor | None = None
    by_dst: Tensor | None = None
    weights: int = 0  # rows of them, where two edges share one

    @property
    def how(self) -> int:
        """Flags that a C++ kernel takes: check the indices, and which of them are int32; and rows of weights."""
        narrow = (self.src.dtype == torch.int32) * _NARROW_SRC | (self.dst.dtype == torch.int32) * _NARROW_DST
        return self.check * _CHECKED | narrow | self.weights << _WEIGHTS


class Sizes(NamedTuple):
    """Rows, elements and channels of a call; the rows of a convolution are its edges."""

    rows: int
    elements: int = 1
    channels: int = 1


class KernelCall(NamedTuple):
    """Tensors of one call of a kernel, each in the order of its slots; sizes and indices."""

    given: Sequence[Tensor]
    opened: Sequence[Tensor]
    sizes: Sizes
    edges: Edges | None = None
    elements: Tensor | None = None  # the element of each row


Kernel = Callable[[KernelCall], int]  # returns a fault, 0 for none


class CallSizes(NamedTuple):
    """Sizes that the scratch memory of a call depends on."""

    device: torch.device
    counts: Sizes
    ends: dict[str, int] | None = None  # by slot: sources of x1, destinations of out
    int32_indices: int = 0
    by_element: bool = False  # whether an index says the element of each row

    def owners(self, owner: str | None) -> int:
        """Count the rows that edges are summed into, for the slot that owns the sums."""
        return (self.ends or {}).get(owner or "", 0)
