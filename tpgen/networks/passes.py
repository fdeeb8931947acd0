"""Backward passes through a network's own graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import compress, repeat
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from tpgen.base._torch import current_node
from tpgen.kernels.runtime.registration import find_used_gradients
from tpgen.networks.gradients import BackwardPass, GradientRequest, is_served

_LEAVES = "leaves of tpgen"  # of results, among a node's metadata


class Watcher(Protocol):
    """Learns of backward passes."""

    def knows_leaves(self, leaves: frozenset[int], again: bool) -> bool:
        """Whether passes from these leaves are known; ``again``: ones that record a graph."""

    def note_pass(self, found: BackwardPass) -> None:
        """Learn of a pass."""


def watch_passes(watcher: Watcher, leaves: Sequence[Any], sources: Callable[[], Sequence[Tensor]]) -> None:
    """Tell ``watcher`` of backward passes that reach leaves."""
    for n, x in enumerate(leaves):
        if isinstance(x, Tensor) and x.grad_fn is not None:
            node: Any = x.grad_fn
            held = node.metadata.setdefault(_LEAVES, [])
            if not held:
                node.register_prehook(partial(_note_present_pass, watcher, sources))
            held.append((n, x.output_nr, ref(x)))


def _note_present_pass(
    watcher: Watcher, sources_of_call: Callable[[], Sequence[Tensor]], gradients: Sequence[Tensor | None]
) -> None:
    node, again = current_node(), torch.is_grad_enabled()
    results = {n: x() for n, place, x in node.metadata[_LEAVES] if gradients[place] is not None}
    hooked = any(x is not None and (x.retains_grad or x._backward_hooks) for x in results.values())
    if not hooked and watcher.knows_leaves(frozenset(results), again):
        return
    sources = sources_of_call()
    asking = [n for n, x in enumerate(sources) if x.requires_grad]
    edges: list[Any] = [tuple(get_gradient_edge(sources[n]))[:2] for n in asking]
    wanted = list(compress(asking, find_used_gradients(repeat(True), edges)))
    served = is_served(x for x in gradients if x is not None)
    behind = frozenset(n for of in _nodes_behind(node) for n, _, _ in of.metadata.get(_LEAVES, ()))
    request, plain = GradientRequest.of(results, wanted), served and bool(wanted)
    watcher.note_pass(BackwardPass(request, frozenset(asking), again, plain, hooked, behind))


def _nodes_behind(node: Any) -> Iterator[Any]:
    seen, pending = {node}, [node]
    while pending:
        for found, _ in pending.pop().next_functions:
            if found is not None and found not in seen:
                seen.add(found)
                pending.append(found)
                yield found
