"""MACE's radial embedding, radial nets once per pair of edges, and interaction blocks."""

# Calls for forces on edges, or gradients by shifts, use no pairs.

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from types import MethodType
from typing import Any

import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet
from mace.modules import blocks, models
from mace.modules.radial import BesselBasis, PolynomialCutoff
from torch import Tensor, nn

from tpgen.base.remember import remembered
from tpgen.emitter.leaf import has_proxy
from tpgen.functions.bessel import CutBessel, can_run_bessel_kernel, cut_bessel, name_cut_bessel_code
from tpgen.networks.conversion.joined import JoinedLayers, join_linear_and_product
from tpgen.networks.conversion.linears import ConvertedLinear, read_linear_plan
from tpgen.networks.conversion.obstacles import allows_kernels, is_hooked_or_patched
from tpgen.networks.conversion.operations.pairs import FEEDS, gradients_count_in_pairs, mark_edge_pairs
from tpgen.networks.conversion.products import ProductBySpecies
from tpgen.networks.conversion.species import make_species_product
from tpgen.networks.conversion.swap import ClassSwap, get_swap_mark
from tpgen.nn.from_e3nn import plan_e3nn_product

# of the call that runs: its graph, where its edges may be pairs; and whether it is known to be none of training, after
# which weights change
_Context = tuple[dict[str, Tensor] | None, bool]
_context: ContextVar[_Context] = ContextVar("context of a call", default=(None, False))
# arguments that ask for gradients by single edges
_SINGLE = ("compute_edge_forces", "compute_atomic_stresses", "lammps_mliap")
_SHIFTS = ("shifts", "unit_shifts")
_JOINED = "_tpgen_joined"
_DTYPES = (torch.float32, torch.float64)


class _ConstructsStockObject:
    """Mixin: with arguments the class makes a stock object; without, an empty one, for copies."""

    def __new__(cls, *args: Any, **given: Any) -> Any:
        return cls.__bases__[-1](*args, **given) if args or given else super().__new__(cls)


class _SetsCallContext(_ConstructsStockObject):
    """Mixin: a context variable holds a call's graph and training flag."""

    def __call__(self, *args: Any, **given: Any) -> Any:
        if torch.compiler.is_compiling():
            return super().__call__(*args, **given)  # type: ignore[misc]
        asked = _bind_arguments_by_name(self, args, given)
        before = _context.set((_get_graph_if_pairs_usable(asked), not asked.get("training", False)))
        try:
            return super().__call__(*args, **given)  # type: ignore[misc]
        finally:
            _context.reset(before)


def _bind_arguments_by_name(model: Any, args: tuple, kwargs: dict[str, Any]) -> Mapping[str, Any]:
    forward = model.forward
    try:
        if "forward" in vars(model) or type(forward) is not MethodType:  # what somebody put there is not kept
            return inspect.signature(forward).bind(*args, **kwargs).arguments
        return _signature(forward.__func__).bind(forward.__self__, *args, **kwargs).arguments
    except TypeError:  # which the call itself will say
        return {}


def _get_graph_if_pairs_usable(call_arguments: Mapping[str, Any]) -> dict[str, Tensor] | None:
    graph = call_arguments.get("data")
    if not isinstance(graph, dict) or (
        not gradients_count_in_pairs() and any(call_arguments.get(name) for name in _SINGLE)
    ):
        return None
    shifts = [graph.get(name) for name in _SHIFTS]
    return None if any(isinstance(x, Tensor) and x.requires_grad for x in shifts) else graph


_signature = remembered("signatures of models", entries=64)(inspect.signature)


class MACE(_SetsCallContext, models.MACE):
    """A `MACE` with nets run once per pair."""


class ScaleShiftMACE(_SetsCallContext, models.ScaleShiftMACE):
    """A `ScaleShiftMACE` with nets run once per pair."""


class RadialEmbeddingBlock(blocks.RadialEmbeddingBlock):
    """MACE's radial embedding by a kernel; marks pairs of opposite edges."""

    def __call__(self, lengths: Tensor, node_attrs: Tensor, edge_index: Tensor, atomic_numbers: Tensor) -> Any:
        if torch.compiler.is_compiling() or not _is_unpatched_mace_code(self):
            return super().__call__(lengths, node_attrs, edge_index, atomic_numbers)
        found = _embed_lengths_by_kernel(self, lengths) if self._tpgen_kernels else None
        if found is None:
            found = super().__call__(lengths, node_attrs, edge_index, atomic_numbers)
        graph, _ = _context.get()
        if graph is None or found[1] is not None:  # blocks multiply weights by a cutoff
            return found
        # vectors are differences of positions plus shifts, which change sign with the direction
        if isinstance(shifts := graph.get("shifts", graph.get("vectors")), Tensor):  # LAMMPS has vectors alone
            mark_edge_pairs(found[0], edge_index, shifts)
        return found


def _embed_lengths_by_kernel(embedding: Any, lengths: Tensor) -> tuple[Tensor, None] | None:
    basis, cutoff = embedding.bessel_fn, embedding.cutoff_fn
    if not (_is_bessel_with_polynomial_cutoff(embedding) and can_run_bessel_kernel(lengths, basis.bessel_weights)):
        return None
    shape = CutBessel(basis.prefactor.item(), cutoff.r_max.item(), cutoff.p.item())
    return cut_bessel(lengths, basis.bessel_weights, shape)[0], None


def _is_bessel_with_polynomial_cutoff(embedding: Any) -> bool:
    return (
        type(embedding.bessel_fn) is BesselBasis
        and type(embedding.cutoff_fn) is PolynomialCutoff
        and getattr(embedding, "apply_cutoff", True)
        and not hasattr(embedding, "distance_transform")
    )


def _describe_embedding_backend(embedding: Any, swap_attributes: Mapping[str, Any], suffix: str = "") -> str:
    own = (
        name_cut_bessel_code()
        if swap_attributes["_tpgen_kernels"] and _is_bessel_with_polynomial_cutoff(embedding)
        else "its own code"
    )
    return own + suffix


_describe_paired_embedding = partial(_describe_embedding_backend, suffix=f"; {FEEDS}")


_MODELS: dict[type, type[nn.Module]] = {models.MACE: MACE, models.ScaleShiftMACE: ScaleShiftMACE}


def find_mace_model_swaps(network: nn.Module, options: Mapping[str, Any]) -> Iterator[ClassSwap]:
    """Yield a `ClassSwap` per radial embedding, and per model that uses pairs of edges."""
    paired = {model.radial_embedding: model for model in network.modules() if type(model) in _MODELS}
    extra = {"_tpgen_kernels": allows_kernels(options)}
    for embedding in network.modules():
        if (
            type(embedding) is not blocks.RadialEmbeddingBlock
            or get_swap_mark(embedding)
            or not _is_unpatched_mace_code(embedding)
        ):
            continue
        model: Any = paired.get(embedding)
        if model is not None and _does_embedding_feed_radial_net(embedding, model.interactions):
            yield ClassSwap(embedding, RadialEmbeddingBlock, _describe_paired_embedding, extra, paired=True)
            yield ClassSwap(model, _MODELS[type(model)], "")
        elif extra["_tpgen_kernels"] and _is_bessel_with_polynomial_cutoff(embedding):
            yield ClassSwap(embedding, RadialEmbeddingBlock, _describe_embedding_backend, extra)


def _does_embedding_feed_radial_net(embedding: Any, interactions: Any) -> bool:
    # whether a net gets the rows as they are: other blocks join them to more, or multiply weights by a cutoff
    nets = [net for b in interactions if isinstance(net := getattr(b, "conv_tp_weights", None), FullyConnectedNet)]
    return getattr(embedding, "apply_cutoff", True) and any(net.hs[0] == embedding.out_dim for net in nets)


def _is_unpatched_mace_code(embedding: nn.Module) -> bool:
    own = ("mace", "tpgen")
    return all(type(m).__module__.split(".")[0] in own and not is_hooked_or_patched(m) for m in embedding.modules())


# -- interaction blocks ------------------------------------------------------------------------------------------------


class _DividesWeightsByNeighbours(_ConstructsStockObject):
    """Mixin of interaction blocks: divide weights, not features, by numbers of neighbours."""

    def __call__(self, *args: Any, **given: Any) -> Any:
        if (
            args
            or torch.compiler.is_compiling()
            or has_proxy(*given.values())
            or not _can_divide_weights_by_neighbours(self)
        ):
            return super().__call__(*args, **given)  # type: ignore[misc]
        return self._run_block_with_divided_weights(**given)  # type: ignore[attr-defined]


class RealAgnosticInteractionBlock(_DividesWeightsByNeighbours, blocks.RealAgnosticInteractionBlock):
    """MACE's first interaction block; outside training, linear layer and product are one."""

    def _run_block_with_divided_weights(self, **arguments: Any) -> tuple[Tensor, None]:
        message, node_attrs = _sum_messages_and_truncate_ghosts(self, **arguments)
        joined, linear, skip, found = getattr(self, _JOINED), self.linear, self.skip_tp, None
        if (
            joined is not None
            and _context.get()[1]
            and type(skip) is ProductBySpecies
            and not is_hooked_or_patched(skip)
        ):
            found = joined.apply_both_layers(
                message, linear.weight, skip.weight, node_attrs, 1 / self.avg_num_neighbors
            )
        if found is None:
            found = skip(_apply_linear_with_divided_weights(self, message), node_attrs)
        return self.reshape(found), None


class RealAgnosticResidualInteractionBlock(_DividesWeightsByNeighbours, blocks.RealAgnosticResidualInteractionBlock):
    """MACE's residual interaction block, with weights divided by neighbours."""

    def _run_block_with_divided_weights(
        self, node_attrs: Tensor, node_feats: Tensor, **other_arguments: Any
    ) -> tuple[Tensor, Tensor]:
        beside = self.skip_tp(node_feats, node_attrs)
        message, _ = _sum_messages_and_truncate_ghosts(self, node_attrs, node_feats, **other_arguments)
        local = self.truncate_ghosts(beside, _count_local_atoms(other_arguments))
        return self.reshape(_apply_linear_with_divided_weights(self, message)), local


def _sum_messages_and_truncate_ghosts(
    block: Any,
    node_attrs: Tensor,
    node_feats: Tensor,
    edge_attrs: Tensor,
    edge_feats: Tensor,
    edge_index: Tensor,
    cutoff: Tensor | None = None,
    first_layer: bool = False,
    **lammps: Any,
) -> tuple[Tensor, Tensor]:
    # as MACE, with attributes; in LAMMPS of local atoms alone
    features = block.handle_lammps(
        block.linear_up(node_feats),
        lammps_class=lammps.get("lammps_class"),
        lammps_natoms=lammps.get("lammps_natoms", (0, 0)),
        first_layer=first_layer,
    )
    weights = block.conv_tp_weights(edge_feats)
    if cutoff is not None:
        weights = weights * cutoff
    message = block.conv_tp(features, edge_attrs, weights, edge_index)
    count = _count_local_atoms(lammps)
    return block.truncate_ghosts(message, count), block.truncate_ghosts(node_attrs, count)


def _count_local_atoms(lammps: Mapping[str, Any]) -> int | None:
    return None if lammps.get("lammps_class") is None else lammps["lammps_natoms"][0]


def _apply_linear_with_divided_weights(block: Any, message: Tensor) -> Tensor:
    return block.linear(message, block.linear.weight / block.avg_num_neighbors)


def _can_divide_weights_by_neighbours(block: Any) -> bool:
    linear = block.linear
    return (
        type(linear) is ConvertedLinear
        and linear.weight.dtype in _DTYPES
        and linear.internal_weights
        and not (is_hooked_or_patched(block) or is_hooked_or_patched(linear))
        and isinstance(block.avg_num_neighbors, float | int)
    )


# the names that a block's forward reads, in their order: in another version other code may stand between them
_NAMES = (
    *("linear_up", "handle_lammps", "conv_tp_weights", "hasattr", "conv_tp", "scatter_sum", "shape"),
    *("truncate_ghosts", "linear", "avg_num_neighbors"),
)
_KNOWN: dict[type[nn.Module], tuple[type[nn.Module], tuple[str, ...]]] = {
    blocks.RealAgnosticInteractionBlock: (RealAgnosticInteractionBlock, (*_NAMES, "skip_tp", "reshape")),
    blocks.RealAgnosticResidualInteractionBlock: (
        RealAgnosticResidualInteractionBlock,
        ("skip_tp", *_NAMES, "reshape"),
    ),
}


def choose_interaction_class(block: nn.Module, options: Mapping[str, Any]) -> tuple[type[nn.Module], dict[str, Any]]:
    """An interaction block's class that divides weights, or its own class, and new attributes."""
    cls, names = _KNOWN.get(type(block), (None, None))
    if cls is None or inspect.unwrap(type(block).forward).__code__.co_names != names:
        return type(block), {}
    if cls is not RealAgnosticInteractionBlock:
        return cls, {}
    return cls, {_JOINED: _join_linear_and_skip_product(block, options)}


def _join_linear_and_skip_product(block: Any, options: Mapping[str, Any]) -> JoinedLayers | None:
    # the linear layer of a first block and the product that follows it, if one layer can be made of them
    linear, skip = block.linear, block.skip_tp
    if not (isinstance(linear, o3.Linear) and isinstance(skip, o3.FullyConnectedTensorProduct)):
        return None
    if not (linear.internal_weights and skip.internal_weights):
        return None
    plan, product = read_linear_plan(linear), make_species_product(plan_e3nn_product(skip), options)
    return None if plan is None or product is None else join_linear_and_product(plan, product)
