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
    """A kernel to build: form, call, dtype, row rules."""

    description: Any  # `AnyDescription`
    call: Call
    dtype: torch.dtype
    rules: RowRules = ()


def dispatch_by_form(paths: Callable[..., Any], monomials: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a `KernelSpec`: ``paths`` for a product, ``monomials`` for a polynomial."""
    functions = {OF_PATHS: paths, OF_MONOMIALS: monomials}
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

    def count_rows_summed_into(self, owner: str | None) -> int:
        """Rows of operand ``owner`` that the call sums into; 0 without an index."""
        index = find_index(self.indices, owner or "")
        return index.size if index else 0


class KernelCall(NamedTuple):
    """Arguments of one kernel call."""

    given: Sequence[Tensor]
    opened: Sequence[Tensor]
    rows: int
    channels: int = 1
    indices: Sequence[RowIndex] = ()

    @property
    def sizes(self) -> CallSizes:
        return CallSizes(self.given[0].device, self.rows, self.channels, self.indices)


Kernel = Callable[[KernelCall], int]  # returns a fault, 0 for none
