"""Exponentials in matrix products."""

# A processor multiplies subnormal numbers, below 1e-38 in float32, ten times slower; Gaussians of distances have many.

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import fx

from tpgen.networks.loops import EXACT_DTYPES
from tpgen.networks.simplify import insert_call

_aten = torch.ops.aten
_MOVES = {  # operators whose results have numbers of their first operand
    *(_aten.view.default, _aten._unsafe_view.default, _aten.t.default, _aten.unsqueeze.default, _aten.squeeze.dim),
    *(_aten.clone.default, _aten.slice.Tensor),
}


def multiply_no_subnormal_exponentials(graph: fx.Graph) -> None:
    """Let matrix products read zeros for subnormal exponentials."""
    flushed = dict[fx.Node, fx.Node]()
    for target in (_aten.mm.default, _aten.addmm.default):
        for node in graph.find_nodes(op="call_function", target=target):
            *bias, left, right = node.args
            with graph.inserting_before(node):
                node.args = (*bias, *(_insert_normal_numbers(graph, x, flushed) for x in (left, right)))
    graph.eliminate_dead_code()


def _insert_normal_numbers(graph: fx.Graph, node: Any, flushed: dict[fx.Node, fx.Node]) -> fx.Node:
    if node not in flushed:
        flushed[node] = node
        insert, operands = partial(_insert_normal_numbers, graph, flushed=flushed), node.args
        if node.target is _aten.exp.default and node.meta["val"].dtype in EXACT_DTYPES:
            with graph.inserting_after(node):
                least = torch.finfo(node.meta["val"].dtype).tiny
                is_subnormal = insert_call(graph, _aten.lt.Scalar, node, least)
            with graph.inserting_after(is_subnormal):
                flushed[node] = insert_call(graph, _aten.masked_fill.Scalar, node, is_subnormal, 0.0)
        elif node.target in _MOVES or node.target is _aten.cat.default:
            first: Any = operands[0]
            new = [insert(x) for x in first] if node.target is _aten.cat.default else insert(first)
            if new != first:
                with graph.inserting_after(node):
                    flushed[node] = insert_call(graph, node.target, new, *operands[1:], **node.kwargs)
    return flushed[node]
