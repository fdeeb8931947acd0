"""Places of a graph's nodes in ranks: what is read stands above, few lines cross, and long lines pass between nodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)
Point = tuple[float, float]
_ROUNDS = 8
_NARROW = 0.5  # room of a line that passes a rank, of that of a node


@dataclass(frozen=True)
class _Bend:
    """The place where the line between two nodes passes a rank."""

    source: Hashable
    target: Hashable
    rank: int


def layered(
    reads: Mapping[Node, Sequence[Node]], inputs: Iterable[Node] = ()
) -> tuple[dict[Node, Point], dict[tuple[Node, Node], list[Point]]]:
    """The place of every node, and the points of the line between each two of which one reads the other.

    ``reads`` has every node behind those it reads.  Ranks go down from 0, a unit apart; ``inputs`` stand at the top,
    other nodes that read nothing just above the first that reads them.

    >>> places, lines = layered({"a": [], "b": [], "c": ["a", "b"], "d": ["c", "a"]}, inputs=["a", "b"])
    >>> [y for _, y in places.values()]
    [0, 0, -1, -2]
    >>> [y for _, y in lines["a", "d"]]
    [0, -1, -2]
    """
    depth = _depths(reads, set(inputs))
    above: dict[Hashable, list[Hashable]] = {node: [] for node in reads}
    chains = {(source, node): _chain(source, node, depth) for node in reads for source in dict.fromkeys(reads[node])}
    for chain in chains.values():
        for one, other in pairwise(chain):
            above.setdefault(other, []).append(one)
    ranks: list[list[Hashable]] = [[] for _ in range(1 + max(depth.values(), default=0))]
    for one in above:
        ranks[one.rank if isinstance(one, _Bend) else depth[one]].append(one)  # type: ignore[index]
    x = _across(ranks, above)
    y: dict[Hashable, float] = {one: -n for n, rank in enumerate(ranks) for one in rank}
    lines = {ends: [(x[one], y[one]) for one in chain] for ends, chain in chains.items()}
    return {node: (x[node], y[node]) for node in reads}, lines


def _depths(reads: Mapping[Node, Sequence[Node]], inputs: set[Node]) -> dict[Node, int]:
    depth: dict[Node, int] = {}
    for node, sources in reads.items():
        depth[node] = 1 + max((depth[source] for source in sources), default=-1)
    first: dict[Node, int] = {}  # reader's rank
    for node, sources in reads.items():
        for source in sources:
            first[source] = min(first.get(source, depth[node]), depth[node])
    return {n: d if reads[n] or n in inputs else max(0, first.get(n, 1) - 1) for n, d in depth.items()}


def _chain(source: Node, target: Node, depth: Mapping[Node, int]) -> list[Hashable]:
    return [source, *(_Bend(source, target, n) for n in range(depth[source] + 1, depth[target])), target]


def _across(ranks: list[list[Hashable]], above: Mapping[Hashable, list[Hashable]]) -> dict[Hashable, float]:
    """Place nodes and bends from left to right: by turns near what stands above and near what stands below."""
    below: dict[Hashable, list[Hashable]] = {}
    for one, sources in above.items():
        for source in sources:
            below.setdefault(source, []).append(one)
    x = {one: place for rank in ranks for one, place in zip(rank, _spaced(rank, [0.0] * len(rank)), strict=True)}
    for turn in range(2 * _ROUNDS):
        near = above if turn % 2 == 0 else below
        for rank in ranks if turn % 2 == 0 else reversed(ranks):
            wanted = {one: _mean([x[other] for other in near.get(one, ())], x[one]) for one in rank}
            rank.sort(key=lambda one: wanted[one])
            x.update(zip(rank, _spaced(rank, [wanted[one] for one in rank]), strict=True))
    return x


def _spaced(rank: Sequence[Hashable], wanted: Sequence[float]) -> list[float]:
    """Places in this order, as near to those wanted as there is room, and centred on them."""
    found: list[float] = []
    for n, (one, x) in enumerate(zip(rank, wanted, strict=True)):
        room = (_room(rank[n - 1]) + _room(one)) / 2
        found.append(max(x, found[-1] + room) if found else x)
    shift = _mean(wanted, 0.0) - _mean(found, 0.0)
    return [x + shift for x in found]


def _room(one: Hashable) -> float:
    return _NARROW if isinstance(one, _Bend) else 1.0


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
