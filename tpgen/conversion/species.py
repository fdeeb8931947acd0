r"""Fully connected products with rows that say a species, as layers with matrices of each species.

A product of features with scalars is a linear layer whose matrices are sums over these scalars.  Where few rows of
scalars occur, as one-hot elements or embeddings of atom types do, the matrices are made once for each of them.  Rows of
one species go through the layer's kernel together:

.. math:: L(x, w, g) = \sum_n \langle x_n W_{s(n)}, g_n \rangle

The form is linear in each of the three: see `tpgen.nn.multilinear`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.conversion.notices import say_once
from tpgen.conversion.obstacles import may_be_kernels
from tpgen.errors import BackendError, InputError
from tpgen.form.call import Call
from tpgen.kernels.arguments import KernelCall, Sizes
from tpgen.kernels.cpp.generate import FAULTS
from tpgen.kernels.runtime.call import OUT, X1, W, opening_text
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.memory import empty
from tpgen.kernels.runtime.native.one_hot import find_ones
from tpgen.kernels.runtime.runtime import kernels_of
from tpgen.kernels.runtime.targets import kernel_supported
from tpgen.locks import cached_property
from tpgen.networks.recording import Groups, Recording, recorded_program
from tpgen.nn.multilinear import Point, has_plain_numbers, linear_map, open_slots
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Path, Plan

WORTH_SPECIES = 2**23  # weights times rows: below, the product itself is as fast, measured


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
    given = _grouped(x, groups)
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
    return _spread(torch.cat(parts, -1), groups)


def _grouped(x: Tensor, groups: Groups) -> Tensor:
    """Rows in the table of their groups, zeros where it has none."""
    return linear_map(x, lambda x: _in_table(x, groups.table), lambda g: _spread(g, groups))


def _in_table(x: Tensor, table: Tensor) -> Tensor:
    rows = x.index_select(0, table.clamp(min=0).flatten()).unflatten(0, table.shape)
    return torch.where((table >= 0).unsqueeze(-1), rows, 0)


def _spread(x: Tensor, groups: Groups) -> Tensor:
    """Rows as they were before they stood in the table: the adjoint of `_grouped`."""
    return linear_map(x, lambda x: x.flatten(0, 1).index_select(0, groups.place), lambda g: _grouped(g, groups))


def pulled_back(function: Callable[..., Tensor], operands: Sequence[Tensor], g: Tensor) -> list[Tensor | None]:
    """Return gradients with respect to the operands of a function, called once more; None where none is needed."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        own = [x.view_as(x) for x in operands]  # each by itself, though two may be the same tensor
        moving = [x for x in own if x.requires_grad]
        found = iter(torch.autograd.grad(function(*own), moving, g, create_graph=again))
    return [next(found) if x.requires_grad else None for x in own]


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
            fault = kernel(KernelCall(_there(operands), _there(results), Sizes(end - begin)))
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


_TRACKED = (
    "products with one-hot rows multiply by all of each row: these rows need a gradient, as MACE's dipoles ask for, "
    "and a choice among the weights gives none; rows that need none choose"
)


@dataclass(frozen=True)
class _Block:
    """The weights of one path, with axes u, v, w, of which v runs over the scalars."""

    shape: tuple[int, int, int]
    pair: int  # the path of the layer that they are part of
    scale: float  # to the coefficient that the layer has

    def matrices(self, weight: Tensor, table: Tensor, one_hot: Tensor | None) -> Tensor:
        """``(species, u * w)``; for one-hot rows a choice among the weights."""
        found = weight.view(self.shape)
        if one_hot is not None:
            return self.scale * found.index_select(1, one_hot).transpose(0, 1).flatten(1)
        scaled = self.scale * table  # for each u by itself: `@` would lay the weights out anew
        return torch.bmm(scaled.expand(self.shape[0], *table.shape), found).transpose(0, 1).flatten(1)


@dataclass(frozen=True)
class SpeciesProduct:
    """A product with scalars alone as its second input, by species: `apply` and `one_hot`."""

    plan: Plan
    blocks: tuple[_Block, ...]

    def apply(self, x: Tensor, weight: Tensor, table: Tensor, species: Tensor) -> Tensor:
        """The product of ``x (rows, in1)`` with ``table[species]``, differentiable in all but the species."""
        return species_linear(x, self._summed(weight, table, None), species, self.plan)

    def apply_grouped(self, x: Tensor, weight: Tensor, table: Tensor, groups: Groups) -> Tensor:
        """The product as `apply`, in a program that is given the rows of each species."""
        return grouped_linear(x, self._summed(weight, table.index_select(0, groups.there), None), groups, self.plan)

    def one_hot(self, x: Tensor, weight: Tensor, y: Tensor) -> Tensor | None:
        """The product with one-hot rows; None where it is not worth it, or some row of ``y`` is none.

        Only where ``y`` needs no gradient, as what is computed does not depend on its other numbers.
        """
        program = recorded_program()
        if program is not None and (found := self._recorded(program, x, weight, y)) is not None:
            return found
        if not all(map(has_plain_numbers, (x, weight, y))):  # first, as sizes of what is traced are symbols
            return None
        if x.dim() != 2 or y.dim() != 2 or len(x) != len(y) or len(x) * weight.numel() < WORTH_SPECIES:
            return None
        if (ones := find_ones(y)) is None:
            return None
        if y.requires_grad:
            say_once(_TRACKED)
            return None
        there, species = torch.unique(ones, return_inverse=True)
        return species_linear(x, self._summed(weight, y, there), species, self.plan)

    @property
    def species(self) -> int:
        """The number of scalars, which is that of the species that one-hot rows tell apart."""
        return self.blocks[0].shape[1]

    def chosen(self, weight: Tensor, there: Tensor) -> Tensor:
        """The matrices of the species that are ``there``, ``(len(there), numel)``."""
        return self._summed(weight, weight, there)

    def parts(self, weight: Tensor, there: Tensor) -> list[Tensor]:
        """The weights of each path that these matrices are made of, as they stand: a matrix each."""
        every = len(there) == self.species
        split = zip(self.blocks, weight.split([prod(block.shape) for block in self.blocks]), strict=True)
        found = [own.view(block.shape) for block, own in split]
        return [(x if every else x.index_select(1, there)).flatten(1) for x in found]

    def _recorded(self, program: Recording, x: Tensor, weight: Tensor, y: Tensor) -> Tensor | None:
        """The product in a program for one-hot rows."""
        groups = program.groups(y) if x.dim() == y.dim() == 2 and x.shape[0] == y.shape[0] else None
        if groups is None or y.requires_grad:
            return None
        return grouped_linear(x, self._summed(weight, y, groups.there), groups, self.plan)

    def _summed(self, weight: Tensor, table: Tensor, one_hot: Tensor | None) -> Tensor:
        """The matrices of each species, paths of the same segments added up."""
        found: dict[int, Tensor] = {}
        weights = weight.split([prod(block.shape) for block in self.blocks])
        for block, own in zip(self.blocks, weights, strict=True):
            part = block.matrices(own, table, one_hot)
            found[block.pair] = found[block.pair] + part if block.pair in found else part
        return torch.cat([found[n] for n in sorted(found)], dim=1)


def species_product(plan: Plan, options: Mapping[str, Any]) -> SpeciesProduct | None:
    """Rewrite a product with scalars as a layer with matrices of each species.

    None where its second input is not scalars of one segment, where a path is no matrix, and where no kernel runs.
    """
    if not may_be_kernels(options):
        return None
    if not plan.shared_weights or len(plan.irreps_in2) != 1 or not plan.paths:
        return None
    if any(p.mode.name != "uvw" or p.weight is None or p.in2.ir.l or p.in2.ir.p < 0 for p in plan.paths):
        return None
    pairs = list(dict.fromkeys((p.in1.index, p.out.index) for p in plan.paths))
    layer = make_linear_plan(plan.irreps_in1, plan.irreps_out, pairs)
    if kernel_supported(layer):
        return None
    blocks = tuple(_block(p, layer, pairs.index((p.in1.index, p.out.index))) for p in plan.paths)
    return SpeciesProduct(layer, blocks)


def _block(path: Path, layer: Plan, pair: int) -> _Block:
    assert path.weight is not None
    coupling = path.in1.ir.dim**-0.5  # of l with 0 to l: the identity, of norm 1
    scale = path.coefficient * coupling / layer.paths[pair].coefficient
    u, v, w = path.weight.shape
    return _Block((u, v, w), pair, scale)
