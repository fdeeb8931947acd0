"""NequIP's self-connections by atom type: a product with embeddings of types is a layer with matrices of each type.

Annotations here are objects, not strings: TorchScript reads them.
"""

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import FunctionType
from typing import Any, Optional

import torch
from e3nn import o3
from nequip.data import AtomicDataDict
from nequip.nn.embedding import NodeTypeEmbed
from nequip.nn.interaction_block import InteractionBlock
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.utils import parametrize

from tpgen._torch import has_tangents
from tpgen.conversion import species
from tpgen.conversion.obstacles import has_hooks, has_more, not_fused, replaced
from tpgen.conversion.products import SPECIES, ProductBySpecies, by_element, find_product
from tpgen.conversion.projects.nequip_gradients import also_by
from tpgen.conversion.swap import Finding, Kept, Swap
from tpgen.networks.recording import recorded_program
from tpgen.nn.multilinear import has_plain_numbers


def _as(name: str, function: Any) -> Any:
    """A method under another name, which ours does not hide from TorchScript: it has no super()."""
    copy = FunctionType(function.__code__, function.__globals__, name, function.__defaults__)
    copy.__annotations__ = function.__annotations__
    return copy


ATTRIBUTES, TYPES = AtomicDataDict.NODE_ATTRS_KEY, AtomicDataDict.ATOM_TYPE_KEY
_STOOD: ContextVar[Optional[Tensor]] = ContextVar("attributes in whose place types stand", default=None)  # noqa: UP045


class TpgenSelfConnection(ProductBySpecies):
    """NequIP's product of features with the embeddings of types, or with the types themselves."""

    def forward(self, x: Tensor, y: Tensor, weight: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        """As e3nn's; where ``y`` are types, ``(nodes, 1)`` of int64, as with their embeddings."""
        if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
            if y.dtype == torch.int64:
                return self._typed(x, y, self._get_weights(weight))
        return self.product(x, y, weight)

    product = _as("product", ProductBySpecies.forward)

    def _typed(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        attributes, program = _STOOD.get(), recorded_program()
        groups = None if program is None else program.given.get("groups")
        if groups is None:
            found = self._tpgen_species.apply(x, weight, self.table(), y[:, 0])
        else:
            found = self._tpgen_species.apply_grouped(x, weight, self.table(), groups)
        if attributes is None or not attributes.requires_grad:
            return found
        return also_by(attributes, found, self._tpgen.forward, (x, attributes[: x.shape[0]], weight))

    def table(self) -> Tensor:
        """The embedding of each type, the parameter itself."""
        return self._tpgen_embedding[0].embed_module.weight

    def embeds_alone(self) -> bool:
        """Whether nobody looks at attributes on their way here, or changes them: hooks may have come since."""
        embedding = self._tpgen_embedding[0]
        return not any(map(has_more, (self, embedding, embedding.embed_module)))


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
        given, attributes = data, data[ATTRIBUTES]
        data[ATTRIBUTES] = data[TYPES].view(-1, 1)
        token = _STOOD.set(attributes)
        try:
            data = self.stock(data)
        finally:
            _STOOD.reset(token)
            given[ATTRIBUTES] = attributes
        data[ATTRIBUTES] = attributes
        return data

    def _embeds(self, data: AtomicDataDict.Type) -> bool:
        """Whether attributes are the embeddings of the types, by their values, and it is worth to know."""
        features, attributes = data[AtomicDataDict.NODE_FEATURES_KEY], data[ATTRIBUTES]
        table, types, program = self.sc.table(), data[TYPES], recorded_program()
        groups = None if program is None else program.groups(attributes, table, types)  # by values, at each call
        plain = all(
            map(has_plain_numbers, (features, attributes, table))
        )  # before sizes, which are symbols where traced
        return (
            self.sc.embeds_alone()
            and (groups is not None or (plain and types.numel() * self.sc.weight_numel >= species.WORTH))
            and features.dtype == table.dtype
            and not has_tangents()  # a tangent may be that of attributes alone
            and _leads_to(attributes, table)
            and (groups is not None or torch.equal(attributes, table[types.view(-1)]))
        )


def _leads_to(attributes: Tensor, table: Tensor) -> bool:
    """Whether gradients by attributes go to the table and to nothing else; without gradients, both have none."""
    if not attributes.requires_grad:
        return not (table.requires_grad and torch.is_grad_enabled())
    return attributes.grad_fn is not None and [node for node, _ in attributes.grad_fn.next_functions] == [
        get_gradient_edge(table).node if table.requires_grad else None
    ]


_UNUSUAL = (
    "of self-connections whose attributes are not one plain table of types (none, several, or one that is hooked, "
    "parametrised or of another class): they are converted as products, not by atom type"
)


def self_connections(network: nn.Module, options: dict[str, Any]) -> Iterator[Finding]:
    """Swaps of blocks and their self-connections, where their model has one embedding of types."""
    blocks: list[Any] = [
        m for m in network.modules() if type(m) is InteractionBlock and type(m.sc) is o3.FullyConnectedTensorProduct
    ]
    embeddings = {block: _embedding_of(network, block) for block in blocks}
    yield from [Kept(block, _UNUSUAL) for block in blocks if embeddings[block] is None][:1]  # said once
    for block in blocks:
        if embeddings[block] is not None:
            found = None if not_fused(network, block, "sc") else find_product(block.sc, options)
            if isinstance(found, Swap) and SPECIES in found.extra:
                extra = {**found.extra, "_tpgen_embedding": (embeddings[block],)}  # no child: it has a place
                yield Swap(block.sc, TpgenSelfConnection, _by_type, extra, found.exact, paired=True)
                yield Swap(block, TpgenInteractionBlock, "")


def _embedding_of(network: nn.Module, block: nn.Module) -> Any:
    """The plain embedding of types in the nearest module around a block that has one; None where it has several."""
    paths = [path for path, module in network.named_modules(remove_duplicate=False) if module is block]
    around = {embedding for path in paths for embedding in _around(network, path)}
    found = around.pop() if len(around) == 1 else None
    return found if found is not None and _is_plain_table(found.embed_module) else None


def _around(network: nn.Module, path: str) -> list[Any]:
    while path:
        path = path.rpartition(".")[0]
        if found := [m for m in network.get_submodule(path).modules() if type(m) is NodeTypeEmbed]:
            return found
    return []


def _by_type(module: nn.Module, extra: Mapping[str, Any]) -> str:
    return by_element(module, extra).replace("element", "atom type").replace("one-hot", "embeddings of types")


def _is_plain_table(module: nn.Module) -> bool:
    """Whether a module looks rows up, and does nothing else."""
    return (
        type(module) is nn.Embedding
        and module.max_norm is None
        and not (module.scale_grad_by_freq or module.sparse or has_hooks(module) or replaced(module))
        and not parametrize.is_parametrized(module)
    )
