"""NequIP's nets of edges, once for each pair: what it computes from lengths is marked, also behind a factor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nequip.data import AtomicDataDict as keys
from nequip.nn.embedding import BesselEdgeLengthEncoding
from nequip.nn.misc import ApplyFactor
from nequip.nn.mlp import ScalarMLPFunction
from torch import Tensor, nn

from tpgen.conversion.obstacles import has_more
from tpgen.conversion.radial import TAKER, convolves
from tpgen.conversion.swap import Swap
from tpgen.nn.pairs import NOW, carry_over, mark, once_for_pairs, pairs_of

_OF_EDGES = (keys.EDGE_VECTORS_KEY, keys.EDGE_LENGTH_KEY, keys.EDGE_CELL_SHIFT_KEY, keys.NORM_LENGTH_KEY)


class TpgenBesselEdgeLengthEncoding(BesselEdgeLengthEncoding):
    """NequIP's functions of the lengths of edges."""

    def __call__(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        """As NequIP's, and marked, unless somebody asks for gradients by single edges."""
        asked = any(name in data and data[name].is_leaf and data[name].requires_grad for name in _OF_EDGES)
        data = super().__call__(data)
        if keys.EDGE_VECTORS_KEY in data and not asked and not _has_more(self):
            mark(data[self.edge_invariant_field], data[keys.EDGE_INDEX_KEY], data[keys.EDGE_VECTORS_KEY])
        return data


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


_CLASSES: dict[type, type[nn.Module]] = {
    BesselEdgeLengthEncoding: TpgenBesselEdgeLengthEncoding,
    ApplyFactor: TpgenApplyFactor,
    ScalarMLPFunction: TpgenScalarMLPFunction,
}


def paired_edges(network: nn.Module, _options: dict[str, Any]) -> Iterator[Swap]:
    """Swaps of embeddings of lengths, of factors of what they give, and of nets of edges."""
    fields = {m.edge_invariant_field for m in network.modules() if type(m) is BesselEdgeLengthEncoding}
    for module in network.modules():
        if type(module) is BesselEdgeLengthEncoding:
            yield Swap(module, TpgenBesselEdgeLengthEncoding, NOW)
        elif type(module) is ApplyFactor and module.in_field in fields:
            yield Swap(module, TpgenApplyFactor, "")
        elif fields and isinstance(mlp := getattr(module, "edge_mlp", None), ScalarMLPFunction):
            yield Swap(mlp, TpgenScalarMLPFunction, "", {TAKER: (module.tp_scatter,)})
