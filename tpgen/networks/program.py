"""Networks, forces included, by `torch.export`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram, export
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from tpgen.base._torch import ConstantSource, pytree, trace_for_sizes_zero_and_one
from tpgen.base.errors import DeployError, first_line
from tpgen.networks.bypass import bypassing_programs
from tpgen.networks.copies import copy_of
from tpgen.networks.dependent import explain_data_dependent_errors, user_line_of_error
from tpgen.networks.edges import fuse_gathers_and_sums
from tpgen.networks.functional import free_source_texts_with_graphs, make_fake_mode, trace_without_writes
from tpgen.networks.products import replace_matrix_products_by_kernels
from tpgen.networks.simplify import multiply_column, simplify_graph
from tpgen.networks.sizes import InputSizes
from tpgen.nn.edges import EdgeOrder

_SQUEEZES = {getattr(torch.ops.aten.squeeze, name) for name in ("default", "dim", "dims")}


def network_program(network: nn.Module, inputs: Sequence[Any], few_alike: bool = False) -> ExportedProgram:
    """Export a network in evaluation, with the derivatives that the network takes.

    ``inputs`` are the arguments of one call.  Sizes from 2 on stay open, except parameters'; equal sizes count as one:
    give different numbers of atoms and edges.  If the network squeezes, or tests for an empty tensor, the program
    excludes sizes 0 or 1, unless ``few_alike`` asserts equal results.

    Raises `DeployError` for an `EdgeOrder`, failing inputs, and decisions by values.

    >>> program = network_program(nn.Linear(3, 2), [torch.randn(5, 3)])
    >>> [len(program.module()(torch.randn(rows, 3))) for rows in (7, 1, 0)]
    [7, 1, 0]
    """
    leaves = pytree.tree_leaves(list(inputs), is_leaf=lambda x: isinstance(x, EdgeOrder))
    if any(isinstance(x, EdgeOrder) for x in leaves):
        raise DeployError(
            "an EdgeOrder has a fixed number of nodes, which a program leaves open: let forward take its senders and "
            "receivers as tensors, and call the convolution with these"
        )
    frozen = copy_of(network).eval().requires_grad_(False)
    try:
        with torch.no_grad(), bypassing_programs():
            frozen(*inputs)  # what is written at a first call must not be traced
    except Exception as error:
        raise DeployError(
            f"{type(network).__name__} cannot be called with these inputs, in evaluation and under torch.no_grad() "
            f"({type(error).__name__}: {first_line(error)}): give the arguments of one call, each of them"
        ) from error
    try:
        given, spec = pytree.tree_flatten(list(inputs))
        mode = make_fake_mode()
        with trace_for_sizes_zero_and_one(few_alike), free_source_texts_with_graphs(), explain_data_dependent_errors():
            with torch.no_grad():
                graph = trace_without_writes(
                    lambda *x: frozen(*pytree.tree_unflatten(x, spec)), _fake_inputs(mode, given)
                )
            if not few_alike:
                _record_sizes_of_squeezes_as_guards(graph.graph)
            simplify_graph(graph.graph)
            for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
                multiply_column(graph.graph, node)
            if any(getattr(node.target, "namespace", "") == "tpgen" for node in graph.graph.nodes):
                _add_fake_values_to_constants(graph, mode)
                fuse_gathers_and_sums(graph.graph)
                replace_matrix_products_by_kernels(graph.graph)
            graph.recompile()
            return export(
                _WithSizeConditions(graph),
                tuple(inputs),
                dynamic_shapes=(pytree.tree_map(_dynamic_sizes, tuple(inputs)),),
            )
    except DeployError as error:
        raise DeployError(f"{type(network).__name__} cannot be written as one program: {error}") from error
    except Exception as error:
        raise DeployError(
            f"{type(network).__name__} cannot be written as one program: {first_line(error)}"
            f"{user_line_of_error(error)}; take what depends on values, such as a search for neighbours, out of "
            "forward and give its result as an input"
        ) from error


class _WithSizeConditions(nn.Module):
    """Traced graph that asserts size conditions, for an export to record."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.traced = graph
        placeholders = graph.graph.find_nodes(op="placeholder")
        self.tensors = [n for n, x in enumerate(placeholders) if isinstance(x.meta.get("val"), Tensor)]
        self.sizes = InputSizes.read_from_trace([placeholders[n].meta["val"] for n in self.tensors], least=0)

    def forward(self, *inputs: Any) -> Any:
        """Assert the size conditions, and run the graph."""
        leaves = pytree.tree_leaves(inputs)
        assert self.sizes.hold([leaves[n] for n in self.tensors]), "of the example it was traced with"
        return self.traced(*leaves)


def _record_sizes_of_squeezes_as_guards(graph: fx.Graph) -> None:
    # let programs with open sizes that a squeeze would leave out be for others than 1: torch asks no more of it
    for node in graph.nodes:
        if node.target in _SQUEEZES:
            x: Any = node.args[0].meta["val"]
            dims = node.args[1] if len(node.args) > 1 else range(x.dim())
            for dim in [dims] if isinstance(dims, int) else dims:
                if x.dim():
                    bool(x.shape[dim] != 1)  # which is a condition from here on


def _add_fake_values_to_constants(graph: fx.GraphModule, fake_mode: Any) -> None:
    # give constants values beside those of all other nodes: a trace gives each a mode of its own
    for node in graph.graph.find_nodes(op="get_attr"):
        if isinstance(held := getattr(graph, node.target), Tensor):
            node.meta["val"] = fake_mode.from_tensor(held, static_shapes=True)


def _fake_inputs(mode: Any, leaves: Sequence[Any]) -> list[Any]:
    # inputs without numbers: their sizes from 2 on are open, and the same where they are equal
    return [_make_fake_input(mode, x, n) if isinstance(x, Tensor) else x for n, x in enumerate(leaves)]


def _make_fake_input(mode: Any, x: Tensor, number: int) -> Tensor:
    opened: Any = [DimDynamic.DUCK if n > 1 else DimDynamic.STATIC for n in x.shape]
    sizes: Any = StatelessSymbolicContext(dynamic_sizes=opened)
    return mode.from_tensor(x.detach().clone(), symbolic_context=sizes, source=ConstantSource(f"input{number}"))


def _dynamic_sizes(x: Any) -> Any:
    return [Dim.AUTO if n > 1 else Dim.STATIC for n in x.shape] if isinstance(x, Tensor) else None
