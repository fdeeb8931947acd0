"""A polynomial's sweep, run statement by statement on tensors: the oracle of what is generated."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tpgen.kernels.interpreter.statements import Memory, run_statements
from tpgen.kernels.sweep.monomials import PolynomialSweep, reads, stored_value
from tpgen.kernels.sweep.statements import Component

Shape = tuple[int, int, int]  # rows (or elements), components, channels


def interpret(
    sweep: PolynomialSweep, given: Mapping[str, Tensor], shapes: Mapping[str, Shape], index: Tensor
) -> dict[str, Tensor]:
    """The open slots of a sweep, by name, in the ``shapes`` asked for.

    ``given`` are the tensors by slot, ``[row, component, channel]``, or ``[element, component, channel]`` for
    weights, with the element of every row in ``index``.
    """
    weights = {v.operand for v in reads(sweep.prologue) | reads(sweep.epilogue) if isinstance(v, Component)}
    rows = {slot: x[index] if slot in weights else x for slot, x in given.items()}
    memory: Memory = {Component(slot, 0, i): x[:, i] for slot, x in rows.items() for i in range(x.shape[1])}
    opened = run_statements(sweep.statements, memory)
    summed = {v.operand for v in map(stored_value, sweep.epilogue) if isinstance(v, Component)}
    return {slot: _collected(slot, shape, opened, index if slot in summed else None) for slot, shape in shapes.items()}


def _collected(slot: str, shape: Shape, opened: Mapping[Component, Tensor], index: Tensor | None) -> Tensor:
    """A slot's components as one tensor; summed over the rows of an element, or over channels, where it has fewer."""
    like = next(iter(opened.values()))
    rows = shape[0] if index is None else len(index)
    parts = [torch.as_tensor(opened.get(Component(slot, 0, i), like.new_zeros(()))) for i in range(shape[1])]
    channels = max((p.shape[-1] for p in parts if p.dim()), default=shape[2])
    whole = torch.stack([p.expand(rows, channels) for p in parts], 1)
    if index is not None:
        whole = whole.new_zeros(shape[0], *whole.shape[1:]).index_add(0, index, whole)
    return whole.sum(-1, keepdim=True) if shape[2] < channels else whole
