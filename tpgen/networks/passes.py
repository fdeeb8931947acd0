"""Backward passes through a network's own graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress, repeat
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from tpgen.base._torch import current_node
from tpgen.kernels.runtime.registration import asked_for
from tpgen.networks.gradients import BackwardPass, GradientRequest, is_served

_LEAVES = "leaves of tpgen"  # of results, among a node's metadata


def watch_passes(
    leaves: Sequence[Any], sources: Callable[[], Sequence[Tensor]], note: Callable[[BackwardPass], None]
) -> None:
    """Call ``note`` whenever a backward pass reaches a leaf that has a graph."""
    for n, x in enumerate(leaves):
        if isinstance(x, Tensor) and x.grad_fn is not None:
            node: Any = x.grad_fn
            held = node.metadata.setdefault(_LEAVES, [])
            if not held:
                node.register_prehook(lambda gradients: note(_present_pass(gradients, sources())))
            held.append((n, x.output_nr, ref(x)))


def _present_pass(gradients: Sequence[Tensor | None], sources: Sequence[Tensor]) -> BackwardPass:
    node = current_node()
    results = [(n, x()) for n, place, x in node.metadata[_LEAVES] if gradients[place] is not None]
    asking = [n for n, x in enumerate(sources) if x.requires_grad]
    edges: list[Any] = [tuple(get_gradient_edge(sources[n]))[:2] for n in asking]
    wanted = list(compress(asking, asked_for(repeat(True), edges)))
    hooked = any(x is not None and (x.retains_grad or x._backward_hooks) for _, x in results)
    served = is_served(x for x in gradients if x is not None)
    behind = frozenset(n for of in _nodes_behind(node) for n, _, _ in of.metadata.get(_LEAVES, ()))
    request, plain = GradientRequest.of((n for n, _ in results), wanted), served and bool(wanted)
    return BackwardPass(request, frozenset(asking), torch.is_grad_enabled(), plain, hooked, behind)


def _nodes_behind(node: Any) -> Iterator[Any]:
    seen, pending = {node}, [node]
    while pending:
        for found, _ in pending.pop().next_functions:
            if found is not None and found not in seen:
                seen.add(found)
                pending.append(found)
                yield found
