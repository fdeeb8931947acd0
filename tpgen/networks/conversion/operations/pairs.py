r"""Pairs of edges: what depends on the length of an edge alone is computed once for both of its directions.

A list of neighbours holds i → j and j → i, whose vectors are negatives of each other.  As functions of the positions
their lengths are one, so what a net makes of them is one too.  With x the rows of edges, :math:`\bar x` those of pairs
and p(e) the pair of an edge,

.. math:: \bar x_p = \tfrac12 (x_e + x_{e'}), \qquad \text{net}(x)_e = \text{net}(\bar x)_{p(e)}.

Both rows of a pair are the same numbers, so their mean is exact, and each edge gets half of the pair's gradient.  So
gradients by single edges differ from those without pairs; their sums over a pair do not, nor what is made of them:
forces, stress, gradients of parameters, and the derivatives of these.

Who computes rows of edges from lengths marks them (`mark`).  A net finds the mark on the tensor that it is given: no
tensor that is computed from that one has it.  Weights of a convolution stay rows of pairs: its kernel reads them for
both edges.

A network that is written down as a program cannot look for pairs: while that goes on, nets take pairs that the program
is given, and the `Recording` gets what they are to be found from.

In a simulation over several ranks, a rank's own atoms stand first, then ghosts, which send but do not receive.  Sums of
ghosts are cut off.  Between a convolution and the cut a gradient would be enlarged with zeros, so `local_rows` says
before which rows are wanted, and whether edges count in pairs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import local
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tpgen.kernels.runtime.memory import empty
from tpgen.kernels.runtime.native.pairs import EdgePairs, find_pairs
from tpgen.kernels.runtime.registration import apply_of
from tpgen.networks.recording import Recording, recorded_program
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.plain_tensors import has_plain_numbers, is_traced, is_usual, writes_to

FEEDS = "nets that it feeds run once for each pair of edges"  # for reports
WORTH_PAIRS = 2**8  # edges: of fewer, finding pairs costs what they save
SHARE = 4  # edges to each pair at most: where fewer have a reverse, putting rows in order costs what they save

_Net = Callable[[Tensor], Tensor]
_wanted = local()


@contextmanager
def local_rows(count: int, *, in_pairs: bool = False) -> Iterator[None]:
    """Let convolutions of this thread return the first rows alone: none of the others has an edge that points to it.

    ``in_pairs`` says that gradients by edges are read in sums over both edges of a pair alone, whose vectors are
    negatives of each other but for rounding.
    """
    _wanted.count, _wanted.in_pairs = count, in_pairs
    try:
        yield
    finally:
        del _wanted.count, _wanted.in_pairs


def rows_of(nodes: Tensor) -> int:
    """Number of rows that a convolution of nodes returns: as many as there are, or as are wanted."""
    if torch.compiler.is_compiling():
        return nodes.size(0)
    return getattr(_wanted, "count", nodes.size(0))


def count_in_pairs() -> bool:
    """Whether nobody reads gradients by single edges, whose pairs are negatives of each other but for rounding."""
    return getattr(_wanted, "in_pairs", False)


def first_rows(x: Tensor, count: int) -> Tensor:
    """The first rows of a tensor; where it has no others itself, as the gradient of a slice would be a copy."""
    return x if x.size(0) == count else x[:count]


def mark(x: Tensor, edge_index: Tensor, vectors: Tensor, alike: bool = True) -> None:
    """Let nets that are given ``x`` compute it once for each pair of edges, where that saves work.

    ``x`` has a row for each edge, which depends on the length of its vector alone, and on what it points from and to in
    a way that is the same for both directions.  ``vectors`` are those of the edges, or what else becomes its negative
    with the direction.  Edges whose rows differ are no pair; ``alike`` says that none do, which a program relies on.
    """
    program = recorded_program()
    if program is not None:
        _mark_recorded(program, x, edge_index, vectors, alike)
        return
    if torch.compiler.is_compiling() or not _are_edges(x, edge_index, vectors) or len(x) < WORTH_PAIRS:
        return
    pairs = _pairs_among(edge_index, vectors, x)
    if pairs is not None and len(x) <= SHARE * pairs.pairs:
        _marks[x] = pairs, writes_to(x)


def _pairs_among(edge_index: Tensor, vectors: Tensor, x: Tensor) -> EdgePairs | None:
    """Find pairs of opposite edges whose rows of ``x`` are equal; None where nothing can be compiled."""
    if not count_in_pairs():
        return find_pairs(edge_index, vectors, x)
    vectors = vectors.float()
    found = find_pairs(edge_index, vectors, x[:, :0])
    return found if found is None or _are_alike(x.detach(), found) else find_pairs(edge_index, vectors, x)


def _are_alike(x: Tensor, pairs: EdgePairs) -> bool:
    apart = (x.index_select(0, pairs.first[: pairs.pairs]) - x.index_select(0, pairs.second)).abs()
    limit = max(2**8 * torch.finfo(x.dtype).eps, 1e-11)  # an image 1,000 away is off by 1e-13, a net's slope times that
    return bool((apart <= limit * x.abs().amax(0)).all()) if pairs.pairs else True


def _mark_recorded(program: Recording, x: Tensor, edge_index: Tensor, vectors: Tensor, alike: bool) -> None:
    source = program.sources.get("pairs")
    if source is None and alike:
        source = program.sources["pairs"] = edge_index, vectors
    if "pairs" in program.given and source is not None and source[0] is edge_index:
        _marks[x] = program.given["pairs"], writes_to(x)


def carry_over(x: Tensor, made: Tensor) -> None:
    """Mark rows that were made of marked ones, each of its own row alone."""
    pairs = pairs_of(x)
    if pairs is not None and _is_seen(made) and made.shape[0] == x.shape[0]:  # of a trace, a length would be fixed
        _marks[made] = pairs, writes_to(made)


def pairs_of(x: Tensor) -> EdgePairs | None:
    """The pairs that rows of edges are marked with, if they are as they were then."""
    return _found(_marks, x)


def once_for_pairs(net: _Net, x: Tensor, convolves: bool = False, marked: Tensor | None = None) -> Tensor:
    """``net(x)`` of a net that takes each row by itself.

    Where ``convolves`` says that nothing but `convolved` gets the result, that may be rows of pairs.  The mark is that
    of other rows of the same edges where they are ``marked``.
    """
    pairs = pairs_of(x if marked is None else marked)
    if pairs is None:
        return net(x)
    made = net(_mean(x, pairs))
    if not (convolves and _is_seen(made)):
        return _spread(made, pairs)
    _weights[made] = pairs, writes_to(made)
    return made


def convolved(conv: TensorProductConv, x: Tensor, y: Tensor, weight: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """``conv(x, y, weight, src, dst)``, where weights may be rows of pairs."""
    pairs = _found(_weights, weight)
    if pairs is None:
        return conv.forward(x, y, weight, src, dst, rows_of(x))
    order = partial(_in_order, pairs, y, src, dst)
    plain = has_plain_numbers(y)
    (y, src, dst), _ = _once(_ordered, y, (pairs, *_state(src), *_state(dst)), order) if plain else order()
    return conv.forward_pairs(x, y, weight, src, dst, rows_of(x))


# Beside the tensors, as an attribute would go into their pickles: rows of edges, and weights that are rows of pairs.
_marks: Any = WeakTensorKeyDictionary()
_weights: Any = WeakTensorKeyDictionary()


# What the first net or layer makes of such a tensor, for those that follow: means of rows, what a convolution reads.
_means: Any = WeakTensorKeyDictionary()
_ordered: Any = WeakTensorKeyDictionary()


def _once(kept: Any, x: Tensor, beside: tuple, make: Callable[[], Any]) -> Any:
    """Call ``make`` once for a tensor, and again only when the tensor or one of the values ``beside`` it has changed.

    Not remembered where torch counts no writes, nor of a leaf: its gradient's way back would keep it alive.
    """
    records = torch.is_grad_enabled() and x.requires_grad
    if x.is_inference() or (records and x.is_leaf) or not is_usual(x):
        return make()
    state = (x._version, records, *beside)
    found, made = kept.get(x, (None, None))
    if found != state:
        made = make()
        kept[x] = state, made
    return made


def _state(index: Tensor) -> tuple[int, ...]:
    """Fingerprint of an index: equal ones of live tensors mean equal numbers (address, writes, shape, strides)."""
    return index.data_ptr(), writes_to(index), *index.shape, *index.stride()


def _found(marked: Any, x: Tensor) -> EdgePairs | None:
    if torch.compiler.is_compiling() or not _is_seen(x):
        return None
    pairs, version = marked.get(x, (None, 0))
    return pairs if version == writes_to(x) else None


def _is_seen(x: Tensor) -> bool:
    """True for a tensor that has values, and for one of which a program is being recorded."""
    return has_plain_numbers(x) or (recorded_program() is not None and is_traced(x))


def _are_edges(x: Tensor, edge_index: Tensor, vectors: Tensor) -> bool:
    """Whether all are numbers at hand, in the shapes that they have for edges."""
    index = type(edge_index) is Tensor and edge_index.device.type == "cpu" and not edge_index.is_floating_point()
    return (
        has_plain_numbers(x)
        and has_plain_numbers(vectors)
        and index
        and x.dim() == 2
        and vectors.shape == (len(x), 3)
        and edge_index.shape == (2, len(x))
    )


# -- rows of edges and rows of pairs: linear, each the other's derivative ----------------------------------------------


def _mean(x: Tensor, pairs: EdgePairs) -> Tensor:
    """A row for each number, of rows that are the same for both edges of a pair."""
    return _once(_means, x, (pairs,), lambda: _means_of(x, pairs))


def _means_of(x: Tensor, pairs: EdgePairs) -> Tensor:
    if not _has_rules(x):
        return _shared_out(_gathered(x, pairs), pairs)
    # of one row, as both are the same
    return _linear_map(x, lambda x: _selected(x, pairs.first), lambda g: _spread(_shared_out(g, pairs), pairs))


def _shared_out(y: Tensor, pairs: EdgePairs) -> Tensor:
    # half of each row of a pair, all of the others
    if pairs.numbers == pairs.pairs:
        return y * 0.5
    shares = y.new_ones(pairs.numbers, 1)
    shares[: pairs.pairs] = 0.5
    return y * shares


def _spread(y: Tensor, pairs: EdgePairs) -> Tensor:
    # the row of its number for each edge
    if not _has_rules(y):
        return y.index_select(0, pairs.number)
    return _linear_map(y, lambda y: _selected(y, pairs.number), lambda g: _gathered(g, pairs))


def _gathered(x: Tensor, pairs: EdgePairs) -> Tensor:
    # the sum of the rows of each number's edges
    if _has_rules(x):
        return _linear_map(x, lambda x: _summed(x, pairs), lambda g: _spread(g, pairs))
    into = torch.arange(pairs.pairs, device=x.device)
    return x.index_select(0, pairs.first).index_add(0, into, x.index_select(0, pairs.second))


def _summed(x: Tensor, pairs: EdgePairs) -> Tensor:
    found, second = _selected(x, pairs.first), _selected(x, pairs.second)
    if pairs.numbers == pairs.pairs:
        return found.add_(second)
    found[: pairs.pairs] += second
    return found


def _in_order(pairs: EdgePairs, y: Tensor, *ends: Tensor) -> tuple[tuple[Tensor, ...], Any]:
    """Rows of edges and their ends, in the order of the pairs; and the ends as they are."""
    return (_permuted(y, pairs.order, pairs.place), *(end.index_select(0, pairs.order) for end in ends)), ends


def _permuted(y: Tensor, order: Tensor, place: Tensor) -> Tensor:
    if not _has_rules(y):
        return y.index_select(0, order)
    return _linear_map(y, lambda y: _selected(y, order), lambda g: _permuted(g, place, order))


def _has_rules(x: Tensor) -> bool:
    """Whether a call is differentiated by rules of its own, as most are, and not by torch's for its operations."""
    return is_usual(x) or (recorded_program() is not None and is_traced(x))


def _selected(x: Tensor, rows: Tensor) -> Tensor:
    if not has_plain_numbers(x):
        return x.index_select(0, rows)
    out = empty((len(rows), *x.shape[1:]), x.dtype)
    return torch.index_select(x, 0, rows, out=out)


class _Linear(torch.autograd.Function):
    """A linear map of a tensor, ``of(x)``; its gradient is the adjoint, which can be differentiated in turn."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, of: _Net, adjoint: _Net) -> Tensor:
        ctx.adjoint = adjoint
        return of(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple:
        return ctx.adjoint(g), None, None


_linear_map = apply_of(_Linear)
