"""MACE's interaction blocks, with the number of neighbours in weights of layers in the place of a pass over rows.

A block divides the results of a linear layer by that number: forwards and backwards it reads and writes all features of
all atoms once more, on new memory.  Here the layer's weights are divided.  In a call that asks for no training, the
first block makes one layer of this one and the product by element that follows it.

A model alone knows whether a call is of training.  It imports MACE, as `conversion.projects.mace_models` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import torch
from e3nn import o3
from mace.modules import blocks
from torch import Tensor, nn

from tpgen.conversion.joined import JoinedLayers, join_layers
from tpgen.conversion.linears import ConvertedLinear, linear_plan_of
from tpgen.conversion.obstacles import has_more
from tpgen.conversion.products import ProductBySpecies
from tpgen.conversion.species import species_product
from tpgen.nn.from_e3nn import plan_of

JOINED = "_tpgen_joined"
_DTYPES = (torch.float32, torch.float64)

# whether the call that runs is known to be none of training, after which weights change
evaluates: ContextVar[bool] = ContextVar("evaluates", default=False)


class Rebuilt:
    """A class whose constructor builds what stands behind it: a copy or an unpickled object begins as an empty one."""

    def __new__(cls, *args: Any, **given: Any) -> Any:
        """An empty object; one that is built, as from a configuration that names the class, is a stock one."""
        return cls.__bases__[-1](*args, **given) if args or given else super().__new__(cls)


class _Divides(Rebuilt):
    """Divides weights by the number of neighbours, where nothing but MACE's own code stands between."""

    def __call__(self, *args: Any, **given: Any) -> Any:
        if args or torch.compiler.is_compiling() or not _is_plain(self):
            return super().__call__(*args, **given)  # type: ignore[misc]
        return self._evaluate(**given)  # type: ignore[attr-defined]


class RealAgnosticInteractionBlock(_Divides, blocks.RealAgnosticInteractionBlock):
    """MACE's first block, whose linear layer and product by element are one where no training is asked for."""

    def _evaluate(self, **given: Any) -> tuple[Tensor, None]:
        message, node_attrs = _summed(self, **given)
        joined, linear, skip, found = getattr(self, JOINED), self.linear, self.skip_tp, None
        if joined is not None and evaluates.get() and type(skip) is ProductBySpecies and not has_more(skip):
            found = joined.apply(message, linear.weight, skip.weight, node_attrs, 1 / self.avg_num_neighbors)
        if found is None:
            found = skip(_divided(self, message), node_attrs)
        return self.reshape(found), None


class RealAgnosticResidualInteractionBlock(_Divides, blocks.RealAgnosticResidualInteractionBlock):
    """MACE's block with a product by element beside the sum over neighbours."""

    def _evaluate(self, node_attrs: Tensor, node_feats: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        beside = self.skip_tp(node_feats, node_attrs)
        message, _ = _summed(self, node_attrs, node_feats, **given)
        local = self.truncate_ghosts(beside, _local(given))
        return self.reshape(_divided(self, message)), local


def _summed(
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
    """The sum over neighbours as MACE writes it, and attributes, of local atoms alone in LAMMPS."""
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
    return block.truncate_ghosts(message, _local(lammps)), block.truncate_ghosts(node_attrs, _local(lammps))


def _local(lammps: Mapping[str, Any]) -> int | None:
    """The number of local atoms; None outside LAMMPS."""
    return None if lammps.get("lammps_class") is None else lammps["lammps_natoms"][0]


def _divided(block: Any, message: Tensor) -> Tensor:
    return block.linear(message, block.linear.weight / block.avg_num_neighbors)


def _is_plain(block: Any) -> bool:
    """Whether a call of a block is MACE's code, with a layer of ours whose weights can be divided."""
    linear = block.linear
    return (
        type(linear) is ConvertedLinear
        and linear.weight.dtype in _DTYPES
        and linear.internal_weights
        and not (has_more(block) or has_more(linear))
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


def dividing(block: nn.Module, options: Mapping[str, Any]) -> tuple[type[nn.Module], dict[str, Any]]:
    """The class of a block that divides weights, and attributes that it needs; its own class for other blocks."""
    cls, names = _KNOWN.get(type(block), (None, None))
    if cls is None or inspect.unwrap(type(block).forward).__code__.co_names != names:
        return type(block), {}
    if cls is not RealAgnosticInteractionBlock:
        return cls, {}
    return cls, {JOINED: _joined(block, options)}


def _joined(block: Any, options: Mapping[str, Any]) -> JoinedLayers | None:
    """The linear layer of a first block and the product that follows it, if one layer can be made of them."""
    linear, skip = block.linear, block.skip_tp
    if not (isinstance(linear, o3.Linear) and isinstance(skip, o3.FullyConnectedTensorProduct)):
        return None
    if not (linear.internal_weights and skip.internal_weights):
        return None
    plan, product = linear_plan_of(linear), species_product(plan_of(skip), options)
    return None if plan is None or product is None else join_layers(plan, product)
