"""Linear layers joined with products."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tpgen.base.remember import remembered
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.native.one_hot import find_one_hot_columns
from tpgen.kernels.runtime.ops import kernel_layer
from tpgen.kernels.runtime.registration import get_unchecked_apply
from tpgen.kernels.runtime.targets import why_kernel_unsupported
from tpgen.networks.conversion.species import SpeciesProduct, pull_back_gradients
from tpgen.nn.autocast import is_autocasting
from tpgen.nn.plain_tensors import are_plain, count_writes
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import ELEMENT, SHARED, Path, Plan


@dataclass(frozen=True, eq=False)
class JoinedLayers:
    """A linear layer and the following product by species as one layer."""

    product: SpeciesProduct
    plan: Plan
    chains: tuple[tuple[int, Path, Path], ...]  # a path of the plan, and one of each layer that it is made of

    def apply(self, x: Tensor, first: Tensor, second: Tensor, rows: Tensor, factor: float) -> Tensor | None:
        """Apply both layers, with weights ``first`` and ``second``, to ``x`` and one-hot ``rows``, times ``factor``.

        None if rows are not one-hot or need a gradient, or without a kernel.
        """
        if not are_plain(x, first, second, rows) or is_autocasting(x.device) or rows.requires_grad:
            return None
        if x.dim() != 2 or rows.shape != (len(x), self.product.species) or not len(x):
            return None
        if (species := find_one_hot_columns(rows)) is None:
            return None
        chosen, made = self._reuse_or_make_species_matrices(first, second, species, factor)
        if torch.is_grad_enabled() and (first.requires_grad or second.requires_grad):
            made = _with_gradients_of_layers(made, self, chosen, factor, first, second)
        return kernel_layer(x, made, species, describe(self.plan))

    def matrices(self, first: Tensor, second: Tensor, chosen: Tensor, factor: float) -> Tensor:
        """Joined matrices ``(len(chosen), numel)`` of the ``chosen`` species."""
        by_species = self.product.matrices_of(second, chosen)
        found: dict[int, Tensor] = {}
        for n, a, b in self.chains:
            scale = factor * a.coefficient * b.coefficient / self.plan.paths[n].coefficient
            part = (scale * _slice_path_matrix(first, a)) @ _slice_path_matrix(by_species, b)
            found[n] = found[n] + part if n in found else part
        return torch.cat([found[n].flatten(-2) for n in sorted(found)], -1)

    def _reuse_or_make_species_matrices(
        self, first: Tensor, second: Tensor, species: Tensor, factor: float
    ) -> tuple[Tensor, Tensor]:
        """Species seen so far, and matrices of all species, zeros if unseen."""
        known, had, found = _made.get(self, (None, frozenset(), None))
        present = torch.bincount(species).nonzero().flatten().tolist()
        union = had.union(present)
        chosen = torch.tensor(sorted(union))
        state = (
            factor,
            union,
            *map(_memory_and_write_count, (first, second)),
            *self._checksum_weights_of_species(first, second, chosen),
        )
        if found is None or known != state:
            with torch.no_grad():
                some = self.matrices(first, second, chosen, factor)
                found = some.new_zeros(self.product.species, some.shape[1]).index_copy_(0, chosen, some)
            _made[self] = state, union, found
        return chosen, found

    def _checksum_weights_of_species(self, first: Tensor, second: Tensor, chosen: Tensor) -> list[float]:
        # also change with weights written through ``.data``, which torch does not count
        parts = [first.view(1, -1), *self.product.parts(second, chosen)]
        with torch.no_grad():
            return torch.stack(
                [_checksum_vector(len(x), 2, x.dtype) @ x @ _checksum_vector(x.shape[1], 3, x.dtype) for x in parts]
            ).tolist()


# Products of both layers' matrices, made at the first call and after changes of weights.
# Beside the layers, as an attribute would go into pickles of the network.
_made: WeakKeyDictionary[JoinedLayers, tuple[tuple, frozenset[int], Tensor]] = WeakKeyDictionary()


def join_layers(linear: Plan, product: SpeciesProduct) -> JoinedLayers | None:
    """Join a linear layer and a product of its results; None if impossible."""
    if linear.bias_numel or linear.f_in is not None or linear.operand("w").rows != SHARED:
        return None
    if linear.irreps_out != product.plan.irreps_in:
        return None
    found = [(a, b) for a in linear.paths for b in product.plan.paths if a.out.index == b.in1.index]
    pairs = list(dict.fromkeys((a.in1.index, b.out.index) for a, b in found))
    plan = make_linear_plan(linear.irreps_in, product.plan.irreps_out, pairs, shared_weights=ELEMENT)
    if not found or len(plan.paths) != len(pairs) or why_kernel_unsupported(plan):
        return None
    return JoinedLayers(product, plan, tuple((pairs.index((a.in1.index, b.out.index)), a, b) for a, b in found))


def _slice_path_matrix(weights: Tensor, path: Path) -> Tensor:
    assert path.weight is not None
    return weights[..., path.weight.start : path.weight.stop].unflatten(-1, path.weight.shape)


def _memory_and_write_count(x: Tensor) -> tuple:
    return x.dtype, x.data_ptr(), count_writes(x)


@remembered("ramps of sums that tell weights apart", entries=64)
def _checksum_vector(count: int, end: int, dtype: torch.dtype) -> Tensor:
    return torch.linspace(1, end, count, dtype=dtype)


class _JoinedMatrices(torch.autograd.Function):
    """Matrices ``made``, with gradients by both layers' weights."""

    @staticmethod
    def forward(
        ctx: Any, made: Tensor, layers: JoinedLayers, chosen: Tensor, factor: float, first: Tensor, second: Tensor
    ) -> Tensor:
        ctx.save_for_backward(first, second)
        ctx.made_of = layers, chosen, factor
        return made.view_as(made)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        layers, chosen, factor = ctx.made_of
        matrices = partial(layers.matrices, chosen=chosen, factor=factor)
        return (None, None, None, None, *pull_back_gradients(matrices, ctx.saved_tensors, g.index_select(0, chosen)))


_with_gradients_of_layers = get_unchecked_apply(_JoinedMatrices)
