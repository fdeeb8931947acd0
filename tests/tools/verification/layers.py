"""Layers of nodes and edges without points: right, and wrong as others could be."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from e3nn import o3
from torch import Tensor, nn

from tests.tools.verification.planted import Given, Planted, changed

NODES, HARMONICS = "4x0e+4x1o", "0e+1o"


class Convolution(nn.Module):
    """A product of neighbours and harmonics, summed, beside a linear layer of the node's own."""

    def __init__(self) -> None:
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct(NODES, HARMONICS, NODES, shared_weights=False)
        self.radial = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, self.product.weight_numel))
        self.own = o3.Linear(NODES, NODES)

    def forward(self, x: Tensor, src: Tensor, dst: Tensor, edge_attr: Tensor, edge_scalars: Tensor) -> Tensor:
        return self.of(x, src, dst, edge_attr, edge_scalars)

    def of(self, x: Tensor, src: Tensor, dst: Tensor, attr: Tensor, scalars: Tensor) -> Tensor:
        return self.own(x) + self.summed(self.messages(x[src], attr, scalars), dst, x)

    def messages(self, x: Tensor, attr: Tensor, scalars: Tensor) -> Tensor:
        return self.product(x, attr, self.radial(scalars))

    def summed(self, messages: Tensor, dst: Tensor, x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, dst, messages)


class Paired(Convolution):
    """Ends of edges in one matrix, one row for each edge."""

    def forward(self, x: Tensor, pairs: Tensor, edge_attr: Tensor, edge_scalars: Tensor) -> Tensor:  # type: ignore[override]
        return self.of(x, pairs[:, 0], pairs[:, 1], edge_attr, edge_scalars)


class Updating(Convolution):
    """New features of edges."""

    def of(self, x: Tensor, src: Tensor, dst: Tensor, attr: Tensor, scalars: Tensor) -> Tensor:
        return self.messages(x[src] - x[dst], attr, scalars)


class Attention(Convolution):
    """Weights of edges, normalised for each node, and a norm of each channel over all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, affine=False)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, edge_scalars: Tensor, batch: Tensor) -> Tensor:  # type: ignore[override]
        src, dst = edge_index
        weights = self.normalised(edge_scalars.sum(1).exp(), dst, len(x))
        messages = self.messages(x[src], edge_attr, edge_scalars) * weights[:, None]
        return self.summed(messages, dst, x) + self.norm(x[:, :4]).norm(dim=1, keepdim=True) * x

    def normalised(self, weights: Tensor, dst: Tensor, nodes: int) -> Tensor:
        return weights / (1.0 + weights.new_zeros(nodes).index_add(0, dst, weights)[dst])


class Pooling(nn.Module):
    def forward(self, x: Tensor, src: Tensor, dst: Tensor, weights: Tensor) -> Tensor:
        return x.new_zeros(3, 4).index_add(0, dst, x[src] * weights)


class Bipartite(Convolution):
    """From nodes of one kind to those of another."""

    def forward(self, x: Tensor, y: Tensor, src: Tensor, dst: Tensor, attr: Tensor, scalars: Tensor) -> Tensor:  # type: ignore[override]
        return self.own(y) + self.summed(self.messages(x[src], attr, scalars), dst, y)


def edges(nodes: int = 7, count: int = 20) -> Given:
    draw = torch.Generator().manual_seed(0)
    x, attr, scalars = (torch.randn(*shape, generator=draw).double() for shape in ((nodes, 16), (count, 4), (count, 3)))
    src, dst = torch.randint(nodes, (2, count), generator=draw)
    return x, src, dst, attr, scalars


def pairs() -> Given:
    x, src, dst, *rest = edges()
    return x, torch.stack([src, dst], 1), *rest


def graphs() -> Given:
    x, src, dst, *rest = edges(nodes=7)
    same = (src < 4) == (dst < 4)
    return x, torch.stack([src, dst])[:, same], *(y[same] for y in rest), (torch.arange(7) >= 4).long()


def pooled() -> Given:
    x, src, dst, _, scalars = edges()
    return x[:, :4], src, dst % 3, scalars[:, :1]


def bipartite() -> Given:
    x, src, dst, *rest = edges(nodes=5)
    return x, edges(nodes=7)[0], src, dst + 2, *rest


def _first_rows(self: Convolution, messages: Tensor, dst: Tensor, x: Tensor) -> Tensor:
    return Convolution.summed(self, messages, dst, x) + 0.1 * messages[: len(x)]


def _by_place(self: Convolution, x: Tensor, attr: Tensor, scalars: Tensor) -> Tensor:
    found = Convolution.messages(self, x, attr, scalars)
    return found * torch.linspace(0.9, 1.1, len(found)).to(found)[:, None]


def _first_node(self: Convolution, messages: Tensor, dst: Tensor, x: Tensor) -> Tensor:
    found = Convolution.summed(self, messages, dst, x)
    return torch.cat([1.1 * found[:1], found[1:]])


of = partial(changed, Convolution)
SAID: dict[str, Any] = {"irreps_in": {"x": NODES, "edge_attr": HARMONICS}, "irreps_out": NODES}
OF_BOTH = {"irreps_in": {"x": NODES, "y": NODES, "attr": HARMONICS}, "irreps_out": NODES}
ASKED = ["equivariant", "permutation", "edges", "finite", "history", "memory", "saved"]


def _layer(laws: str | list[str], made: Any, given: Any = edges, said: dict = SAID, **more: Any) -> Planted:
    return Planted(laws, made, given, said=said, **more)


FAULTS: dict[str, Planted] = {
    "edges added to nodes": _layer(["permutation", "edges"], of(summed=_first_rows)),
    "edges that count by their places": _layer("edges", of(messages=_by_place)),
    "a node that counts by its place": _layer("permutation", of(summed=_first_node)),
    "weights normalised over all edges": _layer(
        "batch", changed(Attention, normalised=lambda self, weights, dst, nodes: weights / weights.sum()), graphs
    ),
    "pairs, edges added to nodes": _layer(
        ["permutation", "edges"],
        changed(Paired, summed=_first_rows),
        pairs,
        {**SAID, "irreps_in": {**SAID["irreps_in"], "pairs": "indices_of_atoms"}},
    ),
}
RIGHT: dict[str, Planted] = {
    "a convolution": _layer(ASKED, Convolution),
    "a convolution of pairs": _layer(ASKED, Paired, pairs),
    "new features of edges": _layer(ASKED, Updating),
    "attention, and a norm over a batch": _layer([*ASKED, "batch"], Attention, graphs),
}
TOLD: dict[str, Planted] = {
    "nodes that are pooled by an index": _layer(
        "permutation", Pooling, pooled, {"irreps_in": [None, None], "irreps_out": [None]}, why="ends of edges"
    ),
    "nodes of two kinds": _layer("edges", Bipartite, bipartite, OF_BOTH, why="known to be ends of edges"),
    "pairs of no known name": _layer("edges", changed(Paired, summed=_first_rows), pairs, why="say irreps_in={'pairs'"),
}
