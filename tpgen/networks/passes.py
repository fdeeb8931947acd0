"""Backward passes through a network's own graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress, repeat
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from tpgen.base._torch import current_node
from tpgen.kernels.runtime.registration import find_used_gradients
from tpgen.networks.gradients import BackwardPass, GradientRequest, are_plain_cotangents, find_inputs_of_running_grad
from tpgen.networks.outcome import nodes_behind, own_leaves, sources_of

_LEAVES = "leaves of tpgen"  # of results, among a node's metadata


class BackwardPassListener(Protocol):
    """Is told of backward passes."""

    def knows_leaves(self, leaves: frozenset[int], again: bool) -> bool:
        """Whether passes from these leaves are known; ``again``: ones that record a graph."""

    def note_pass(self, found: BackwardPass) -> None:
        """Learn of a pass."""


def watch_passes(
    listener: BackwardPassListener, network: nn.Module, tensors: Sequence[Tensor], leaves: Sequence[Any]
) -> None:
    """Tell ``listener`` of backward passes that reach result leaves."""
    edges = list(map(_gradient_edge_of, (*tensors, *own_leaves(leaves))))
    for n, x in enumerate(leaves):
        if isinstance(x, Tensor) and x.grad_fn is not None:
            node: Any = x.grad_fn
            held = node.metadata.setdefault(_LEAVES, [])
            if not held:
                node.register_prehook(partial(_report_running_backward_pass, ref(listener), ref(network), edges))
            held.append((n, x.output_nr, ref(x)))


def _gradient_edge_of(x: Tensor) -> Any:
    return tuple(get_gradient_edge(x))[:2] if x.requires_grad else None


def _report_running_backward_pass(
    get_listener: Callable[[], BackwardPassListener | None],
    get_network: Callable[[], nn.Module | None],
    input_edges: Sequence[Any],
    gradients: Sequence[Tensor | None],
) -> None:
    watcher, network = get_listener(), get_network()
    if watcher is None or network is None:
        return
    node, again = current_node(), torch.is_grad_enabled()
    results = {n: x() for n, place, x in node.metadata[_LEAVES] if gradients[place] is not None}
    hooked = any(x is not None and (x.retains_grad or x._backward_hooks) for x in results.values())
    ends, known = {edge[0] for edge in input_edges if edge is not None}, watcher.knows_leaves(frozenset(results), again)
    asked = {x.grad_fn for x in find_inputs_of_running_grad()} - ends
    if known and not hooked and not asked:
        return
    inside = set(nodes_behind(node, ends))
    hooked |= not asked.isdisjoint(inside)
    if known and not hooked:
        return
    edges = {
        n: edge
        for n, edge in enumerate((*map(_gradient_edge_of, sources_of(network, ())), *input_edges))
        if edge is not None
    }
    wanted = list(compress(edges, find_used_gradients(repeat(True), list(edges.values()))))
    served = are_plain_cotangents(x for x in gradients if x is not None)
    behind = frozenset(n for of in inside for n, _, _ in of.metadata.get(_LEAVES, ()))
    request, plain = GradientRequest.from_numbers(results, wanted), served and bool(wanted)
    watcher.note_pass(BackwardPass(request, frozenset(edges), again, plain, hooked, behind))
