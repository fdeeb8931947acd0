"""A call that a kernel is built for, and what it is called with: tensors, sizes, and how rows are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.form.call import Call
from tpgen.kernels.rows import ELEMENTS, RowIndex, Rules, index_at
from tpgen.planner.plan import OF_MONOMIALS, OF_PATHS


class KernelSpec(NamedTuple):
    """A call of a form, in a dtype, by rules of rows: all that a kernel is built for."""

    description: Any  # `AnyDescription`
    call: Call
    dtype: torch.dtype
    rules: Rules = ()


def by_form(paths: Callable[..., Any], monomials: Callable[..., Any]) -> Callable[..., Any]:
    """Choose a function of a `KernelSpec` by what its form consists of."""
    functions = {OF_PATHS: paths, OF_MONOMIALS: monomials}
    return lambda spec, *rest: functions[spec.description.plan.maker.form](spec, *rest)


class KernelCall(NamedTuple):
    """Tensors of one call of a kernel, each in the order of its slots; rows, channels, and the indices of its rules."""

    given: Sequence[Tensor]
    opened: Sequence[Tensor]
    rows: int
    channels: int = 1
    indices: Sequence[RowIndex] = ()

    @property
    def elements(self) -> int:
        return _elements_of(self.indices)


Kernel = Callable[[KernelCall], int]  # returns a fault, 0 for none


class CallSizes(NamedTuple):
    """Sizes that the scratch memory of a call depends on."""

    device: torch.device
    rows: int
    channels: int = 1
    indices: Sequence[RowIndex] = ()

    @property
    def elements(self) -> int:
        return _elements_of(self.indices)

    def owners(self, owner: str | None) -> int:
        """Count the rows that those of a call are summed into, for the operand that owns the sums."""
        index = index_at(self.indices, owner or "")
        return index.size if index else 0


def _elements_of(indices: Sequence[RowIndex]) -> int:
    return next((index.size for index in indices if index.rule is ELEMENTS), 1)
