"""Which tensors a call takes and returns: prepared once, as every call of a small polynomial asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tpgen.errors import InputError, PlanError
from tpgen.kernels.libraries.compiler import DTYPES
from tpgen.kernels.operators.targets import devices, polynomial_target_of
from tpgen.kernels.polynomial.call import Call
from tpgen.kernels.polynomial.load import Sizes
from tpgen.planner.polynomial_plan import OUT, PolynomialPlan


class _Given(NamedTuple):
    slot: str
    irreps: str
    dim: int
    channels: bool
    weights: bool


def check_slots(plan: PolynomialPlan, call: Call) -> None:
    """Raise `PlanError` where a slot is none of the polynomial's."""
    names = [o.name for o in plan.operands]
    for slot in (*call.given, *call.opened):
        if slot.operand not in names or slot.levels & ~call.levels:
            raise PlanError(
                f"call {str(call)[:60]!r}: {slot} is no slot of this polynomial; its operands: {', '.join(names)}"
            )


class Signature:
    """The tensors of one call.  Raises `PlanError` where a slot is none of the polynomial's."""

    def __init__(self, plan: PolynomialPlan, call: Call) -> None:
        names = {o.name: o for o in plan.operands}
        check_slots(plan, call)
        self.call = call
        operands = [names[slot.operand] for slot in call.given]
        self.given = tuple(
            _Given(str(slot), str(o.irreps), o.dim, o.channels, o.weights)
            for slot, o in zip(call.given, operands, strict=True)
        )
        if all(g.weights for g in self.given):
            raise PlanError(f"call {str(call)[:60]!r}: one tensor at least must have rows")
        # the given tensor of the same operand, which says the shape, or the numbers of each channel
        first = {slot.operand: n for n, slot in reversed([*enumerate(call.given)])}
        for slot in call.opened:
            if slot.operand not in first and slot.operand != OUT:
                raise PlanError(
                    f"call {str(call)[:60]!r}: {slot} is opened and nothing says its shape: give {slot.operand} too"
                )
        self.opened = tuple((first.get(slot.operand), names[slot.operand].dim) for slot in call.opened)

    def sizes(self, tensors: Sequence[Tensor], index: Tensor | None) -> Sizes:
        """Rows, elements and channels; raises `InputError` where a tensor does not fit."""
        if len(self.given) != len(tensors):
            raise InputError(f"call {str(self.call)[:60]!r} is given {len(self.given)} tensors, got {len(tensors)}")
        rows = elements = channels = None
        for g, x in zip(self.given, tensors, strict=True):
            if x.dim() == 0:
                raise InputError(f"{g.slot}: must have rows, got a number")
            first, *rest = x.shape
            width = 1
            for size in rest:
                width = width * size
            if g.weights:
                elements = _agree(g, "elements", first, elements)
            else:
                rows = _agree(g, "rows", first, rows)
            if g.channels:
                if width % g.dim:
                    raise InputError(
                        f"{g.slot}: a row must be whole channels of {g.dim} ({g.irreps}), got {width} numbers"
                    )
                channels = _agree(g, "channels", width // g.dim, channels)
            elif width != g.dim:
                raise InputError(f"{g.slot}: a row must have {g.dim} numbers ({g.irreps}), got {width}")
        assert rows is not None
        sizes = Sizes(rows, 1 if elements is None else elements, 1 if channels is None else channels)
        _check_index(index, sizes)
        return sizes

    def shapes(self, tensors: Sequence[Tensor], sizes: Sizes) -> list[tuple[int, ...]]:
        """Shapes of the opened slots: those of what is given for the same operand, else one flat row for each."""
        return [
            (sizes.rows, dim * sizes.channels) if given is None else tuple(tensors[given].shape)
            for given, dim in self.opened
        ]

    def dtype(self, tensors: Sequence[Tensor], index: Tensor | None) -> torch.dtype:
        """The dtype of all tensors; raises `InputError` where they differ, or are where no kernel runs."""
        dtype, device = tensors[0].dtype, tensors[0].device
        known = dtype in DTYPES and polynomial_target_of(device.type) is not None
        if not known or any(x.dtype != dtype or x.device != device for x in tensors):
            for g, x in zip(self.given, tensors, strict=True):
                self._check_one(g.slot, x, tensors[0])
        if index is not None and index.device != device:
            raise InputError(f"index must be on {device} as {self.given[0].slot} is, got {index.device}: move it")
        return dtype

    def _check_one(self, slot: str, x: Tensor, first: Tensor) -> None:
        if x.dtype not in DTYPES:
            raise InputError(
                f"{slot} is {_short(x.dtype)}, and kernels compute in float32, float64 or bfloat16: convert it, or use "
                "strategy='einsum', which takes any dtype"
            )
        if x.dtype != first.dtype:
            raise InputError(
                f"{slot} must be {_short(first.dtype)} as {self.given[0].slot} is, got {_short(x.dtype)}: convert one "
                "of them"
            )
        if polynomial_target_of(x.device.type) is None:
            raise InputError(
                f"{slot} must be on {devices(polynomials=True)}, where the kernels run, got {x.device}; move it, or "
                "use strategy='einsum'"
            )
        if x.device != first.device:
            raise InputError(f"{slot} must be on {first.device} as {self.given[0].slot} is, got {x.device}: move it")


def _check_index(index: Tensor | None, sizes: Sizes) -> None:
    if index is None:
        if sizes.elements not in (1, sizes.rows):
            raise InputError(
                f"index: weights of {sizes.elements} elements need the element "
                f"of each of the {sizes.rows} rows (int64); "
                "without an index they are one for all rows, or one for each"
            )
    elif index.dtype != torch.int64 or index.dim() != 1 or index.shape[0] != sizes.rows:
        raise InputError(
            f"index: must be int64 of shape ({sizes.rows},), the element of every row, got {index.dtype} "
            f"{tuple(index.shape)}"
        )


def _agree(given: _Given, what: str, size: int, before: int | None) -> int:
    if before is not None and size != before:
        raise InputError(f"{given.slot}: has {size} {what}, and the tensors before it have {before}: they must agree")
    return size


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
