"""Seconds of parts that call each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tpgen.base._torch import pytree, sequence_number
from tpgen.base.clock import choose_clock
from tpgen.networks.conversion.postponed import Postponed
from tpgen.networks.objects import nested_dicts

BOOKKEEPING = "bookkeeping"


@dataclass
class Stopwatch:
    """Seconds in each part of a call, without nested parts."""

    device: str
    seconds: dict[Hashable, float] = field(default_factory=dict)  # without those of parts inside
    _open: list[tuple[Hashable, float, list[float]]] = field(default_factory=list)  # with seconds of parts inside
    _timed: set[Any] = field(default_factory=set)  # nodes of autograd

    def clear(self) -> None:
        self.seconds.clear()
        self._timed.clear()

    def time_call(self, forward_part: Hashable, backward_part: Hashable, call: Callable[[], Any]) -> Any:
        """Run ``call``, timed as ``forward_part``; time the backward pass as ``backward_part``."""
        first = sequence_number()
        self._start_part(forward_part)
        try:
            out = call()
        finally:
            self._stop_innermost_part()
        self._start_part(BOOKKEEPING)
        for node in _find_autograd_nodes_since(first, out):
            if node not in self._timed:
                self._timed.add(node)
                node.register_prehook(lambda *_: self._start_part(backward_part))
                node.register_hook(lambda *_: self._stop_innermost_part())
        self._stop_innermost_part()
        return out

    def _start_part(self, part: Hashable) -> None:
        self._open.append((part, choose_clock(self.device)(self.device), []))

    def _stop_innermost_part(self) -> None:
        part, start, inside = self._open.pop()
        took = choose_clock(self.device)(self.device) - start
        self.seconds[part] = self.seconds.get(part, 0.0) + took - sum(inside)
        if self._open:
            self._open[-1][2].append(took)


def _find_autograd_nodes_since(first_sequence_number: int, returned: Any) -> Iterator[Any]:
    # a node has a larger number than those before it
    results = [*pytree.tree_leaves(returned), *(x for held in nested_dicts(returned) for x in held.values())]
    ahead: list[Any] = [
        x.grad_fn for x in results if isinstance(x, Tensor) and not (isinstance(x, Postponed) and x.is_uncomputed)
    ]
    last, seen = sequence_number(), {None}
    while ahead:
        node = ahead.pop()
        if node not in seen and first_sequence_number <= node._sequence_nr() < last:
            seen.add(node)
            yield node
            ahead += [before for before, _ in node.next_functions]
