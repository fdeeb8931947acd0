"""Tensors of a call, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tpgen.base.errors import InputError, PlanError
from tpgen.form.call import Call
from tpgen.kernels.build.compiler import COMPUTED, DTYPES
from tpgen.kernels.rows import DESTINATIONS, GROUPED, INDEXED, PAIRED, ROWS, SHARED, WAYS, RowIndex, RowRules
from tpgen.kernels.runtime.call import FormCall, OperandShape
from tpgen.kernels.runtime.description import AnyDescription
from tpgen.kernels.runtime.pairs import check_edges_per_weight_row
from tpgen.kernels.runtime.targets import devices, target_of
from tpgen.planner.plan import OUT

AxisSizes = dict[str, int]  # by what an axis counts, as far as it is known


class _GivenTensor(NamedTuple):
    slot: str
    shape: OperandShape


class CallSignature:
    """Expected shapes of tensors that a call reads (given) and computes (opened)."""

    def __init__(self, description: AnyDescription, call: Call, rules: RowRules) -> None:
        """Derive expected shapes; raise `PlanError` for a call without rows or shapes."""
        self.parts = description.split_call(call, rules)
        self.call, self.rules, self._description = call, rules, description
        self.groups = description.groups
        shapes = description.operand_shapes(rules)
        self.given = tuple(_GivenTensor(str(slot), shapes[slot.operand]) for slot in call.given)
        order = list(shapes)
        self._order = sorted(range(len(self.given)), key=lambda n: order.index(call.given[n].operand))
        if not any(g.shape.counts == ROWS for g in self.given):
            raise PlanError(f"call {str(call)[:60]!r}: one tensor at least must have rows")
        # the given tensor of the same operand, which says the shape, or the numbers of each channel
        first = {slot.operand: n for n, slot in reversed([*enumerate(call.given)])}
        for slot in call.opened:
            if slot.operand not in first and slot.operand != OUT:
                raise PlanError(
                    f"call {str(call)[:60]!r}: {slot} is opened and nothing says its shape: give {slot.operand} too"
                )
        self.opened = tuple((first.get(slot.operand), shapes[slot.operand]) for slot in call.opened)

    def measure_axes(self, call: FormCall) -> AxisSizes:
        """Sizes of axes (rows, channels, nodes) by name.  Raises `InputError` for tensors that do not fit."""
        tensors = call.tensors
        if len(self.given) != len(tensors):
            raise InputError(f"call {str(self.call)[:60]!r} is given {len(self.given)} tensors, got {len(tensors)}")
        counts: AxisSizes = {}
        for n in self._order:
            g, x = self.given[n], tensors[n]
            (_check_flat_tensor if g.shape.flat else _check_tensor_with_channels)(g, x, counts)
        counts.setdefault("channels", 1)
        for index in call.indices:
            _check_row_rule(index, counts, self.groups)
        return counts

    def result_shapes(self, tensors: Sequence[Tensor], axis_sizes: AxisSizes) -> list[tuple[int, ...]]:
        """Shapes of the tensors that a call computes."""
        return [
            (axis_sizes[shape.counts], shape.dim * (axis_sizes["channels"] if shape.channels else 1))
            if given is None
            else tuple(tensors[given].shape)
            for given, shape in self.opened
        ]

    def check_dtypes_and_devices(self, call: FormCall, rows: int) -> None:
        """Raise `InputError` for mixed or unsupported dtypes and devices, or an invalid index."""
        dtype, device = call.tensors[0].dtype, call.tensors[0].device
        known = dtype in DTYPES and target_of(device.type) is not None
        if not known or any(x.dtype != dtype or x.device != device for x in call.tensors):
            nowhere = all(x.is_meta for x in call.tensors)  # shapes alone are asked for
            for g, x in zip(self.given, call.tensors, strict=True):
                self._check_dtype_and_device(g.slot, x, call.tensors[0], nowhere)
        for index in (index for index in call.indices if index.tensor is not None):
            _check_index_tensor(index, rows, self.given[0].slot, device)

    def _check_dtype_and_device(self, slot: str, x: Tensor, first: Tensor, any_device: bool) -> None:
        name, other = self.given[0].slot, self._description
        if x.dtype not in DTYPES:
            raise InputError(
                f"{slot} is {_dtype_name(x.dtype)}, and {COMPUTED}: {other.other_dtypes}, which takes any dtype"
            )
        if x.dtype != first.dtype:
            raise InputError(
                f"{slot} must be {_dtype_name(first.dtype)} as {name} is, got {_dtype_name(x.dtype)}: "
                "convert one of them"
            )
        if target_of(x.device.type) is None and not any_device:
            raise InputError(
                f"{slot} must be on {devices()}, where the kernels run, got {x.device}; move it, or use "
                f"{other.other_devices}"
            )
        if x.device != first.device:
            raise InputError(f"{slot} must be on {first.device} as {name} is, got {x.device}: move one of them")


def _check_flat_tensor(expected: _GivenTensor, x: Tensor, axis_sizes: AxisSizes) -> None:
    # an empty operand may have any shape
    slot, (dim, what, *_), shape = expected.slot, expected.shape, x.shape
    known = axis_sizes.get(what)
    if what == SHARED:
        fits = len(shape) == 1 and shape[0] == dim
    else:
        fits = len(shape) == 2 and shape[1] == dim and (known is None or shape[0] == known)
    if fits:
        axis_sizes.setdefault(what, shape[0])
    elif not (slot.startswith("w") and dim == 0 and 0 in shape):
        count = (what if what != ROWS and slot.startswith("w") else ROWS) if known is None else known
        wanted = f"({dim},), shared by all rows" if what == SHARED else f"({count}, {dim})"
        raise InputError(f"{slot} must have shape {wanted}, got {tuple(shape)}")


def _check_tensor_with_channels(expected: _GivenTensor, x: Tensor, axis_sizes: AxisSizes) -> None:
    slot, (dim, what, irreps, channels, _) = expected
    if x.dim() == 0:
        raise InputError(f"{slot}: must have rows, got a number")
    first, *rest = x.shape
    width = 1
    for size in rest:
        width = width * size
    _record_or_check_axis_size(slot, what, first, axis_sizes)
    if channels:
        if width % dim:
            raise InputError(f"{slot}: a row must be whole channels of {dim} ({irreps}), got {width} numbers")
        _record_or_check_axis_size(slot, "channels", width // dim, axis_sizes)
    elif width != dim:
        raise InputError(f"{slot}: a row must have {dim} numbers ({irreps}), got {width}")


def _record_or_check_axis_size(slot: str, axis: str, size: int, axis_sizes: AxisSizes) -> None:
    before = axis_sizes.setdefault(axis, size)
    if size != before:
        raise InputError(f"{slot}: has {size} {axis}, and the tensors before it have {before}: they must agree")


def _check_row_rule(index: RowIndex, axis_sizes: AxisSizes, groups_without_index: bool) -> None:
    rule, rows = index.rule, axis_sizes[ROWS]
    if index.tensor is None and (rule.way == INDEXED or (rule.way == GROUPED and not groups_without_index)):
        raise InputError(f"{rule.argument}: give it too, an index of {rule.into} for every row")
    if rule is DESTINATIONS and axis_sizes.setdefault(rule.into, index.size) < 0:
        raise InputError(f"num_nodes must not be negative, got {index.size}")
    if rule.way == PAIRED and rule.into in axis_sizes:
        check_edges_per_weight_row(rows, axis_sizes[rule.into])
    if rule.way == GROUPED:
        count = axis_sizes.setdefault(rule.into, 1)
        if index.tensor is None and count not in (1, rows):
            raise InputError(
                f"{rule.argument}: weights of {count} {rule.into} need the element of each of the {rows} rows "
                "(int64); without an index they are one for all rows, or one for each"
            )


def _check_index_tensor(index: RowIndex, rows: int, first_slot: str, device: torch.device) -> None:
    x, name, dtypes = index.tensor, index.rule.argument, index.rule.dtypes
    assert x is not None
    if x.dtype not in dtypes:
        wanted = " or ".join(map(_dtype_name, dtypes))
        raise InputError(f"{name} must be {wanted}, got {x.dtype}: convert it with {name}.long()")
    if tuple(x.shape) != (rows,):
        raise InputError(f"{name} must have shape ({rows},), one index for every row, got {tuple(x.shape)}")
    if x.device != device:
        raise InputError(f"{name} must be on {device} as {first_slot} is, got {x.device}: move it")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def encode_signature_for_cpp(signature: CallSignature, check_index: bool) -> Sequence[Sequence[Sequence[int]]]:
    """Encode a signature as C++'s ``struct Given``, ``Opened`` and ``Rule``, with axes as numbers."""
    axes = [ROWS, SHARED, *(rule.into for rule in signature.rules)]
    given = [(s.dim, int(s.channels), axes.index(s.counts), int(s.flat)) for _, s in signature.given]
    opened = [(-1 if n is None else n, s.dim, int(s.channels), axes.index(s.counts)) for n, s in signature.opened]
    ways = {GROUPED: GROUPED if signature.groups else INDEXED}
    rules = [(WAYS.index(ways.get(r.way, r.way)), int(r.narrow), int(r.checked(check_index))) for r in signature.rules]
    return given, opened, rules
