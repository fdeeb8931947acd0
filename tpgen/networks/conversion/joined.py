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
    """A linear layer, and the following product with one-hot species, as one matrix per species."""

    product: SpeciesProduct
    plan: Plan
    chains: tuple[tuple[int, Path, Path], ...]  # a path of the plan, and one of each layer that it is made of

    def apply_both_layers(
        self, x: Tensor, first_weight: Tensor, second_weight: Tensor, one_hot: Tensor, factor: float
    ) -> Tensor | None:
        """Both layers' results for ``x`` and species ``one_hot (rows, species)``, times ``factor``.

        None if rows are not one-hot or need gradients, or without kernel.
        """
        if not are_plain(x, first_weight, second_weight, one_hot) or is_autocasting(x.device) or one_hot.requires_grad:
            return None
        if x.dim() != 2 or one_hot.shape != (len(x), self.product.species_count) or not len(x):
            return None
        if (species := find_one_hot_columns(one_hot)) is None:
            return None
        chosen, made = self._get_seen_species_and_cached_matrices(first_weight, second_weight, species, factor)
        if torch.is_grad_enabled() and (first_weight.requires_grad or second_weight.requires_grad):
            made = _with_gradients_of_layers(made, self, chosen, factor, first_weight, second_weight)
        return kernel_layer(x, made, species, describe(self.plan))

    def compute_species_matrices(
        self, first_weight: Tensor, second_weight: Tensor, species: Tensor, factor: float
    ) -> Tensor:
        """Products ``(len(species), numel)`` of both layers' matrices."""
        by_species = self.product.slice_species_matrices(second_weight, species)
        found: dict[int, Tensor] = {}
        for n, a, b in self.chains:
            scale = factor * a.coefficient * b.coefficient / self.plan.paths[n].coefficient
            part = (scale * _slice_path_matrix(first_weight, a)) @ _slice_path_matrix(by_species, b)
            found[n] = found[n] + part if n in found else part
        return torch.cat([found[n].flatten(-2) for n in sorted(found)], -1)

    def _get_seen_species_and_cached_matrices(
        self, first_weight: Tensor, second_weight: Tensor, species: Tensor, factor: float
    ) -> tuple[Tensor, Tensor]:
        # species seen so far, and matrices of all species, zeros if unseen
        known, had, found = _made.get(self, (None, frozenset(), None))
        present = torch.bincount(species).nonzero().flatten().tolist()
        union = had.union(present)
        chosen = torch.tensor(sorted(union))
        state = (
            factor,
            union,
            *map(_get_dtype_address_and_write_count, (first_weight, second_weight)),
            *self._checksum_each_weight_matrix(first_weight, second_weight, chosen),
        )
        if found is None or known != state:
            with torch.no_grad():
                some = self.compute_species_matrices(first_weight, second_weight, chosen, factor)
                found = some.new_zeros(self.product.species_count, some.shape[1]).index_copy_(0, chosen, some)
            _made[self] = state, union, found
        return chosen, found

    def _checksum_each_weight_matrix(self, first_weight: Tensor, second_weight: Tensor, species: Tensor) -> list[float]:
        # also change with weights written through ``.data``, which torch does not count
        parts = [first_weight.view(1, -1), *self.product.split_weights_by_path(second_weight, species)]
        with torch.no_grad():
            return torch.stack(
                [_checksum_vector(len(x), 2, x.dtype) @ x @ _checksum_vector(x.shape[1], 3, x.dtype) for x in parts]
            ).tolist()


# Products of both layers' matrices, made at the first call and after changes of weights.
# Beside the layers, as an attribute would go into pickles of the network.
_made: WeakKeyDictionary[JoinedLayers, tuple[tuple, frozenset[int], Tensor]] = WeakKeyDictionary()


def join_linear_and_product(linear: Plan, product: SpeciesProduct) -> JoinedLayers | None:
    """Join a linear layer and the following product; None if impossible."""
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


def _get_dtype_address_and_write_count(x: Tensor) -> tuple:
    return x.dtype, x.data_ptr(), count_writes(x)


@remembered("ramps of sums that tell weights apart", entries=64)
def _checksum_vector(count: int, end: int, dtype: torch.dtype) -> Tensor:
    return torch.linspace(1, end, count, dtype=dtype)


class _MatricesWithWeightGradients(torch.autograd.Function):
    """Identity of ``matrices``, with gradients by both layers' weights."""

    @staticmethod
    def forward(
        ctx: Any,
        matrices: Tensor,
        layers: JoinedLayers,
        species: Tensor,
        factor: float,
        first_weight: Tensor,
        second_weight: Tensor,
    ) -> Tensor:
        """Return ``matrices``."""
        ctx.save_for_backward(first_weight, second_weight)
        ctx.made_of = layers, species, factor
        return matrices.view_as(matrices)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple:
        """Gradients by both layers' weights."""
        layers, chosen, factor = ctx.made_of
        matrices = partial(layers.compute_species_matrices, species=chosen, factor=factor)
        return (
            None,
            None,
            None,
            None,
            *pull_back_gradients(matrices, ctx.saved_tensors, cotangent.index_select(0, chosen)),
        )


_with_gradients_of_layers = get_unchecked_apply(_MatricesWithWeightGradients)
