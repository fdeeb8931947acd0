"""NequIP's self-connections by atom type."""

# Annotations are objects here, not strings: TorchScript reads them.

import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from types import FrameType
from typing import Any, Optional

import torch
from e3nn import o3
from nequip.data import AtomicDataDict
from nequip.nn.embedding import NodeTypeEmbed
from nequip.nn.interaction_block import InteractionBlock
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.utils import parametrize

from tpgen.base._torch import has_tangents
from tpgen.networks.conversion import species
from tpgen.networks.conversion.obstacles import (
    copy_method_under_name,
    has_hooks,
    is_hooked_or_patched,
    why_not_fused,
    why_patched,
)
from tpgen.networks.conversion.products import SPECIES, ProductBySpecies, describe_product_by_element, find_product_swap
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept
from tpgen.networks.recording import recorded_program
from tpgen.nn.plain_tensors import is_plain_tensor

ATTRIBUTES, TYPES = AtomicDataDict.NODE_ATTRS_KEY, AtomicDataDict.ATOM_TYPE_KEY
_REPLACED_ATTRIBUTES: ContextVar[Optional[Tensor]] = ContextVar("attributes in whose place types stand", default=None)  # noqa: UP045


class TpgenSelfConnection(ProductBySpecies):
    """NequIP's product of features with embeddings of types, or with types themselves."""

    def forward(self, x: Tensor, y: Tensor, weight: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        """Product with embeddings ``y`` as e3nn's, or with types ``y``, int64 ``(nodes, 1)``."""
        if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
            if y.dtype == torch.int64:
                return self._multiply_by_types(x, y, self._get_weights(weight))
        return self.product(x, y, weight)

    product = copy_method_under_name(ProductBySpecies.forward, "product")

    def _multiply_by_types(self, x: Tensor, types: Tensor, weight: Tensor) -> Tensor:
        attributes, program = _REPLACED_ATTRIBUTES.get(), recorded_program()
        groups = None if program is None else program.given.get("groups")
        if groups is None:
            found = self._tpgen_species.multiply_by_species(x, weight, self.get_embedding_table(), types[:, 0])
        else:
            found = self._tpgen_species.multiply_by_groups(x, weight, self.get_embedding_table(), groups)
        if attributes is None or not attributes.requires_grad:
            return found
        return attach_gradient_by_rows(attributes, found, self._tpgen.forward, (x, attributes[: x.shape[0]], weight))

    def get_embedding_table(self) -> Tensor:
        """The parameter with the embeddings of types."""
        return self._tpgen_embedding[0].embed_module.weight

    def is_embedding_unhooked(self) -> bool:
        """Whether no hook or patch sees the embeddings."""
        embedding = self._tpgen_embedding[0]
        return not any(map(is_hooked_or_patched, (self, embedding, embedding.embed_module)))


class TpgenInteractionBlock(InteractionBlock):
    """NequIP's block, whose self-connection gets types instead of embeddings."""

    def forward(self, data: AtomicDataDict.Type) -> AtomicDataDict.Type:
        """NequIP's interaction block; types replace node attributes equal to embeddings."""
        if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript leaves the inner question out)
            if not torch.compiler.is_compiling() and self._are_attributes_embeddings_of_types(data):
                return self._run_block_with_types(data)
        return self.stock(data)

    stock = copy_method_under_name(InteractionBlock.forward, "stock")

    def _run_block_with_types(self, data: AtomicDataDict.Type) -> AtomicDataDict.Type:
        given, attributes = data, data[ATTRIBUTES]
        data[ATTRIBUTES] = data[TYPES].view(-1, 1)
        token = _REPLACED_ATTRIBUTES.set(attributes)
        try:
            data = self.stock(data)
        finally:
            _REPLACED_ATTRIBUTES.reset(token)
            given[ATTRIBUTES] = attributes
        data[ATTRIBUTES] = attributes
        return data

    def _are_attributes_embeddings_of_types(self, data: AtomicDataDict.Type) -> bool:
        # by values, and if types save time
        features, attributes = data[AtomicDataDict.NODE_FEATURES_KEY], data[ATTRIBUTES]
        table, types, program = self.sc.get_embedding_table(), data[TYPES], recorded_program()
        groups = None if program is None else program.groups(attributes, table, types)  # by values, at each call
        plain = all(map(is_plain_tensor, (features, attributes, table)))  # before sizes, which are symbols where traced
        return (
            self.sc.is_embedding_unhooked()
            and (groups is not None or (plain and self.sc._tpgen_species.is_worth_selecting_matrices(types.numel())))
            and features.dtype == table.dtype
            and not has_tangents()  # a tangent may be that of attributes alone
            and _is_autograd_graph_only_table_lookup(attributes, table)
            and (groups is not None or torch.equal(attributes, table[types.view(-1)]))
        )


def _is_autograd_graph_only_table_lookup(attributes: Tensor, embedding_table: Tensor) -> bool:
    if not attributes.requires_grad:
        return not (embedding_table.requires_grad and torch.is_grad_enabled())
    return attributes.grad_fn is not None and [node for node, _ in attributes.grad_fn.next_functions] == [
        get_gradient_edge(embedding_table).node if embedding_table.requires_grad else None
    ]


_UNUSUAL = (
    "of self-connections whose attributes are not one plain table of types (none, several, or one that is hooked, "
    "parametrised or of another class): they are converted as products, not by atom type"
)


def find_self_connection_swaps(network: nn.Module, options: dict[str, Any]) -> Iterator[SwapOrKept]:
    """Yield swaps of interaction blocks and self-connections, given one embedding of types."""
    blocks: list[Any] = [
        m for m in network.modules() if type(m) is InteractionBlock and type(m.sc) is o3.FullyConnectedTensorProduct
    ]
    embeddings = {block: _find_type_embedding(network, block) for block in blocks}
    yield from [KeptModule(block, _UNUSUAL) for block in blocks if embeddings[block] is None][:1]  # said once
    for block in blocks:
        if embeddings[block] is not None:
            found = None if why_not_fused(network, block, "sc") else find_product_swap(block.sc, options)
            if isinstance(found, ClassSwap) and SPECIES in found.extra:
                extra = {**found.extra, "_tpgen_embedding": (embeddings[block],)}  # no child: it has a place
                yield ClassSwap(
                    block.sc, TpgenSelfConnection, _describe_self_connection_backend, extra, found.exact, paired=True
                )
                yield ClassSwap(block, TpgenInteractionBlock, "")


def _find_type_embedding(network: nn.Module, interaction_block: nn.Module) -> Any:
    # in the nearest module around the block that has any
    paths = [path for path, module in network.named_modules(remove_duplicate=False) if module is interaction_block]
    around = {embedding for path in paths for embedding in _find_nearest_type_embeddings(network, path)}
    found = around.pop() if len(around) == 1 else None
    return found if found is not None and _is_plain_embedding_table(found.embed_module) else None


def _find_nearest_type_embeddings(network: nn.Module, module_path: str) -> list[Any]:
    while module_path:
        module_path = module_path.rpartition(".")[0]
        if found := [m for m in network.get_submodule(module_path).modules() if type(m) is NodeTypeEmbed]:
            return found
    return []


def _describe_self_connection_backend(module: nn.Module, swap_attributes: Mapping[str, Any]) -> str:
    return (
        describe_product_by_element(module, swap_attributes)
        .replace("element", "atom type")
        .replace("one-hot", "embeddings of types")
    )


def _is_plain_embedding_table(module: nn.Module) -> bool:
    return (
        type(module) is nn.Embedding
        and module.max_norm is None
        and not (module.scale_grad_by_freq or module.sparse or has_hooks(module) or why_patched(module))
        and not parametrize.is_parametrized(module)
    )


_Product = Callable[..., Tensor]


def attach_gradient_by_rows(rows: Tensor, result: Tensor, product: _Product, operands: tuple[Tensor, ...]) -> Tensor:
    """Return ``result`` with gradients also by ``rows`` of an embedding table.

    A backward pass for ``rows`` runs through ``product(*operands)`` of equal value; others, through ``result``.

    >>> table = torch.tensor([2.0, 3.0], requires_grad=True)
    >>> rows, x = table[[0, 0, 1]], torch.ones(3)
    >>> found = attach_gradient_by_rows(rows, x * table[[0, 0, 1]], torch.mul, (x, rows))
    >>> torch.autograd.grad(found.sum(), [rows, table])
    (tensor([1., 1., 1.]), tensor([2., 1.]))
    """
    return _IdentityWithGradientByRows.apply(result, rows, product, *operands)


class _IdentityWithGradientByRows(torch.autograd.Function):
    """Identity of a result, with gradients by ``rows``."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, rows: Tensor, product: _Product, *operands: Tensor) -> Tensor:
        """Return ``result``."""
        ctx.save_for_backward(*operands)
        ctx.product, ctx.rows = product, rows
        ctx.set_materialize_grads(False)
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor | None) -> tuple:
        """Gradients by ``operands`` if ``rows`` are asked for, else by ``result``."""
        if cotangent is None or not _does_running_backward_ask_for(ctx.rows):
            return (cotangent, None, None, *(None for _ in ctx.saved_tensors))
        return (None, None, None, *species.pull_back_gradients(ctx.product, ctx.saved_tensors, cotangent))


def _does_running_backward_ask_for(rows: Tensor) -> bool:
    if rows.retains_grad or rows._backward_hooks:
        return True
    passes = list(_list_inputs_of_running_backwards(sys._getframe()))
    return not passes or any(_is_gradient_edge_of(x, rows) for inputs in passes for x in inputs)


_CALLS = (torch.autograd.grad.__code__, torch.autograd.backward.__code__)


def _list_inputs_of_running_backwards(frame: FrameType | None) -> Iterator[tuple[Any, ...]]:
    # inputs of each running backward pass, from the frames of callers
    while frame is not None:
        if frame.f_code in _CALLS:
            inputs = frame.f_locals.get("inputs_tuple") or frame.f_locals["inputs"] or ()
            yield (inputs,) if isinstance(inputs, (Tensor, GradientEdge)) else tuple(inputs)
        frame = frame.f_back


def _is_gradient_edge_of(given: Any, rows: Tensor) -> bool:
    node, number = (given.grad_fn, given.output_nr) if isinstance(given, Tensor) else given[:2]
    return node is rows.grad_fn and number == rows.output_nr
