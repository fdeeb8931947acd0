"""Inline products' programs into a network's graph.

>>> import torch, tpgen
>>> from tpgen.networks.tracer import trace_network
>>> network = torch.nn.Sequential(tpgen.TensorSquare("2x1o", strategy="einsum"), torch.nn.ReLU())
>>> flat = inline_products(trace_network(network))
>>> sorted({node.op for node in flat.graph.nodes if node.meta["module_path"] == "0"})
['call_function', 'call_method', 'get_attr']
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from tpgen.base.errors import TraceError, first_line
from tpgen.emitter.emit import EmittedModule, emit_plan
from tpgen.networks.cse import cse, dce
from tpgen.networks.frames import eval_mode_without_gradients, remove_neutral_reshapes
from tpgen.nn.planned import PROGRAM, PlannedModule
from tpgen.nn.tensor_product import TensorProduct


@dataclass(frozen=True)
class Gain:
    """Sizes of a graph before and after inlining and sharing; FLOPs of matrix products are None without inputs."""

    products: int
    nodes_before: int
    nodes: int
    constants_before: int
    constants: int
    flops_before: int | None = None
    flops: int | None = None

    def __str__(self) -> str:
        text = (
            f"{self.products} products inlined; nodes {self.nodes_before} -> {self.nodes}; "
            f"constants {self.constants_before} -> {self.constants}"
        )
        return (
            text if self.flops is None else f"{text}; FLOPs of matrix products {self.flops_before:,} -> {self.flops:,}"
        )


class FlatNetwork(EmittedModule):
    """Network as one graph, with exact coupling constants."""

    @property
    def gain(self) -> Gain:
        """Sizes before and after sharing."""
        return self.meta["gain"]


def inline_products(
    graph_module: fx.GraphModule,
    predicate: Callable[[TensorProduct, str], bool] = lambda product, path: True,
    *,
    strategy: str | None = None,
    inputs: Sequence[Any] | None = None,
) -> FlatNetwork:
    """Replace calls of products by programs, without argument checks or autocast, and share subexpressions.

    Raises `TraceError` for untraced networks, failing inputs, and calls with lists of weights.

    Parameters
    ----------
    graph_module
        traced network; unchanged.
    predicate
        ``(product, path) -> bool``: whether to inline.
    strategy
        by default each product's; ``einsum`` shares most, ``kernel`` nothing.
    inputs
        example with at least two rows, to share more; the flat network then takes batches of this form alone.
    """
    _check_graph_runs_on_inputs(graph_module, inputs)
    flat = _ProductInliner(graph_module, predicate, strategy).run()
    before = len(flat.graph.nodes)
    flops_before = None
    if inputs is not None:
        flops_before = _count_flops_of_call(flat.module(), inputs)
        remove_neutral_reshapes(flat.module(), inputs)
    cse(flat.graph, graph_module)
    dce(flat.graph, graph_module)
    flat.graph.lint()
    module = flat.module()
    constants = _select_constants_that_graph_reads(flat.graph, flat.constants)
    flops = _count_flops_of_call(module, inputs) if inputs is not None else None
    module.meta["gain"] = Gain(
        flat.products, before, len(flat.graph.nodes), flat.constants_before, len(constants), flops_before, flops
    )
    return module


def product_of(module: nn.Module) -> TensorProduct | None:
    """The product that computes a module: the module or, after `convert`, the substitute; else None."""
    found = getattr(module, PROGRAM, module)
    return found if isinstance(found, PlannedModule) and found.directions else None  # type: ignore[return-value]


def _check_graph_runs_on_inputs(graph_module: object, inputs: Sequence[Any] | None) -> None:
    if not isinstance(graph_module, fx.GraphModule):
        raise TraceError(
            f"inline_products reads the graph of a traced network, got {type(graph_module).__name__}: "
            "give it trace_network(network)"
        )
    if inputs is None:
        return
    try:
        with eval_mode_without_gradients(graph_module):
            graph_module(*inputs)
    except Exception as error:  # whatever the network says of them
        raise TraceError(
            f"the network fails on the inputs given ({first_line(error)}); give inputs that it takes"
        ) from error


class _ProductInliner:
    def __init__(
        self, original: fx.GraphModule, predicate: Callable[[TensorProduct, str], bool], strategy: str | None
    ) -> None:
        self.original = original
        self.predicate = predicate
        self.strategy = strategy
        self.graph = fx.Graph()
        self.constants: dict[str, np.ndarray] = {}
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[Any, str] = {}  # of equal constants
        self.products = 0
        self.constants_before = 0

    def run(self) -> _ProductInliner:
        """Copy the graph, with programs for products."""
        copies: dict[fx.Node, Any] = {}
        for node in self.original.graph.nodes:
            product = self._product_to_inline(node)
            if product is None:
                copies[node] = self.graph.node_copy(node, lambda n: copies[n])
            else:
                copies[node] = self._inline_product_call(product, node, copies)
        self.graph.lint()
        return self

    def module(self) -> FlatNetwork:
        """Build the flat module of the graph."""
        held: dict[str, Any] = {}
        for node in self.graph.nodes:
            if node.op in ("get_attr", "call_module"):
                name = str(node.target)
                held[name] = self.tensors[name] if name in self.tensors else attrgetter(name)(self.original)
        exact = _select_constants_that_graph_reads(self.graph, self.constants)
        name = f"{type(self.original).__name__}_flat"
        return FlatNetwork(held, self.graph, class_name=name)._register_exact_constants(exact)

    def _product_to_inline(self, node: fx.Node) -> TensorProduct | None:
        if node.op != "call_module":
            return None
        product = product_of(self.original.get_submodule(str(node.target)))
        return product if product is not None and self.predicate(product, str(node.target)) else None

    def _inline_product_call(self, product: TensorProduct, call: fx.Node, copies: dict[fx.Node, Any]) -> fx.Node:
        path = str(call.target)
        args = fx.map_arg(call.args, lambda n: copies[n])
        kwargs = fx.map_arg(call.kwargs, lambda n: copies[n])
        first = len(self.graph.nodes)
        given = _bind_arguments_of_product_call(self.original.get_submodule(path), path, args, kwargs)
        if given["weight"] is None:
            given["weight"] = self.graph.get_attr(f"{path}.weight")
        out = self._copy_program_into_graph(product, self._operands_of_call(product, given), path)
        for node in list(self.graph.nodes)[first:]:
            node.meta = {**call.meta, **node.meta, "module_path": call.meta.get("module_path", path)}
        self.products += 1
        return out

    def _operands_of_call(self, product: TensorProduct, arguments: dict[str, Any]) -> list[Any]:
        operands = [arguments["x"], arguments["y"], arguments["weight"]]
        if "edge_index" in arguments:
            ends = (self.graph.call_function(operator.getitem, (arguments["edge_index"], end)) for end in (0, 1))
            arguments["edge_src"], arguments["edge_dst"] = ends
        if "edge_src" in arguments:
            nodes = arguments.get("num_nodes")
            if nodes is None:
                nodes = self.graph.call_method("size", (arguments["x"], 0))
            operands += [arguments["edge_src"], arguments["edge_dst"], nodes]
        return operands

    def _copy_program_into_graph(self, product: TensorProduct, operands: list[Any], path: str) -> fx.Node:
        strategy = self.strategy or product.choice.strategy
        emission = emit_plan(product.plan, product.directions["forward"], strategy, product.layout)
        copies: dict[fx.Node, Any] = dict(zip(emission.graph.find_nodes(op="placeholder"), operands, strict=True))
        prefix = path.replace(".", "_")
        for node in emission.graph.nodes:
            if node.op == "output":
                return copies[node.args[0]]
            if node.op == "get_attr":
                copies[node] = self._get_or_add_constant_node(
                    str(node.target), emission.constants[str(node.target)], product
                )
                copies[node].meta.update(node.meta)
            elif node.op != "placeholder":
                target_args = fx.map_arg(node.args, lambda n: copies[n])
                target_kwargs = fx.map_arg(node.kwargs, lambda n: copies[n])
                copies[node] = self.graph.create_node(
                    node.op, node.target, target_args, target_kwargs, f"{prefix}_{node.name}", node.type
                )
                copies[node].meta.update(node.meta)
        raise AssertionError("an emitted graph ends in an output")

    def _get_or_add_constant_node(self, name: str, values: np.ndarray, product: TensorProduct) -> fx.Node:
        like = product.output_mask
        self.constants_before += 1
        key = (values.tobytes(), values.shape, str(values.dtype), like.dtype, like.device)
        if key not in self.names:
            taken, wanted = 0, name
            while wanted in self.constants or hasattr(self.original, wanted):
                taken += 1
                wanted = f"{name}_v{taken}"
            self.names[key] = wanted
            self.constants[wanted] = values
            tensor = torch.tensor(values)
            self.tensors[wanted] = tensor.to(like) if tensor.is_floating_point() else tensor.to(like.device)
        return self.graph.get_attr(self.names[key])


def _bind_arguments_of_product_call(module: nn.Module, path: str, args: Any, kwargs: Any) -> dict[str, Any]:
    bound = inspect.signature(type(module).forward).bind(module, *args, **kwargs)
    bound.apply_defaults()
    names = [*bound.arguments][1:]
    given = dict(zip(getattr(module, "program_arguments", names), bound.args[1:], strict=True))
    given.setdefault("y", given["x"])  # of a square
    if isinstance(given["weight"], (list, tuple)):
        raise TraceError(
            f"product {path!r} is called with a list of weights, which its program does not take: "
            "join them into one flat tensor in the network, or leave this product out with predicate=..."
        )
    return given


def _select_constants_that_graph_reads(graph: fx.Graph, constants: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    read = {node.target for node in graph.nodes if node.op == "get_attr"}
    return {name: values for name, values in constants.items() if name in read}


def _count_flops_of_call(module: nn.Module, inputs: Sequence[Any]) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with eval_mode_without_gradients(module), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops()
