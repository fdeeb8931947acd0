"""Pairs of opposite edges: a net of lengths runs once, on the mean row of both edges."""

# Each edge gets half of the gradient: sums over pairs, such as forces, stay.  Code that computes rows of edges marks
# the tensor (`mark_edge_pairs`) for nets.

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import local
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from tpgen.kernels.runtime.memory import empty_tensor
from tpgen.kernels.runtime.native.pairs import EdgePairs, find_pairs
from tpgen.kernels.runtime.registration import get_unchecked_apply
from tpgen.networks.recording import Recording, recorded_program
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.plain_tensors import are_plain, count_writes, is_plain_tensor, is_traced

FEEDS = "nets that it feeds run once for each pair of edges"  # for reports
WORTH_PAIRS = 2**8  # edges: of fewer, finding pairs costs what they save
SHARE = 4  # edges to each pair at most: where fewer have a reverse, putting rows in order costs what they save

_Net = Callable[[Tensor], Tensor]
_wanted = local()


@contextmanager
def limit_convolutions_to_local_rows(count: int, *, in_pairs: bool = False) -> Iterator[None]:
    """Let convolutions inside the context return the first ``count`` rows: no edge points to others.

    ``in_pairs``: gradients by edges are used only as sums over pairs.
    """
    _wanted.count, _wanted.in_pairs = count, in_pairs
    try:
        yield
    finally:
        del _wanted.count, _wanted.in_pairs


def count_convolution_output_rows(nodes: Tensor) -> int:
    """How many rows a convolution returns: the count of `limit_convolutions_to_local_rows`, or all."""
    if torch.compiler.is_compiling():
        return nodes.size(0)
    return getattr(_wanted, "count", nodes.size(0))


def gradients_count_in_pairs() -> bool:
    """``in_pairs`` of the enclosing `limit_convolutions_to_local_rows`, else False."""
    return getattr(_wanted, "in_pairs", False)


def take_first_rows(x: Tensor, count: int) -> Tensor:
    """The first ``count`` rows; the tensor itself if these are all."""
    return x if x.size(0) == count else x[:count]  # the gradient of a slice is a copy


def mark_edge_pairs(x: Tensor, edge_index: Tensor, vectors: Tensor, rows_are_equal: bool = True) -> None:
    """Mark edge rows ``x``, so that nets run once per pair of opposite edges.

    Rows depend on lengths and, alike in both directions, on nodes.  ``vectors`` change sign with the direction.  Edges
    with different rows form no pair; ``rows_are_equal`` promises equal rows, as programs need.
    """
    program = recorded_program()
    if program is not None:
        _mark_edge_pairs_in_program(program, x, edge_index, vectors, rows_are_equal)
        return
    if torch.compiler.is_compiling() or not _are_plain_edge_tensors(x, edge_index, vectors) or len(x) < WORTH_PAIRS:
        return
    pairs = _find_edge_pairs_with_equal_rows(edge_index, vectors, x)
    if pairs is not None and len(x) <= SHARE * pairs.pairs:
        _marks[x] = pairs, count_writes(x)


def _find_edge_pairs_with_equal_rows(edge_index: Tensor, vectors: Tensor, x: Tensor) -> EdgePairs | None:
    if not gradients_count_in_pairs():
        return find_pairs(edge_index, vectors, x)
    vectors = vectors.float()
    found = find_pairs(edge_index, vectors, x[:, :0])
    return (
        found
        if found is None or _are_rows_of_paired_edges_equal(x.detach(), found)
        else find_pairs(edge_index, vectors, x)
    )


def _are_rows_of_paired_edges_equal(x: Tensor, pairs: EdgePairs) -> bool:
    apart = (x.index_select(0, pairs.first[: pairs.pairs]) - x.index_select(0, pairs.second)).abs()
    limit = max(2**8 * torch.finfo(x.dtype).eps, 1e-11)  # an image 1,000 away is off by 1e-13, a net's slope times that
    return bool((apart <= limit * x.abs().amax(0)).all()) if pairs.pairs else True


def _mark_edge_pairs_in_program(
    program: Recording, x: Tensor, edge_index: Tensor, vectors: Tensor, rows_are_equal: bool
) -> None:
    source = program.sources.get("pairs")
    if source is None and rows_are_equal and edge_index.is_cpu and vectors.is_cpu:  # where pairs are looked for
        source = program.sources["pairs"] = edge_index, vectors
    if "pairs" in program.given and source is not None and source[0] is edge_index:
        _marks[x] = program.given["pairs"], count_writes(x)


def copy_edge_pair_marks(x: Tensor, result: Tensor) -> None:
    """Mark ``result``, computed from ``x`` row by row, with the edge pairs of ``x``."""
    pairs = get_marked_pairs(x)
    # the shape comes last: a traced length would be fixed
    if pairs is not None and _can_mark_pairs_on(result) and result.shape[0] == x.shape[0]:
        _marks[result] = pairs, count_writes(result)


def get_marked_pairs(x: Tensor) -> EdgePairs | None:
    """Pairs of a marked tensor; None without a mark or after a write."""
    return _look_up_pairs_unless_written(_marks, x)


def run_once_per_pair(net: _Net, x: Tensor, convolves: bool = False, marked: Tensor | None = None) -> Tensor:
    """``net(x)`` row by row, computed once per pair of edges if ``x`` is marked.

    ``convolves``: only `convolve_edges_or_pairs` gets the result, maybe rows of pairs.  ``marked``: tensor with the
    mark, if not ``x``.
    """
    pairs = get_marked_pairs(x if marked is None else marked)
    if pairs is None:
        return net(x)
    made = net(_average_over_pairs(x, pairs))
    if not (convolves and _can_mark_pairs_on(made)):
        return _expand_pair_rows_to_edges(made, pairs)
    _weights[made] = pairs, count_writes(made)
    return made


def convolve_edges_or_pairs(
    conv: TensorProductConv, x: Tensor, y: Tensor, weight: Tensor, src: Tensor, dst: Tensor
) -> Tensor:
    """``conv(x, y, weight, src, dst)``; weights may be rows of pairs."""
    pairs = _look_up_pairs_unless_written(_weights, weight)
    if pairs is None:
        return conv.forward(x, y, weight, src, dst, count_convolution_output_rows(x))
    order = partial(_permute_to_pair_order, pairs, y, src, dst)
    plain = is_plain_tensor(y)
    (y, src, dst), _ = (
        _get_cached_or_make_anew(
            _ordered,
            y,
            (pairs, *_get_address_shape_and_write_count(src), *_get_address_shape_and_write_count(dst)),
            order,
        )
        if plain
        else order()
    )
    return conv.forward_pairs(x, y, weight, src, dst, count_convolution_output_rows(x))


# Beside the tensors, as an attribute would go into their pickles: rows of edges, and weights that are rows of pairs.
_marks: Any = WeakTensorKeyDictionary()
_weights: Any = WeakTensorKeyDictionary()


# What the first net or layer makes of such a tensor, for those that follow: means of rows, what a convolution reads.
_means: Any = WeakTensorKeyDictionary()
_ordered: Any = WeakTensorKeyDictionary()


def _get_cached_or_make_anew(cache: Any, x: Tensor, other_keys: tuple, make_value: Callable[[], Any]) -> Any:
    # calls ``make`` again if the tensor or a value in ``key`` has changed
    # not cached if torch counts no writes, nor for a leaf: the graph of its gradient would keep the leaf alive
    records = torch.is_grad_enabled() and x.requires_grad
    if x.is_inference() or (records and x.is_leaf) or not are_plain(x):
        return make_value()
    state = (x._version, records, *other_keys)
    found, made = cache.get(x, (None, None))
    if found != state:
        made = make_value()
        cache[x] = state, made
    return made


def _get_address_shape_and_write_count(index: Tensor) -> tuple[int, ...]:
    # equal fingerprints of live tensors mean equal numbers: address, writes, shape, strides
    return index.data_ptr(), count_writes(index), *index.shape, *index.stride()


def _look_up_pairs_unless_written(pairs_by_tensor: Any, x: Tensor) -> EdgePairs | None:
    if torch.compiler.is_compiling() or not _can_mark_pairs_on(x):
        return None
    pairs, version = pairs_by_tensor.get(x, (None, 0))
    return pairs if version == count_writes(x) else None


def _can_mark_pairs_on(x: Tensor) -> bool:
    return is_plain_tensor(x) or (recorded_program() is not None and is_traced(x))


def _are_plain_edge_tensors(x: Tensor, edge_index: Tensor, vectors: Tensor) -> bool:
    index = type(edge_index) is Tensor and edge_index.device.type == "cpu" and not edge_index.is_floating_point()
    return (
        is_plain_tensor(x)
        and is_plain_tensor(vectors)
        and index
        and x.dim() == 2
        and vectors.shape == (len(x), 3)
        and edge_index.shape == (2, len(x))
    )


# -- rows of edges and rows of pairs: linear, each the other's derivative ----------------------------------------------


def _average_over_pairs(x: Tensor, pairs: EdgePairs) -> Tensor:
    # mean rows of pairs, then rows of single edges; cached
    return _get_cached_or_make_anew(_means, x, (pairs,), lambda: _compute_mean_rows_of_pairs(x, pairs))


def _compute_mean_rows_of_pairs(x: Tensor, pairs: EdgePairs) -> Tensor:
    if not _can_use_own_gradient_rules(x):
        return _halve_rows_of_pairs(_sum_edge_rows_by_pair(x, pairs), pairs)
    # of one row, as both are the same
    return _linear_map(
        x,
        lambda x: _select_rows(x, pairs.first),
        lambda g: _expand_pair_rows_to_edges(_halve_rows_of_pairs(g, pairs), pairs),
    )


def _halve_rows_of_pairs(y: Tensor, pairs: EdgePairs) -> Tensor:
    # half of each row of a pair, all of the others
    if pairs.numbers == pairs.pairs:
        return y * 0.5
    shares = y.new_ones(pairs.numbers, 1)
    shares[: pairs.pairs] = 0.5
    return y * shares


def _expand_pair_rows_to_edges(y: Tensor, pairs: EdgePairs) -> Tensor:
    # the row of its number for each edge
    if not _can_use_own_gradient_rules(y):
        return y.index_select(0, pairs.number)
    return _linear_map(y, lambda y: _select_rows(y, pairs.number), lambda g: _sum_edge_rows_by_pair(g, pairs))


def _sum_edge_rows_by_pair(x: Tensor, pairs: EdgePairs) -> Tensor:
    # the sum of the rows of each number's edges
    if _can_use_own_gradient_rules(x):
        return _linear_map(
            x,
            lambda x: _sum_edge_rows_by_pair_without_autograd(x, pairs),
            lambda g: _expand_pair_rows_to_edges(g, pairs),
        )
    into = torch.arange(pairs.pairs, device=x.device)
    return x.index_select(0, pairs.first).index_add(0, into, x.index_select(0, pairs.second))


def _sum_edge_rows_by_pair_without_autograd(x: Tensor, pairs: EdgePairs) -> Tensor:
    found, second = _select_rows(x, pairs.first), _select_rows(x, pairs.second)
    if pairs.numbers == pairs.pairs:
        return found.add_(second)
    found[: pairs.pairs] += second
    return found


def _permute_to_pair_order(pairs: EdgePairs, y: Tensor, *ends: Tensor) -> tuple[tuple[Tensor, ...], Any]:
    # and the given ``ends``
    return (_permute_rows(y, pairs.order, pairs.place), *(end.index_select(0, pairs.order) for end in ends)), ends


def _permute_rows(y: Tensor, order: Tensor, inverse_order: Tensor) -> Tensor:
    if not _can_use_own_gradient_rules(y):
        return y.index_select(0, order)
    return _linear_map(y, lambda y: _select_rows(y, order), lambda g: _permute_rows(g, inverse_order, order))


def _can_use_own_gradient_rules(x: Tensor) -> bool:
    # derivatives by the rules of this module, not by torch's for its operations
    return are_plain(x) or (recorded_program() is not None and is_traced(x))


def _select_rows(x: Tensor, index: Tensor) -> Tensor:
    if not is_plain_tensor(x):
        return x.index_select(0, index)
    out = empty_tensor((len(index), *x.shape[1:]), x.dtype)
    return torch.index_select(x, 0, index, out=out)


class _LinearMap(torch.autograd.Function):
    """Linear map ``function(x)``, with ``adjoint`` as derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: _Net, adjoint: _Net) -> Tensor:
        ctx.adjoint = adjoint
        return function(x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple:
        return ctx.adjoint(cotangent), None, None


_linear_map = get_unchecked_apply(_LinearMap)
