"""PyTorch operations in place of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tpgen.form.contraction import Contraction, Factor
from tpgen.form.derivative import list_call_parts, sum_call_parts
from tpgen.form.form import ROW, Form, Term
from tpgen.form.polynomial import flatten_operand, unflatten_operand
from tpgen.kernels.arguments import Kernel, KernelCall, KernelSpec, dispatch_by_form
from tpgen.kernels.rows import find_index_fault
from tpgen.kernels.runtime.pairs import gather_operand_rows, sum_to_operand_rows
from tpgen.kernels.sweep.monomials import PolynomialSweep, values_read
from tpgen.kernels.sweep.statements import Component, ValueMemory, run_statements
from tpgen.kernels.sweep.terms import SLOTS
from tpgen.planner.plan import SHARED, Operand

# -- products ----------------------------------------------------------------------------------------------------------


def _make_pytorch_product_kernel(spec: KernelSpec) -> Kernel:
    form = spec.description.form
    rows = tuple(replace(o, rows=o.rows if o.rows == SHARED else ROW) for o in form.operands)
    form = replace(form, operands=rows)
    parts, names = list_call_parts(spec.call, SLOTS), [slot.operand for slot in spec.call.given]

    def run_in_pytorch(call: KernelCall) -> int:
        """Compute a call's results in place by PyTorch; return a fault code, or 0."""
        if fault := find_index_fault(call.indices):
            return fault
        own = {index.rule.operand: index for index in call.indices}
        # nothing reads one without numbers, and it may have no rows
        given = [
            gather_operand_rows(own[name], _bfloat16_as_float32(x), call.rows)
            if name in own and x.shape[-1]
            else _bfloat16_as_float32(x)
            for name, x in zip(names, call.given, strict=True)
        ]
        evaluate = partial(_compute_derivatives_by_einsums, form, call.rows)
        sums = sum_call_parts(parts, given, len(call.opened), evaluate)
        for slot, total, x in zip(spec.call.opened, sums, call.opened, strict=True):
            index = own.get(slot.operand)
            x.zero_() if total is None or not x.numel() else x.copy_(
                sum_to_operand_rows(index, total) if index else total
            )
        return 0

    return run_in_pytorch


def _compute_derivatives_by_einsums(
    form: Form,
    rows: int,
    raised_operands: tuple[int, ...],
    operand_values: Sequence[Any],
    computed_operands: tuple[int, ...],
) -> list[Tensor]:
    # only paths that read all raised operands
    read = form.keep_terms_that_read(*((SLOTS[n],) for n in raised_operands))
    given = dict(zip(SLOTS, operand_values, strict=True))
    return [_compute_derivative_by_einsums(read, SLOTS[n], given, rows) for n in computed_operands]


def _compute_derivative_by_einsums(
    form: Form, computed_operand: str, tensors: Mapping[str, Tensor | None], rows: int
) -> Tensor:
    own = next((operand for operand in form.operands if operand.name == computed_operand), None)
    like = next(x for x in tensors.values() if x is not None)
    if own is None:  # a layer's second input, which has no entries
        return like.new_zeros(rows, 0)
    out = like.new_zeros(*((rows,) if own.row else ()), own.dim)
    at_slot = form.open(computed_operand)
    for term in at_slot.live_terms:
        c = at_slot.contraction(term)
        operands = [_make_einsum_input(form, term, c, factor, tensors, like) for factor in c.factors]
        start, stop = own.segments[term.segment(computed_operand)]
        block = out.narrow(-1, start, stop - start)
        block += (c.coefficient * torch.einsum(c.equation, *operands)).reshape(block.shape)
    return out


def _make_einsum_input(
    form: Form, term: Term, contraction: Contraction, factor: Factor, tensors: Mapping[str, Tensor | None], like: Tensor
) -> Tensor:
    if not isinstance(factor.source, str):
        return torch.tensor(np.asarray(factor.source.array()), dtype=like.dtype, device=like.device)
    x, own = tensors[factor.source], form.operand(factor.source)
    assert x is not None
    start, stop = own.segments[term.segment(factor.source)]
    return x.narrow(-1, start, stop - start).reshape(
        *(x.shape[:1] if own.row else ()), *contraction.shape(factor.letters)
    )


def _bfloat16_as_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x


# -- polynomials -------------------------------------------------------------------------------------------------------

_Extent = tuple[int, int, int]  # rows (or elements), components, channels


def _make_pytorch_polynomial_kernel(spec: KernelSpec) -> Kernel:
    plan, slots = spec.description.plan, spec.call

    def run_in_pytorch(call: KernelCall) -> int:
        """Compute a call's results in place by PyTorch; return a fault code, or 0."""
        index, like = call.indices[0].tensor, call.given[0]
        if fault := find_index_fault(call.indices):
            return fault
        if index is None:
            every = torch.arange(call.rows, device=like.device)
            index = every if call.sizes.elements == call.rows else torch.zeros_like(every)
        pairs = zip(slots.given, call.given, strict=True)
        tensors = {
            str(slot): _view_by_row_component_channel(plan.operand(slot.operand), _bfloat16_as_float32(x))
            for slot, x in pairs
        }
        results = [plan.operand(slot.operand) for slot in slots.opened]
        shapes = {str(slot): _slot_extent(o, call) for slot, o in zip(slots.opened, results, strict=True)}
        found = _run_polynomial_sweep(spec.description.statements(slots), tensors, shapes, index)
        for slot, o, x in zip(slots.opened, results, call.opened, strict=True):
            value = found[str(slot)].transpose(1, 2)
            x.copy_((value.transpose(1, 2) if o.weights else flatten_operand(o, value)).reshape(x.shape))
        return 0

    return run_in_pytorch


def _run_polynomial_sweep(
    sweep: PolynomialSweep, operand_tensors: Mapping[str, Tensor], shapes: Mapping[str, _Extent], index: Tensor
) -> dict[str, Tensor]:
    # operands are [row or element, component, channel] by slot; the index is each row's element
    weights = {v.operand for v in values_read(sweep.prologue) | values_read(sweep.epilogue) if isinstance(v, Component)}
    rows = {slot: x[index] if slot in weights else x for slot, x in operand_tensors.items()}
    memory: ValueMemory = {Component(slot, 0, i): x[:, i] for slot, x in rows.items() for i in range(x.shape[1])}
    opened = run_statements(sweep.statements, memory)
    summed = {s.target.operand for s in sweep.epilogue}
    zero = next(iter(operand_tensors.values())).new_zeros(())
    return {
        slot: _assemble_slot_tensor(slot, shape, opened, zero, index if slot in summed else None)
        for slot, shape in shapes.items()
    }


def _assemble_slot_tensor(
    slot: str, shape: _Extent, values: Mapping[Component, Any], zero: Tensor, index: Tensor | None
) -> Tensor:
    # summed over the rows of an element, or over channels, for a shape with fewer
    rows = shape[0] if index is None else len(index)
    parts = [zero + values.get(Component(slot, 0, i), zero) for i in range(shape[1])]
    channels = max((p.shape[-1] for p in parts if p.dim()), default=shape[2])
    whole = torch.stack([p.expand(rows, channels) for p in parts], 1)
    if index is not None:
        whole = whole.new_zeros(shape[0], *whole.shape[1:]).index_add(0, index, whole)
    return whole.sum(-1, keepdim=True) if shape[2] < channels else whole


def _view_by_row_component_channel(operand: Operand, x: Tensor) -> Tensor:
    return unflatten_operand(operand, x).transpose(1, 2)


def _slot_extent(operand: Operand, call: KernelCall) -> _Extent:
    return call.sizes.elements if operand.weights else call.rows, operand.dim, call.channels if operand.channels else 1


make_pytorch_kernel = dispatch_by_form(_make_pytorch_product_kernel, _make_pytorch_polynomial_kernel)
