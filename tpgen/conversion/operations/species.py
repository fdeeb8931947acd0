r"""A linear layer whose matrices depend on the species of each row: rows of one species at a time, by one kernel.

.. math:: L(x, w, g) = \sum_n \langle x_n W_{s(n)}, g_n \rangle

The form is linear in each of the three: see `tpgen.nn.multilinear`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.errors import BackendError, InputError
from tpgen.form.call import Call
from tpgen.kernels.arguments import Sizes
from tpgen.kernels.cpp.generate import FAULTS
from tpgen.kernels.runtime.call import OUT, X1, W, opening_text
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.memory import empty
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.networks.groups import Groups
from tpgen.nn.multilinear import Point, open_slots
from tpgen.planner.plan import Plan

_BITS = (X1, W, OUT)  # of the three slots: features, weights of each species, results


def species_linear(x: Tensor, weight: Tensor, species: Tensor, plan: Plan) -> Tensor:
    """The layer at ``x (rows, in)``, row n with the weights ``weight[species[n]]`` of ``(species, numel)``.

    Differentiable to any order in x and the weights.  ``species`` is int64 ``(rows,)``; returns ``(rows, out)``.
    Raises `InputError` for a species without weights, and for tensors that do not fit.

    >>> from tpgen.planner.linear import make_linear_plan
    >>> plan = make_linear_plan("2x0e", "3x0e")
    >>> species_linear(torch.ones(4, 2), torch.ones(5, 6), torch.tensor([0, 4, 4, 1]), plan).shape
    torch.Size([4, 3])
    """
    _check(x, weight, species, plan)
    layer = _Layer(plan, species, weight.shape[0])
    return open_slots(layer.by_kernel, layer.by_rows, (x, weight, None), (2,))[0]


def grouped_linear(x: Tensor, weight: Tensor, groups: Groups, plan: Plan) -> Tensor:
    """The layer for rows whose groups are known, group n with ``weight[n]``: torch's operations, for a program."""
    given: Any = _Grouped.apply(x, groups)
    made: dict[int, Tensor] = {}
    for path in plan.paths:
        assert path.weight is not None
        (u, w), d = path.weight.shape, path.in1.ir.dim
        copies = given[..., path.in1.start : path.in1.stop].unflatten(-1, (u, d)).transpose(2, 3).flatten(1, 2)
        matrix = path.coefficient * weight[:, path.weight.start : path.weight.stop].unflatten(-1, (u, w))
        found = torch.bmm(copies, matrix).unflatten(1, (-1, d)).transpose(2, 3).flatten(2)
        made[path.out.index] = made[path.out.index] + found if path.out.index in made else found
    ends = enumerate(plan.irreps_out)
    parts = [made[n] if n in made else given.new_zeros(*given.shape[:2], mul * ir.dim) for n, (mul, ir) in ends]
    return _Spread.apply(torch.cat(parts, -1), groups)


class _Grouped(torch.autograd.Function):
    """Rows in the table of their groups, zeros where it has none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Groups) -> Tensor:
        ctx.groups, table = groups, groups.table
        rows = x.index_select(0, table.clamp(min=0).flatten()).unflatten(0, table.shape)
        return torch.where((table >= 0).unsqueeze(-1), rows, 0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return _Spread.apply(g, ctx.groups), None


class _Spread(torch.autograd.Function):
    """Rows as they were before they stood in the table: the adjoint of `_Grouped`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Groups) -> Tensor:
        ctx.groups = groups
        return x.flatten(0, 1).index_select(0, groups.place)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return _Grouped.apply(g, ctx.groups), None


def _check(x: Tensor, weight: Tensor, species: Tensor, plan: Plan) -> None:
    if x.dim() != 2 or x.shape[1] != plan.irreps_in.dim:
        raise InputError(f"x: must have shape (rows, {plan.irreps_in.dim}), got {tuple(x.shape)}")
    if weight.dim() != 2 or weight.shape[1] != plan.weight_numel:
        raise InputError(f"weight: must have shape (species, {plan.weight_numel}), got {tuple(weight.shape)}")
    if species.dtype != torch.int64 or species.shape != x.shape[:1]:
        raise InputError(
            f"species: must be int64 with one number for each of the {x.shape[0]} rows, "
            f"got {species.dtype} of shape {tuple(species.shape)}"
        )


@dataclass(frozen=True, eq=False)
class _Layer:
    """The form for the species of some rows."""

    plan: Plan
    species: Tensor
    number: int

    @cached_property
    def spans(self) -> tuple[tuple[int, int, int], ...]:
        """Species, begin and end among the rows in `order`, of those that have any."""
        low, high = (int(s) for s in torch.aminmax(self.species)) if self.species.numel() else (0, 0)
        if low < 0 or high >= max(self.number, 1):
            last = self.number - 1
            raise InputError(f"species: numbers run from 0 to {last}, got {low} to {high}: give weights for each")
        counts = torch.bincount(self.species, minlength=self.number).tolist()
        ends = list(accumulate(counts))
        return tuple((s, end - n, end) for s, (n, end) in enumerate(zip(counts, ends, strict=True)) if n)

    @cached_property
    def order(self) -> Tensor:
        """The rows, those of one species together."""
        return self.species.argsort(stable=True)

    def by_kernel(self, point: Point, opened: tuple[int, ...]) -> list[Tensor]:
        """The layer's kernel for each species, on rows that stand together."""
        x, w, g = point
        text = opening_text(sum(_BITS[n] for n in opened))
        kernel = kernels_of(describe(self.plan)).kernel(Call.parse(text), x.dtype)
        spans, order, shapes = self.spans, self.order, (x.shape, w.shape, (len(x), self.plan.irreps_out.dim))
        given = _taken(x, order), w.contiguous(), None if g is None else _taken(g, order)
        made = tuple(empty(tuple(s), x.dtype) if n in opened else None for n, s in enumerate(shapes))
        if made[1] is not None and len(spans) < self.number:
            made[1].zero_()
        torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
        for species, begin, end in spans:
            (x, w, g), results = (_of_species(tensors, species, begin, end) for tensors in (given, made))
            operands = x, x, w, None if opened == (2,) else g  # no second input is read
            fault = kernel(_there(operands), _there(results), Sizes(end - begin), None, None)
            if fault:
                raise BackendError(f"a kernel stopped: {FAULTS.get(fault, f'fault {fault}')}; use smaller batches")
        return [x if n == 1 else _put(x, order) for n, x in enumerate(made) if x is not None]

    def by_rows(self, point: Point, opened: tuple[int, ...]) -> list[Tensor]:
        """Open slots by the operators of products, which can be traced and transformed: weights for every row."""
        x, w, g = point
        chosen = nn.functional.one_hot(self.species, self.number).to(w.dtype)
        text, each, none = kernels_of(describe(self.plan)).product.per_row, chosen @ w, x[..., :0]
        if opened == (2,):
            return [torch.ops.tpgen.product(x, none, each, text)]
        found = torch.ops.tpgen.gradients(x, none, each, g, text, sum(_BITS[n] for n in opened))
        return [chosen.T @ out if n == 1 else out for n, out in zip(opened, found, strict=True)]


def _of_species(tensors: Sequence[Tensor | None], species: int, begin: int, end: int) -> tuple[Tensor | None, ...]:
    x, w, g = tensors
    return None if x is None else x[begin:end], None if w is None else w[species], None if g is None else g[begin:end]


def _there(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    return [x for x in tensors if x is not None]


def _taken(x: Tensor, order: Tensor) -> Tensor:
    return torch.index_select(x, 0, order, out=empty(tuple(x.shape), x.dtype))


def _put(x: Tensor, order: Tensor) -> Tensor:
    return empty(tuple(x.shape), x.dtype).index_copy_(0, order, x)
