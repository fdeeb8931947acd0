"""NequIP's nets of edges, once for each pair: what it computes from lengths is marked, also behind a factor.

Who gives vectors or lengths of edges may ask for gradients by them, which are those of single edges.  So where these
require a gradient, nothing is marked but what NequIP computed from positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from nequip.data import AtomicDataDict as keys
from nequip.nn.embedding import BesselEdgeLengthEncoding, EdgeLengthNormalizer, SphericalHarmonicEdgeAttrs
from nequip.nn.misc import ApplyFactor
from nequip.nn.mlp import ScalarMLPFunction
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from tpgen.conversion.obstacles import has_more
from tpgen.conversion.radial import TAKER, convolves
from tpgen.conversion.swap import Swap
from tpgen.nn.pairs import NOW, carry_over, mark, once_for_pairs, pairs_of

_VECTORS = (keys.EDGE_VECTORS_KEY, keys.EDGE_LENGTH_KEY)
_computed: Any = WeakTensorKeyDictionary()  # those that NequIP made of positions, or lengths of vectors, itself


class _Computing:
    """Remembers which vectors and lengths a module of NequIP's adds to a graph: whichever comes first computes them."""

    def __call__(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        if torch.compiler.is_compiling():
            return super().__call__(data)  # type: ignore[misc]
        before = [data.get(name) for name in _VECTORS]
        data = super().__call__(data)  # type: ignore[misc]
        for name, given in zip(_VECTORS, before, strict=True):
            if name in data and data[name] is not given:
                _computed[data[name]] = True
        return data


class TpgenEdgeLengthNormalizer(_Computing, EdgeLengthNormalizer):
    """NequIP's lengths of edges."""


class TpgenSphericalHarmonicEdgeAttrs(_Computing, SphericalHarmonicEdgeAttrs):
    """NequIP's harmonics of edges."""


class TpgenBesselEdgeLengthEncoding(BesselEdgeLengthEncoding):
    """NequIP's functions of the lengths of edges."""

    def __call__(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """As NequIP's, and marked, unless somebody asks for gradients by single edges."""
        asked = not torch.compiler.is_compiling() and self._is_asked(data)
        data = super().__call__(data)
        if keys.EDGE_VECTORS_KEY in data and not asked and not _has_more(self):
            mark(data[self.edge_invariant_field], data[keys.EDGE_INDEX_KEY], data[keys.EDGE_VECTORS_KEY])
        return data

    def _is_asked(self, data: dict[str, Tensor]) -> bool:
        """Whether somebody may ask for gradients by single edges."""
        given = [name for name in _VECTORS if name in data and data[name] not in _computed]
        return any(name in data and data[name].requires_grad for name in (keys.EDGE_CELL_SHIFT_KEY, *given))


class TpgenApplyFactor(ApplyFactor):
    """NequIP's factor of a field."""

    def __call__(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """As NequIP's; marked rows stay so."""
        rows = data[self.in_field]
        data = super().__call__(data)
        if not _has_more(self):
            carry_over(rows, data[self.out_field])
        return data


class TpgenScalarMLPFunction(ScalarMLPFunction):
    """NequIP's net of scalars."""

    def __call__(self, x: Tensor) -> Tensor:
        """As NequIP's, where rows are marked once for each pair; hooks see all rows."""
        if pairs_of(x) is None or _has_more(self):
            return super().__call__(x)
        return once_for_pairs(super().__call__, x, convolves(self))


def _has_more(module: nn.Module) -> bool:
    return any(map(has_more, module.modules()))


_COMPUTING: dict[type, type[nn.Module]] = {
    EdgeLengthNormalizer: TpgenEdgeLengthNormalizer,
    SphericalHarmonicEdgeAttrs: TpgenSphericalHarmonicEdgeAttrs,
}


def paired_edges(network: nn.Module, _options: dict[str, Any]) -> Iterator[Swap]:
    """Swaps of nets of edges, and of what computes their rows from lengths; none where there is no such net."""
    blocks: list[Any] = [m for m in network.modules() if isinstance(getattr(m, "edge_mlp", None), ScalarMLPFunction)]
    fields = {m.edge_invariant_field for m in network.modules() if type(m) is BesselEdgeLengthEncoding}
    if not (blocks and fields):
        return
    for module in network.modules():
        if type(module) in _COMPUTING:
            yield Swap(module, _COMPUTING[type(module)], "")
        elif type(module) is BesselEdgeLengthEncoding:
            yield Swap(module, TpgenBesselEdgeLengthEncoding, NOW)
        elif type(module) is ApplyFactor and module.in_field in fields:
            yield Swap(module, TpgenApplyFactor, "")
    for block in blocks:
        if type(block.edge_mlp) is ScalarMLPFunction:
            yield Swap(block.edge_mlp, TpgenScalarMLPFunction, "", {TAKER: (block, "edge_mlp", "tp_scatter")})
