"""Fully connected products with scalars, by matrices of each species."""

# For few distinct rows of scalars (elements, atom types) an index selects matrices computed once.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from tpgen.base.locks import cached_property
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.native.one_hot import find_one_hot_columns
from tpgen.kernels.runtime.ops import kernel_layer
from tpgen.kernels.runtime.targets import why_kernel_unsupported
from tpgen.networks.conversion.notices import warn_of_slow_path
from tpgen.networks.conversion.obstacles import allows_kernels
from tpgen.networks.recording import Groups, Recording, recorded_program
from tpgen.nn.plain_tensors import is_plain_tensor
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import ELEMENT, Path, Plan

# Multiply-adds of a product from which on to choose among its weights takes less time, measured: its kernel takes
# some 64 rows at a time, and fewer as long.
WORTH_SPECIES = 10_000_000
_TILE = 64


def pull_back_gradients(
    function: Callable[..., Tensor], operands: Sequence[Tensor], cotangent: Tensor
) -> list[Tensor | None]:
    """Gradients by operands, for cotangent ``cotangent``, from a new call; None if not required."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        own = [x.view_as(x) for x in operands]  # each by itself, though two may be the same tensor
        moving = [x for x in own if x.requires_grad]
        found = iter(torch.autograd.grad(function(*own), moving, cotangent, create_graph=again))
    return [next(found) if x.requires_grad else None for x in own]


_TRACKED = (
    "products with one-hot rows multiply by all of each row: these rows need a gradient, as MACE's dipoles ask for, "
    "and a choice among the weights gives none; rows that need none choose"
)


@dataclass(frozen=True)
class _PathWeightBlock:
    """Weights of one path, ``(u, v, w)`` with v over the scalars."""

    shape: tuple[int, int, int]
    pair: int  # the path of the layer that they are part of
    scale: float  # to the coefficient that the layer has

    def compute_species_matrices(self, weight: Tensor, scalars: Tensor, species: Tensor | None) -> Tensor:
        """A matrix per species, ``(species, u * w)``: weights summed over v times ``scalars``, or v = ``species``."""
        found = weight.view(self.shape)
        if species is not None:
            return self.scale * found.transpose(0, 1).index_select(0, species).flatten(1)
        scaled = self.scale * scalars  # for each u by itself: `@` would lay the weights out anew
        return torch.bmm(scaled.expand(self.shape[0], *scalars.shape), found).transpose(0, 1).flatten(1)


@dataclass(frozen=True)
class SpeciesProduct:
    """A fully connected product with scalars, by one matrix per species."""

    plan: Plan
    blocks: tuple[_PathWeightBlock, ...]

    @cached_property
    def operations_per_row(self) -> int:
        """Multiply-adds per row of the product itself."""
        return sum(prod(block.shape) * self.plan.paths[block.pair].in1.ir.dim for block in self.blocks)

    def is_worth_selecting_matrices(self, rows: int) -> bool:
        """Whether matrices are faster than the product for so many rows."""
        return (rows + _TILE) * self.operations_per_row >= WORTH_SPECIES

    def multiply_by_species(self, x: Tensor, weight: Tensor, scalars: Tensor, species: Tensor) -> Tensor:
        """Fully connected product of ``x (rows, in1)`` and ``scalars[species]``; species get no gradient."""
        chosen, group = torch.unique(species, return_inverse=True)
        return self._multiply_rows_by_species_matrices(
            x, self._sum_path_matrices_of_species(weight, scalars.index_select(0, chosen), None), group
        )

    def multiply_by_groups(self, x: Tensor, weight: Tensor, scalars: Tensor, groups: Groups) -> Tensor:
        """Fully connected product of ``x`` and each row's ``scalars``, with ``groups`` of rows by species."""
        matrices = self._sum_path_matrices_of_species(weight, scalars.index_select(0, groups.species_of_group), None)
        return self._multiply_rows_by_species_matrices(x, matrices, groups.group)

    def multiply_by_one_hot(self, x: Tensor, weight: Tensor, y: Tensor) -> Tensor | None:
        """Fully connected product of ``x`` with one-hot ``y``; None for other, few or differentiated rows."""
        program = recorded_program()
        if program is not None and (found := self._multiply_by_program_groups(program, x, weight, y)) is not None:
            return found
        if not all(map(is_plain_tensor, (x, weight, y))):  # first, as sizes of what is traced are symbols
            return None
        if x.dim() != 2 or y.dim() != 2 or len(x) != len(y) or not self.is_worth_selecting_matrices(len(x)):
            return None
        if (ones := find_one_hot_columns(y)) is None:
            return None
        if y.requires_grad:
            warn_of_slow_path(_TRACKED)
            return None
        chosen, species = torch.unique(ones, return_inverse=True)
        return self._multiply_rows_by_species_matrices(
            x, self._sum_path_matrices_of_species(weight, y, chosen), species
        )

    @property
    def species_count(self) -> int:
        """Number of species: of scalars."""
        return self.blocks[0].shape[1]

    def slice_species_matrices(self, weight: Tensor, species: Tensor) -> Tensor:
        """Matrices ``(len(species), numel)`` for indices ``species``."""
        return self._sum_path_matrices_of_species(weight, weight, species)

    def split_weights_by_path(self, weight: Tensor, species: Tensor) -> list[Tensor]:
        """Weights of each path as a matrix, for indices ``species``."""
        every = len(species) == self.species_count
        split = zip(self.blocks, weight.split([prod(block.shape) for block in self.blocks]), strict=True)
        found = [own.view(block.shape) for block, own in split]
        return [(x if every else x.index_select(1, species)).flatten(1) for x in found]

    def _multiply_by_program_groups(self, program: Recording, x: Tensor, weight: Tensor, y: Tensor) -> Tensor | None:
        if not x.dim() == y.dim() == 2 or x.shape[0] != y.shape[0]:
            return None
        if y.shape[1] == 1:  # which tells no species apart
            return None
        groups = program.groups(y)
        if groups is None or y.requires_grad:
            return None
        return self._multiply_rows_by_species_matrices(
            x, self._sum_path_matrices_of_species(weight, y, groups.species_of_group), groups.group
        )

    def _multiply_rows_by_species_matrices(self, x: Tensor, matrices: Tensor, species: Tensor) -> Tensor:
        return kernel_layer(x, matrices, species, describe(self.plan))

    def _sum_path_matrices_of_species(self, weight: Tensor, scalars: Tensor, species: Tensor | None) -> Tensor:
        # the matrices of each species, paths of the same segments added up
        found: dict[int, Tensor] = {}
        weights = weight.split([prod(block.shape) for block in self.blocks])
        for block, own in zip(self.blocks, weights, strict=True):
            part = block.compute_species_matrices(own, scalars, species)
            found[block.pair] = found[block.pair] + part if block.pair in found else part
        parts = [found[n] for n in sorted(found)]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def make_species_product(plan: Plan, options: Mapping[str, Any]) -> SpeciesProduct | None:
    """`SpeciesProduct` of a plan; None unless kernels run and all paths are `uvw` with one segment of scalars."""
    if not allows_kernels(options):
        return None
    if not plan.shared_weights or len(plan.irreps_in2) != 1 or not plan.paths:
        return None
    if any(p.mode.name != "uvw" or p.weight is None or p.in2.ir.l or p.in2.ir.p < 0 for p in plan.paths):
        return None
    pairs = list(dict.fromkeys((p.in1.index, p.out.index) for p in plan.paths))
    layer = make_linear_plan(plan.irreps_in1, plan.irreps_out, pairs, shared_weights=ELEMENT)
    if why_kernel_unsupported(layer):
        return None
    blocks = tuple(_make_weight_block_of_path(p, layer, pairs.index((p.in1.index, p.out.index))) for p in plan.paths)
    return SpeciesProduct(layer, blocks)


def _make_weight_block_of_path(path: Path, layer_plan: Plan, path_index: int) -> _PathWeightBlock:
    assert path.weight is not None
    coupling = path.in1.ir.dim**-0.5  # of l with 0 to l: the identity, of norm 1
    scale = path.coefficient * coupling / layer_plan.paths[path_index].coefficient
    u, v, w = path.weight.shape
    return _PathWeightBlock((u, v, w), path_index, scale)
