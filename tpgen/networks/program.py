"""A whole network, forces by autograd included, as one program of `torch.export`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram, export
from torch.fx.experimental.proxy_tensor import make_fx

from tpgen._torch import pytree
from tpgen.errors import DeployError
from tpgen.networks.simplify import multiply_column
from tpgen.networks.sizes import Sizes
from tpgen.nn.edges import EdgeOrder


def network_program(network: nn.Module, inputs: Sequence[Any]) -> ExportedProgram:
    """The program of a network in evaluation, with derivatives that it takes inside written out.

    ``inputs`` are the arguments of one call.  Each size that is no size of a parameter stays open; sizes that are
    equal in ``inputs`` are taken to be the same size, so give two rows or more, and other numbers of atoms than edges.
    Raises `DeployError` for an `EdgeOrder`, where the network cannot be called with these inputs, and where it decides
    by values, which a program cannot.

    >>> program = network_program(nn.Linear(3, 2), [torch.randn(5, 3)])
    >>> program.module()(torch.randn(7, 3)).shape
    torch.Size([7, 2])
    """
    leaves = pytree.tree_leaves(list(inputs), is_leaf=lambda x: isinstance(x, EdgeOrder))
    if any(isinstance(x, EdgeOrder) for x in leaves):
        raise DeployError(
            "an EdgeOrder has a fixed number of nodes, which a program leaves open: let forward take its senders and "
            "receivers as tensors, and call the convolution with these"
        )
    frozen = copy.deepcopy(network).eval().requires_grad_(False)
    try:
        with torch.no_grad():
            frozen(*inputs)  # what is written at a first call must not be traced
    except Exception as error:
        raise DeployError(
            f"{type(network).__name__} cannot be called with these inputs, in evaluation and under torch.no_grad() "
            f"({type(error).__name__}: {_first_line(error)}): give the arguments of one call, each of them"
        ) from error
    try:
        with torch.no_grad():
            graph = make_fx(frozen, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs)
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
            multiply_column(graph.graph, node)
        graph.recompile()
        return export(_Asking(graph), tuple(inputs), dynamic_shapes=(pytree.tree_map(_open, tuple(inputs)),))
    except Exception as error:
        raise DeployError(
            f"{type(network).__name__} cannot be written as one program: {_first_line(error)}; take what depends on "
            "values, such as a search for neighbours, out of forward and give its result as an input"
        ) from error


class _Asking(nn.Module):
    """A traced graph that asks of sizes what its trace did, so that the program of the graph knows it."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.traced = graph
        placeholders = graph.graph.find_nodes(op="placeholder")
        self.tensors = [n for n, x in enumerate(placeholders) if isinstance(x.meta.get("val"), Tensor)]
        self.sizes = Sizes.of([placeholders[n].meta["val"] for n in self.tensors])

    def forward(self, *inputs: Any) -> Any:
        leaves = pytree.tree_leaves(inputs)
        assert self.sizes.hold([leaves[n] for n in self.tensors]), "of the example it was traced with"
        return self.traced(*inputs)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _open(x: Any) -> Any:
    return [Dim.AUTO] * x.dim() if isinstance(x, Tensor) else None
