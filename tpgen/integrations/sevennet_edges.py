"""SevenNet's nets of edges, once for each pair: its embedding of lengths marks them, where its outputs allow that.

SevenNet differentiates by the vectors of edges, and makes forces and stress of what both edges of a pair have together.
A virial of each atom is made of single edges: where that is asked for, nothing is marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sevenn._keys as keys
import torch
from sevenn.nn.edge_embedding import EdgeEmbedding, EdgePreprocess
from sevenn.nn.force_output import ForceStressOutputFromEdge
from torch import Tensor, nn

from tpgen.conversion.obstacles import has_more
from tpgen.conversion.swap import Swap
from tpgen.nn.pairs import NOW, mark

_GIVEN = (keys.POS, keys.CELL, keys.CELL_SHIFT)


class TpgenEdgeEmbedding(EdgeEmbedding):
    """SevenNet's functions of the vectors of edges."""

    def __call__(self, data: Any) -> Any:
        """As SevenNet's, and marked."""
        data = super().__call__(data)
        vectors = data[keys.EDGE_VEC]
        if isinstance(vectors, Tensor) and _may_be_pairs(self, data, vectors):
            mark(data[keys.EDGE_EMBEDDING], data[keys.EDGE_IDX], vectors)
        return data


def _may_be_pairs(embedding: Any, data: Any, vectors: Tensor) -> bool:
    """Whether nothing is differentiated by single edges, or by SevenNet's own outputs alone."""
    (holder,) = embedding._tpgen_holder
    beside = list(holder.children())
    outputs = [m for m in beside if type(m) is ForceStressOutputFromEdge]
    if any(getattr(out, "use_atomic_virial", False) for out in outputs) or any(map(has_more, embedding.modules())):
        return False
    if not (torch.is_grad_enabled() and vectors.requires_grad) or _are_computed(beside):
        return True
    asked = any(isinstance(x, Tensor) and x.requires_grad for x in (data[n] for n in _GIVEN if n in data))
    return bool(outputs) and not asked


def _are_computed(beside: Iterable[nn.Module]) -> bool:
    """Whether vectors are none that somebody gave, and so may ask about: SevenNet makes them of positions."""
    return any(type(m) is EdgePreprocess for m in beside)


def paired_edges(network: nn.Module) -> Iterator[Swap]:
    """Swaps of embeddings; each remembers who holds it, whose outputs and their settings may change."""
    holders = {m: holder for holder in network.modules() for m in holder.children() if type(m) is EdgeEmbedding}
    for module, holder in holders.items():
        yield Swap(module, TpgenEdgeEmbedding, NOW, {"_tpgen_holder": (holder,)})
