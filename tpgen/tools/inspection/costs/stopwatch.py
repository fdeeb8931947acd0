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
    """Seconds of a call's parts."""

    device: str
    seconds: dict[Hashable, float] = field(default_factory=dict)  # without those of parts inside
    _open: list[tuple[Hashable, float, list[float]]] = field(default_factory=list)  # with seconds of parts inside
    _timed: set[Any] = field(default_factory=set)  # nodes of autograd

    def clear(self) -> None:
        self.seconds.clear()
        self._timed.clear()

    def time(self, forward: Hashable, backward: Hashable, call: Callable[[], Any]) -> Any:
        """Call as part ``forward``; the pass back is part ``backward``."""
        first = sequence_number()
        self._start(forward)
        try:
            out = call()
        finally:
            self._stop()
        self._start(BOOKKEEPING)
        for node in _autograd_nodes_since(first, out):
            if node not in self._timed:
                self._timed.add(node)
                node.register_prehook(lambda *_: self._start(backward))
                node.register_hook(lambda *_: self._stop())
        self._stop()
        return out

    def _start(self, part: Hashable) -> None:
        self._open.append((part, choose_clock(self.device)(self.device), []))

    def _stop(self) -> None:
        part, start, inside = self._open.pop()
        took = choose_clock(self.device)(self.device) - start
        self.seconds[part] = self.seconds.get(part, 0.0) + took - sum(inside)
        if self._open:
            self._open[-1][2].append(took)


def _autograd_nodes_since(first_number: int, returned: Any) -> Iterator[Any]:
    # a node has a larger number than those before it
    results = [*pytree.tree_leaves(returned), *(x for held in nested_dicts(returned) for x in held.values())]
    ahead: list[Any] = [
        x.grad_fn for x in results if isinstance(x, Tensor) and not (isinstance(x, Postponed) and x.is_uncomputed)
    ]
    last, seen = sequence_number(), {None}
    while ahead:
        node = ahead.pop()
        if node not in seen and first_number <= node._sequence_nr() < last:
            seen.add(node)
            yield node
            ahead += [before for before, _ in node.next_functions]
