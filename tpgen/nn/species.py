r"""A linear layer whose matrices depend on the species of each row: rows of one species at a time, by one kernel.

.. math:: L(x, w, g) = \sum_n \langle x_n W_{s(n)}, g_n \rangle

The form is linear in each of the three, so its derivatives of every order are calls with another slot open:
`tpgen.form.derivative`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import _C, Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from tpgen.errors import BackendError, InputError
from tpgen.form.derivative import pull_back, push_forward
from tpgen.kernels.cpp.generate import FAULTS
from tpgen.kernels.operators.call import OUT, X1, W
from tpgen.kernels.operators.description import describe, read_description
from tpgen.kernels.operators.memory import empty
from tpgen.kernels.operators.registration import added, asked_for
from tpgen.kernels.operators.runtime import product_of
from tpgen.planner.linear import LinearPlan

_BITS = (X1, W, OUT)  # of the three slots: features, weights of each species, results
_DTYPES = (torch.float32, torch.float64)


def species_linear(x: Tensor, weight: Tensor, species: Tensor, plan: LinearPlan) -> Tensor:
    """The layer at ``x (rows, in)``, row n with the weights ``weight[species[n]]`` of ``(species, numel)``.

    Differentiable to any order in x and the weights.  ``species`` is int64 ``(rows,)``; returns ``(rows, out)``.
    Raises `InputError` for a species without weights, and for tensors that do not fit.

    >>> from tpgen.planner.linear import make_linear_plan
    >>> plan = make_linear_plan("2x0e", "3x0e")
    >>> species_linear(torch.ones(4, 2), torch.ones(5, 6), torch.tensor([0, 4, 4, 1]), plan).shape
    torch.Size([4, 3])
    """
    _check(x, weight, species, plan)
    if not all(map(is_plain, (x, weight))):
        return _by_rows(plan, species, weight.shape[0], (x, weight, None), (2,))[0]
    (found,) = _SpeciesLinear.apply(plan, _grouped(species, weight.shape[0]), (2,), x, weight, None)
    return found


def is_plain(x: Tensor) -> bool:
    """Whether a tensor is numbers at hand that a kernel takes: nothing is traced, transformed or compiled."""
    return (
        type(x) in (Tensor, nn.Parameter)
        and x.device.type == "cpu"
        and x.dtype in _DTYPES
        and not is_functorch_wrapped_tensor(x)
        and not _C._functorch.is_legacy_batchedtensor(x)
        and not torch.jit.is_tracing()
        and _get_current_dispatch_mode() is None
    )


def _check(x: Tensor, weight: Tensor, species: Tensor, plan: LinearPlan) -> None:
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
class _Groups:
    """Which rows are of which species."""

    species: Tensor
    number: int
    order: Tensor  # of the rows, those of one species together
    spans: tuple[tuple[int, int, int], ...]  # species, begin and end in that order, of those that have rows


def _grouped(species: Tensor, number: int) -> _Groups:
    low, high = (int(s) for s in torch.aminmax(species)) if species.numel() else (0, 0)
    if low < 0 or high >= max(number, 1):
        raise InputError(f"species: numbers run from 0 to {number - 1}, got {low} to {high}: give weights for each")
    counts = torch.bincount(species, minlength=number).tolist()
    spans, at = [], 0
    for s, count in enumerate(counts):
        if count:
            spans.append((s, at, at + count))
        at += count
    return _Groups(species, number, species.argsort(stable=True), tuple(spans))


# -- derivatives -------------------------------------------------------------------------------------------------------

Point = Sequence[Any]  # features, weights and cotangents; these are None where they are open alone


class _SpeciesLinear(torch.autograd.Function):
    """The open slots of the form."""

    @staticmethod
    def forward(ctx: Any, plan: LinearPlan, groups: _Groups, opened: tuple[int, ...], *point: Any) -> tuple:
        ctx.save_for_backward(*point)
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(*point)
        ctx.form = plan, groups, opened
        ctx.set_materialize_grads(False)
        return tuple(_by_kernel(plan, groups, point, opened))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
        possible = ctx.needs_input_grad[3:]
        # the nodes behind the tensors among the inputs, so none for a cotangent that is not there
        wanted = tuple(n for n, yes in enumerate(asked_for(possible, ctx.next_functions)) if yes)
        return (None, None, None, *pull_back(_at(ctx), ctx.saved_tensors, ctx.form[2], cotangents, wanted, added))

    @staticmethod
    def jvp(ctx: Any, _plan: Any, _groups: Any, _opened: Any, *tangents: Tensor | None) -> tuple:
        point, opened = ctx.saved_tensors, ctx.form[2]
        found = push_forward(_at(ctx), point, opened, tangents)
        return tuple(torch.zeros_like(point[n]) if t is None else t for n, t in zip(opened, found, strict=True))


def _at(ctx: Any) -> Any:
    plan, groups, _ = ctx.form

    def evaluate(_replaced: int, moved: Point, opened: tuple[int, ...]) -> Sequence[Tensor]:
        if all(is_plain(x) for x in moved if x is not None):
            return _SpeciesLinear.apply(plan, groups, opened, *moved)
        return _by_rows(plan, groups.species, groups.number, moved, opened)

    return evaluate


# -- evaluation --------------------------------------------------------------------------------------------------------


def _by_kernel(plan: LinearPlan, groups: _Groups, point: Point, opened: tuple[int, ...]) -> list[Tensor]:
    """The layer's kernel for each species, on rows that stand together."""
    x, w, g = point
    kernel = product_of(describe(plan)).kernel(sum(_BITS[n] for n in opened), x.dtype, False, "cpu")
    sides = plan.irreps_in.dim, plan.weight_numel, plan.irreps_out.dim
    given = _taken(x, groups.order), w.contiguous(), None if g is None else _taken(g, groups.order)
    made = tuple(
        empty((groups.number if n == 1 else len(x), side), x.dtype) if n in opened else None
        for n, side in enumerate(sides)
    )
    if made[1] is not None and len(groups.spans) < groups.number:
        made[1].zero_()
    torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
    for species, begin, end in groups.spans:
        (x, w, g), results = (_of_species(tensors, species, begin, end) for tensors in (given, made))
        fault = kernel((x, x, w, g), (results[0], None, *results[1:]), end - begin, None)  # there is no second input
        if fault:
            raise BackendError(f"a kernel stopped: {FAULTS.get(fault, f'fault {fault}')}; use smaller batches")
    return [x if n == 1 else _put(x, groups.order) for n, x in enumerate(made) if x is not None]


def _of_species(tensors: Sequence[Tensor | None], species: int, begin: int, end: int) -> tuple[Tensor | None, ...]:
    x, w, g = tensors
    return None if x is None else x[begin:end], None if w is None else w[species], None if g is None else g[begin:end]


def _taken(x: Tensor, order: Tensor) -> Tensor:
    return torch.index_select(x, 0, order, out=empty(tuple(x.shape), x.dtype))


def _put(x: Tensor, order: Tensor) -> Tensor:
    return empty(tuple(x.shape), x.dtype).index_copy_(0, order, x)


def _by_rows(plan: LinearPlan, species: Tensor, number: int, point: Point, opened: tuple[int, ...]) -> list[Tensor]:
    """The same by the operators of products, which all of torch's machinery follows: weights written for every row."""
    x, w, g = point
    chosen = nn.functional.one_hot(species, number).to(w.dtype)
    text, each, none = read_description(describe(plan)).per_row, chosen @ w, x[..., :0]
    if opened == (2,):
        return [torch.ops.tpgen.product(x, none, each, text)]
    found = torch.ops.tpgen.gradients(x, none, each, g, text, sum(_BITS[n] for n in opened))
    return [chosen.T @ out if n == 1 else out for n, out in zip(opened, found, strict=True)]
