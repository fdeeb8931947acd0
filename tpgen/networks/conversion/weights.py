"""Weights of edges and products with them, postponed until something says whether the products are summed by node.

A net whose last layer is as wide as the weights of a product gives `PostponedWeights`, the product of these gives
`PostponedRows`, and where these are summed by node `late_weights` computes the sums without either.  All else that is
done with them reads their numbers, which are those of the stock network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from tpgen.base._torch import is_tracing
from tpgen.networks.conversion.late_weights import WORTH_LATE, late_weights
from tpgen.networks.conversion.postponed import Postponed
from tpgen.nn.autocast import autocasting
from tpgen.nn.plain_tensors import is_traced, is_usual

_Function = Callable[..., Tensor]


@dataclass(frozen=True)
class LastLayer:
    """The last layer of a net: a function of rows ``h`` and its parameters, and the matrix that this multiplies by.

    Both take the parameters; ``matrix`` gives ``(hidden, numel)``, with a row more where the layer ``adds`` a bias.
    ``columns`` multiply the rows of its results.
    """

    multiply: _Function
    matrix: _Function
    adds: bool = False
    columns: tuple[Tensor, ...] = ()

    def __call__(self, h: Tensor, *parameters: Tensor) -> Tensor:
        found = self.multiply(h, *parameters)
        for column in self.columns:
            found = found * column
        return found

    def rows(self, h: Tensor) -> Tensor:
        """The rows that the matrix is multiplied with."""
        h = torch.cat([h, h.new_ones(h.shape[0], 1)], 1) if self.adds else h
        for column in self.columns:
            h = h * column
        return h


class PostponedWeights(Postponed):
    """Weights of edges ``(edges, numel)``, results of a last layer."""

    RULES: ClassVar[dict[Any, Callable[..., Any]]] = {}


class PostponedRows(Postponed):
    """Products of edges ``(edges, out)`` with postponed weights."""

    RULES: ClassVar[dict[Any, Callable[..., Any]]] = {}
    weights: Any

    def computed(self) -> Tensor:
        product: Any = self.made.function
        w = self.weights
        if isinstance(w, Postponed) and w.made.function is product.layer:
            w = w.become_plain()
        if isinstance(w, Postponed) or w._version:  # somebody has written to the weights since
            return super().computed()
        return self.made.computed(lambda x, y, *_: product.program.forward(x, y, w))  # hooks on the weights run

    def summed(self, nodes: Tensor, count: Any) -> Any:
        """Sums over the rows of each of ``count`` nodes; NotImplemented where a sum of rows is no slower."""
        product: Any = self.made.function
        program, layer = product.program, product.layer
        hidden, known = self.made.operands[2].shape[1] + layer.adds, _known(count)
        late = late_weights(program.plan, hidden, known)
        if late is None or not self.made.is_as_then or not _waits(self.weights):
            return NotImplemented
        if not late.is_worth(_known(nodes.shape[0]), known, hidden):
            return NotImplemented
        return self.made.computed(
            lambda x, y, h, *parameters: late.summed(x, y, layer.rows(h), layer.matrix(*parameters), nodes, count)
        )


@dataclass(frozen=True)
class _Product:
    program: Any
    layer: LastLayer  # as the weights are when the product is taken

    def __call__(self, x: Tensor, y: Tensor, *operands: Tensor) -> Tensor:
        return self.program.forward(x, y, self.layer(*operands))


def _waits(w: Any) -> bool:
    return isinstance(w, PostponedWeights) and w.open


def _known(size: Any) -> int | None:
    # of a size that a trace leaves open, that of its example; None where it depends on data
    return size if isinstance(size, int) else size.node.hint


def _takes(*tensors: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.is_inference_mode_enabled() or autocasting(tensors[0].device):
        return False
    if len({x.dtype for x in tensors}) > 1 or is_tracing() or any(x.is_inference() for x in tensors):
        return False
    return is_usual(*tensors) or all(map(is_traced, tensors))


def weights_of(layer: LastLayer, h: Tensor, *parameters: Tensor) -> Tensor:
    """The results of a last layer, postponed where that may pay."""
    if h.dim() == 2 and _takes(h, *parameters):
        edges, hidden = h.shape
        width = parameters[0].numel() // max(hidden, 1)  # of a matrix, whichever way it lies
        known = _known(edges)
        if known is None or known * hidden * width >= WORTH_LATE:
            return PostponedWeights.of(layer, (h, *parameters), (edges, width))
    return layer(h, *parameters)


def product_of_edges(program: Any, x: Tensor, y: Tensor, w: Any) -> Tensor:
    """A product of rows, postponed where its weights are."""
    late = _waits(w) and w.made.is_as_then and x.dim() == y.dim() == 2
    if late and x.shape[0] == y.shape[0] == w.shape[0] and _takes(x, y, w.made.operands[0]):
        shape, layer = (x.shape[0], program.plan.irreps_out.dim), w.made.function
        rows = PostponedRows.of(_Product(program, layer), (x, y, *w.made.operands), shape)
        rows.weights = w
        return rows
    return program.forward(x, y, w.become_plain() if isinstance(w, Postponed) else w)


# -- what networks do with them ----------------------------------------------------------------------------------------


def _scaled_in_place(w: Any, other: Any) -> Any:
    # the weights are another function from now on; products that were taken before keep theirs
    column = isinstance(other, Tensor) and not isinstance(other, Postponed) and not other.requires_grad
    if not column or other.dim() != 2 or other.shape[1] != 1 or other.dtype != w.dtype or not w.made.is_as_then:
        return NotImplemented
    layer = w.made.function
    w.made.function = replace(layer, columns=(*layer.columns, other.clone()))
    return w


def _scatter(input: Any, dim: int, index: Any, src: Any, *, in_place: bool, out: Any = None) -> Any:
    rows = isinstance(src, PostponedRows) and not isinstance(input, Postponed) and dim in (0, -2) and out is None
    if not rows or index.dim() != 2 or index.stride(1) != 0 or index.shape != src.shape:
        return NotImplemented
    return _added(input, index.select(1, 0), src, in_place)


def _index(input: Any, dim: int, index: Any, source: Any, *, in_place: bool, alpha: float = 1, out: Any = None) -> Any:
    rows = isinstance(source, PostponedRows) and not isinstance(input, Postponed) and dim in (0, -2) and alpha == 1
    return _added(input, index, source, in_place) if rows and index.dim() == 1 and out is None else NotImplemented


def _added(out: Tensor, nodes: Tensor, rows: PostponedRows, in_place: bool) -> Any:
    if out.dim() != 2 or out.shape[1] != rows.shape[1] or out.dtype != rows.dtype or nodes.dtype != torch.int64:
        return NotImplemented
    sums = rows.summed(nodes, out.shape[0])
    if sums is NotImplemented:
        return sums
    return out.add_(sums) if in_place else out + sums


PostponedWeights.RULES.update({Tensor.mul_: _scaled_in_place, Tensor.__imul__: _scaled_in_place})
for _add, _takes_it in ((_scatter, "scatter_add"), (_index, "index_add")):
    PostponedRows.RULES[getattr(torch, _takes_it)] = partial(_add, in_place=False)
    PostponedRows.RULES[getattr(Tensor, _takes_it)] = partial(_add, in_place=False)
    PostponedRows.RULES[getattr(Tensor, _takes_it + "_")] = partial(_add, in_place=True)
