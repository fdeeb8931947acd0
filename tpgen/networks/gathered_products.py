"""Matrix products of gathered rows, computed before the gather."""

# For a gather x[i], and the sum S of rows by the index i:
#   x[i] W = (x W)[i]      x[i]ᵀ g = xᵀ (S g)      S (g Wᵀ) = (S g) Wᵀ
# and likewise for columns of joined matrices.

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from tpgen.networks.edges import match_gather, match_sum, reads_only_metadata
from tpgen.networks.loops import EXACT_DTYPES, concatenate_slices
from tpgen.networks.simplify import insert_call, sizes_as_text
from tpgen.networks.sizes import size_in_example

_aten = torch.ops.aten
_VIEWS = {_aten.view.default, _aten._unsafe_view.default}
_FEWEST = 4  # columns of a factor
_TIMES = 2  # as many rows after a gather as before, at least
_WIDER = 2  # times as many columns in a summed factor as in its product, at most


class _Columns(NamedTuple):
    """Adjacent columns of a matrix, or of gathered rows."""

    rows: Any  # a matrix
    begin: int
    end: int
    gather: Any = None  # the operator
    index: Any = None

    @property
    def width(self) -> int:
        return self.end - self.begin

    @staticmethod
    def all_of(rows: Any, gather: Any = None, index: Any = None) -> _Columns:
        return _Columns(rows, 0, _column_count(rows), gather, index)

    def insert_matrix(self, graph: fx.Graph) -> fx.Node:
        rows = self.rows
        if rows.meta["val"].dim() > 2:
            rows = insert_call(graph, _aten.view.default, rows, [-1, _column_count(rows)])
        is_whole = self.width == _column_count(rows)
        return rows if is_whole else insert_call(graph, _aten.slice.Tensor, rows, 1, self.begin, self.end)


def multiply_before_gathers(graph: fx.Graph) -> None:
    """Multiply before gathers and after sums, where rows are fewer."""
    for node in list(graph.nodes):
        if (
            node.target in _RULES
            and isinstance(node.meta.get("val"), Tensor)
            and node.meta["val"].dtype in EXACT_DTYPES
        ):
            with graph.inserting_before(node):
                new = _RULES[node.target](graph, node)
            if new is not None:
                node.replace_all_uses_with(new)
    graph.eliminate_dead_code()
    for node in graph.find_nodes(op="call_function", target=_aten.mm.default):
        _multiply_columns_that_are_read(graph, node)
    graph.eliminate_dead_code()


def _multiply_before_gathers(graph: fx.Graph, node: Any) -> fx.Node | None:
    *bias, left, right = node.args
    if node.kwargs or any(x.meta["val"].dim() != 1 for x in bias):
        return None
    if (parts := _columns_if_any_gathered(left)) and _is_matrix(right):
        return _multiply_each_part(graph, parts, right, bias)
    if bias or left.target is not _aten.t.default:
        return None
    rows = left.args[0]
    if (parts := _columns_if_any_gathered(right)) and _is_matrix(rows):
        return _multiply_by_each_part(graph, parts, rows, 1)
    if (parts := _columns_if_any_gathered(rows)) and _is_matrix(right):
        return _multiply_by_each_part(graph, parts, right, 0)
    return None


def _multiply_each_part(graph: fx.Graph, parts: Iterable[_Columns], weights: fx.Node, bias: list[Any]) -> fx.Node:
    call, begin, products = partial(insert_call, graph), 0, list[fx.Node]()
    for part in parts:
        end = begin + part.width
        matrix = _insert_slice_of_matrix(graph, weights, 0, begin, end)
        product = call(_aten.mm.default, part.insert_matrix(graph), matrix)
        products.append(product if part.gather is None else _insert_gather(graph, part.gather, product, part.index))
        begin = end
    return reduce(partial(call, _aten.add.Tensor), [*products, *bias])


def _multiply_by_each_part(graph: fx.Graph, parts: Iterable[_Columns], rows: fx.Node, axis: int) -> fx.Node:
    # the transposed rows times each part, along axis 1, or the transposed parts times the rows, along axis 0
    call, products = partial(insert_call, graph), list[fx.Node]()
    for part in parts:
        factor, matrix = rows, part.insert_matrix(graph)
        if part.gather is not None:
            count = call(_aten.sym_size.int, matrix, 0)
            factor = _insert_sum(graph, part.gather is _aten.index.Tensor, rows, part.index, count)
        left, right = (factor, matrix) if axis else (matrix, factor)
        products.append(call(_aten.mm.default, call(_aten.t.default, left), right))
    return products[0] if len(products) == 1 else call(_aten.cat.default, products, axis)


def _sum_before_product(graph: fx.Graph, node: Any) -> fx.Node | None:
    found = match_sum(node)
    if found is None or not _is_matrix(found.rows) or not _has_fewer_rows(found.others, found.rows):
        return None
    product, begin, end = _product_and_columns(found.rows)
    if product is None or not all(map(_is_matrix, product.args)):
        return None
    rows, weights = product.args
    if _column_count(rows) > _WIDER * (end - begin):
        return None
    others = [read for read in _reads_of_columns(product) if read[0] is not found.rows or _has_more_readers(read[0])]
    if sum(last - first for _, first, last in others) >= _column_count(product):
        return None
    summed = _insert_sum(graph, node.target is _aten.index_put.default, rows, found.at, found.count)
    return _insert_product_with_columns(graph, summed, weights, begin, end, node)


def _multiply_columns_that_are_read(graph: fx.Graph, product: Any) -> None:
    if not all(map(_is_matrix, (product, *product.args))):
        return
    reads, (rows, weights) = _reads_of_columns(product), product.args
    if sum(end - begin for _, begin, end in reads) < _column_count(product):
        for node, begin, end in reads:
            with graph.inserting_before(node):
                new = _insert_product_with_columns(graph, rows, weights, begin, end, node)
            node.replace_all_uses_with(new)


def _insert_product_with_columns(
    graph: fx.Graph, rows: fx.Node, weights: fx.Node, begin: int, end: int, like: fx.Node
) -> fx.Node:
    product = insert_call(graph, _aten.mm.default, rows, _insert_slice_of_matrix(graph, weights, 1, begin, end))
    shape = like.meta["val"].shape
    return product if len(shape) == 2 else insert_call(graph, _aten.view.default, product, [-1, *shape[1:]])


def _insert_slice_of_matrix(graph: fx.Graph, matrix: Any, axis: int, begin: int, end: int) -> fx.Node:
    # before a transpose, which kernels of layers take as such
    if matrix.target is _aten.t.default:
        before = insert_call(graph, _aten.slice.Tensor, matrix.args[0], 1 - axis, begin, end)
        return insert_call(graph, _aten.t.default, before)
    return insert_call(graph, _aten.slice.Tensor, matrix, axis, begin, end)


def _insert_gather(graph: fx.Graph, gather: Any, matrix: fx.Node, index: fx.Node) -> fx.Node:
    if gather is _aten.index.Tensor:  # whose numbers may count from the end
        return insert_call(graph, gather, matrix, [index])
    return insert_call(graph, _aten.index_select.default, matrix, 0, index)


def _insert_sum(graph: fx.Graph, may_count_from_end: bool, rows: fx.Node, index: fx.Node, count: Any) -> fx.Node:
    zeros = insert_call(graph, _aten.new_zeros.default, rows, [count, _column_count(rows)])
    if may_count_from_end:
        return insert_call(graph, _aten.index_put.default, zeros, [index], rows, True)
    return insert_call(graph, _aten.index_add.default, zeros, 0, index, rows)


def _columns_if_any_gathered(node: Any) -> list[_Columns]:
    parts = _columns_of(node) if _is_matrix(node) else []
    return parts if any(part.gather for part in parts) else []


def _columns_of(node: Any) -> list[_Columns]:
    source: Any = node.args[0] if node.args else None
    if _is_view_of_rows(node):
        return _columns_of(source)
    if node.target is _aten.cat.default and _is_last_axis(node, *node.args[1:]):
        alike = [_is_matrix(x) and x.meta["val"].dtype == node.meta["val"].dtype for x in source]
        return [part for x in source for part in _columns_of(x)] if all(alike) else [_Columns.all_of(node)]
    found = match_gather(node)
    if found is not None and _column_count(node) >= _FEWEST and _has_fewer_rows(found.others, node):
        return [_Columns.all_of(found.others, node.target, found.at)]
    if (bounds := _slice_bounds(node)) is not None and bounds[1] - bounds[0] >= _FEWEST:
        first, *others = _columns_of(source)
        if first.gather is not None and not others:
            return [first._replace(begin=first.begin + bounds[0], end=first.begin + bounds[1])]
    return [_Columns.all_of(node)]


def _product_and_columns(node: Any) -> tuple[Any, int, int]:
    # the product that rows have columns of
    begin, end = 0, _column_count(node)
    while _is_view_of_rows(node) or _slice_bounds(node) is not None:
        first, _ = _slice_bounds(node) or (0, 0)
        begin, end, node = begin + first, end + first, node.args[0]
    return (node if node.target is _aten.mm.default else None), begin, end


def _reads_of_columns(node: Any, begin: int = 0) -> list[tuple[Any, int, int]]:
    # columns of a product: slices and views that others read
    reads, is_read = list[tuple[Any, int, int]](), False
    for user in node.users:
        bounds = (0, 0) if _is_view_of_rows(user) else _slice_bounds(user)
        if bounds is not None:
            reads += _reads_of_columns(user, begin + bounds[0])
        else:
            is_read = is_read or _reads_values(user)
    return [*reads, (node, begin, begin + _column_count(node))] if is_read else reads


def _has_more_readers(node: fx.Node) -> bool:
    return sum(map(_reads_values, node.users)) > 1


def _reads_values(node: fx.Node) -> bool:
    return (bool(node.users) and not reads_only_metadata(node)) or node.op == "output"


def _slice_bounds(node: Any) -> tuple[int, int] | None:
    # columns that a slice of the last axis takes
    if node.target is not _aten.slice.Tensor or not _is_matrix(node) or not _is_matrix(source := node.args[0]):
        return None
    given: tuple[Any, ...] = node.args[1:]
    axis, begin, end, step = given + (0, None, None, 1)[len(given) :]
    if not _is_last_axis(node, axis) or step != 1 or any(isinstance(n, fx.Node) for n in (begin, end)):
        return None
    begin, end, _ = slice(begin, end).indices(_column_count(source))
    return begin, end


def _is_view_of_rows(node: Any) -> bool:
    if node.target not in _VIEWS or not _is_matrix(node) or not _is_matrix(node.args[0]):
        return False
    now, before = sizes_as_text(node), sizes_as_text(node.args[0])
    return (now[0], now[-1]) == (before[0], before[-1])


def _is_matrix(node: Any) -> bool:
    # of known columns, perhaps with further axes of one number between rows and columns
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, Tensor) or value.dim() < 2:
        return False
    _, *between, columns = value.shape
    return isinstance(columns, int) and columns > 0 and all(type(n) is int and n == 1 for n in between)


def _is_last_axis(node: fx.Node, axis: Any = 0) -> bool:
    return axis in (-1, node.meta["val"].dim() - 1)


def _column_count(node: fx.Node) -> int:
    return node.meta["val"].shape[-1]


def _has_fewer_rows(few: fx.Node, many: fx.Node) -> bool:
    before, after = (size_in_example(x.meta["val"].shape[0]) for x in (few, many))
    return before is not None and after is not None and _TIMES * before <= after


_RULES: dict[Any, Callable[[fx.Graph, Any], fx.Node | None]] = {
    _aten.mm.default: _multiply_before_gathers,
    _aten.addmm.default: _multiply_before_gathers,
    _aten.index_add.default: _sum_before_product,
    _aten.index_put.default: _sum_before_product,
    _aten.scatter_add.default: _sum_before_product,
    _aten.embedding_dense_backward.default: _sum_before_product,
    _aten.add.Tensor: concatenate_slices,  # of gradients
}
