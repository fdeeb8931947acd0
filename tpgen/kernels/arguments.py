"""Arguments of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.form.call import Call
from tpgen.kernels.rows import ELEMENTS, RowIndex, RowRules, find_index
from tpgen.planner.plan import OF_MONOMIALS, OF_PATHS


class KernelSpec(NamedTuple):
    """A kernel to build: description, tensors to read and compute, dtype, row rules."""

    description: Any  # `AnyDescription`
    call: Call
    dtype: torch.dtype
    rules: RowRules = ()


def dispatch_by_form(for_product: Callable[..., Any], for_polynomial: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a `KernelSpec` that calls one of two, other products or polynomials."""
    functions = {OF_PATHS: for_product, OF_MONOMIALS: for_polynomial}
    return lambda spec, *rest: functions[spec.description.plan.maker.form](spec, *rest)


class CallSizes(NamedTuple):
    """Sizes of a call that determine its scratch memory."""

    device: torch.device
    rows: int
    channels: int = 1
    indices: Sequence[RowIndex] = ()

    @property
    def elements(self) -> int:
        """Count of chemical elements with own weights; 1 without index."""
        return next((index.size for index in self.indices if index.rule is ELEMENTS), 1)

    def count_summed_rows(self, operand: str | None) -> int:
        """Rows of an operand that an index sums into; 0 without an index."""
        index = find_index(self.indices, operand or "")
        return index.size if index else 0


class KernelCall(NamedTuple):
    """Tensors, counts and row indices of one kernel call."""

    given: Sequence[Tensor]
    opened: Sequence[Tensor]
    rows: int
    channels: int = 1
    indices: Sequence[RowIndex] = ()

    @property
    def sizes(self) -> CallSizes:
        return CallSizes(self.given[0].device, self.rows, self.channels, self.indices)


Kernel = Callable[[KernelCall], int]  # returns a fault, 0 for none
