"""NequIP's self-connections by atom type: a product with embeddings of types is a layer with matrices of each type.

Annotations here are objects, not strings: TorchScript reads them.
"""

from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any, Optional

import torch
from e3nn import o3
from nequip.data import AtomicDataDict
from nequip.nn.embedding import NodeTypeEmbed
from nequip.nn.interaction_block import InteractionBlock
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tpgen.conversion import species
from tpgen.conversion.obstacles import has_hooks, not_fused, replaced
from tpgen.conversion.products import SPECIES, ProductBySpecies, by_element, find_product
from tpgen.conversion.swap import Finding, Kept, Swap
from tpgen.nn.multilinear import is_plain


def _as(name: str, function: Any) -> Any:
    """A method under another name, which ours does not hide from TorchScript: it has no super()."""
    copy = FunctionType(function.__code__, function.__globals__, name, function.__defaults__)
    copy.__annotations__ = function.__annotations__
    return copy


ATTRIBUTES, TYPES = AtomicDataDict.NODE_ATTRS_KEY, AtomicDataDict.ATOM_TYPE_KEY


class TpgenSelfConnection(ProductBySpecies):
    """NequIP's product of features with the embeddings of types, or with the types themselves."""

    def forward(self, x: Tensor, y: Tensor, weight: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        """As e3nn's; where ``y`` are types, ``(nodes, 1)`` of int64, as with their embeddings."""
        if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
            if y.dtype == torch.int64:
                return self._tpgen_species.apply(x, self._get_weights(weight), self.table(), y[:, 0])
        return self.product(x, y, weight)

    product = _as("product", ProductBySpecies.forward)

    def table(self) -> Tensor:
        """The embedding of each type, the parameter itself."""
        return self._tpgen_embedding[0].weight


class TpgenInteractionBlock(InteractionBlock):
    """NequIP's block, which hands types to its self-connection where node attributes are their embeddings."""

    def forward(self, data: AtomicDataDict.Type) -> AtomicDataDict.Type:
        """As NequIP's."""
        if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
            if not torch.compiler.is_compiling() and self._embeds(data):
                return self._typed(data)
        return self.stock(data)

    stock = _as("stock", InteractionBlock.forward)

    def _typed(self, data: AtomicDataDict.Type) -> AtomicDataDict.Type:
        attributes, data[ATTRIBUTES] = data[ATTRIBUTES], data[TYPES].view(-1, 1)
        data = self.stock(data)
        data[ATTRIBUTES] = attributes
        return data

    def _embeds(self, data: AtomicDataDict.Type) -> bool:
        """Whether attributes are the embeddings of the types, by their values, and it is worth to know."""
        features, attributes = data[AtomicDataDict.NODE_FEATURES_KEY], data[ATTRIBUTES]
        table, types = self.sc.table(), data[TYPES].view(-1)
        return (
            all(map(is_plain, (features, attributes, table)))  # first, as sizes of what is traced are symbols
            and len(types) * self.sc.weight_numel >= species.WORTH
            and features.dtype == table.dtype
            and attributes.requires_grad == table.requires_grad
            and torch.equal(attributes, table[types])
        )


_UNUSUAL = (
    "of self-connections whose attributes are not one plain table of types (several, or one that is hooked, "
    "parametrised or of another class): they are converted as products, not by atom type"
)


def self_connections(network: nn.Module, options: dict[str, Any]) -> Iterator[Finding]:
    """Swaps of blocks and their self-connections, where the network has one embedding of types."""
    embeddings: list[Any] = [m for m in network.modules() if type(m) is NodeTypeEmbed]
    blocks: list[Any] = [m for m in network.modules() if type(m) is InteractionBlock]
    if len(embeddings) != 1 or not _is_plain_table(embeddings[0].embed_module):
        stock = [m for m in blocks if type(m.sc) is o3.FullyConnectedTensorProduct]
        yield from (Kept(block, _UNUSUAL) for block in stock[:1])  # said once
        return
    for block in blocks:
        if type(block.sc) is o3.FullyConnectedTensorProduct:
            found = None if not_fused(network, block, "sc") else find_product(block.sc, options)
            if isinstance(found, Swap) and SPECIES in found.extra:
                extra = {**found.extra, "_tpgen_embedding": (embeddings[0].embed_module,)}  # no child: it has a place
                yield Swap(block.sc, TpgenSelfConnection, _by_type, extra, found.exact, paired=True)
                yield Swap(block, TpgenInteractionBlock, "")


def _by_type(extra: Mapping[str, Any]) -> str:
    return by_element(extra).replace("element", "atom type").replace("one-hot", "embeddings of types")


def _is_plain_table(module: nn.Module) -> bool:
    """Whether a module looks rows up, and does nothing else."""
    return (
        type(module) is nn.Embedding
        and module.max_norm is None
        and not (module.scale_grad_by_freq or module.sparse or has_hooks(module) or replaced(module))
        and not parametrize.is_parametrized(module)
    )
