"""Algebraic simplification of traced graphs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, reduce
from operator import add, mul
from typing import Any

import torch
from torch import SymInt, Tensor, fx

from tpgen.networks.sizes import open_sizes

_aten = torch.ops.aten
_ZEROS = {_aten.zeros.default, _aten.new_zeros.default, _aten.zeros_like.default}
_ADDED = {_aten.add.Tensor, _aten.sub.Tensor}
_PRODUCTS = {_aten.mul.Tensor, _aten.mm.default, _aten.bmm.default}
_WHOLE = {  # what gives its first operand where it gives its shape
    *(_aten.view.default, _aten._unsafe_view.default, _aten.expand.default),
    *(_aten.slice.Tensor, _aten.slice_backward.default),
}
_LINEAR = {  # in its first operand
    *_WHOLE,
    *(_aten.permute.default, _aten.transpose.int, _aten.t.default, _aten.unsqueeze.default, _aten.squeeze.dim),
    *(_aten.select.int, _aten.index_select.default, _aten.index.Tensor, _aten.detach.default, _aten.clone.default),
    *(_aten.neg.default, _aten.sum.default, _aten.sum.dim_IntList, _aten.mul.Scalar),
}
_BY_ONE = {  # what gives its first operand where the second is 1
    *(_aten.mul.Tensor, _aten.div.Tensor, _aten.mul.Scalar, _aten.div.Scalar, _aten.pow.Tensor_Scalar),
}
_WRITES_ALL = {_aten.copy.default, _aten.slice_scatter.default}  # if the second operand is as large
_INVERSE_ROOTS = (-0.5, -1.5, -2.5)  # exponents: that of an inverse root, and of two derivatives
_FEW = 4  # columns of matrices that a product by a row is written for as a sum


def simplify_graph(graph: fx.Graph) -> None:
    """Remove added zeros, whole slices and the like from a graph without writes."""
    zeros: set[fx.Node] = set()
    for node in list(graph.nodes):
        if node.op == "call_function":
            if _is_always_zero(node, zeros):
                zeros.add(node)
            elif (same := _find_operand_equal_to_result(node, zeros)) is not None:
                node.replace_all_uses_with(same)
    graph.eliminate_dead_code()


def read_sizes_of_inputs(graph: fx.Graph, count: int) -> None:
    """Replace sizes of intermediate tensors by those of the first ``count`` inputs, also sums and products of sizes.

    No later input is read: computing this input may need the size.
    """
    inputs, known = list(graph.find_nodes(op="placeholder")), dict[str, fx.Node]()
    latest = {x: n for n, x in enumerate(inputs)}  # input behind each node
    with graph.inserting_after(inputs[-1]) if inputs else nullcontext():
        for x in inputs[:count]:
            for axis, size in enumerate(open_sizes(x.meta["val"])):
                if size is not None and size.isidentifier() and size not in known:
                    known[size] = graph.call_function(_aten.sym_size.int, (x, axis))
                    known[size].meta["val"] = x.meta["val"].shape[axis]
    computed = set(inputs[:count])  # from inputs by sizes alone
    for node in graph.nodes:
        latest.setdefault(node, max(map(latest.__getitem__, node.all_input_nodes), default=-1))
        size = node.meta.get("val")
        if isinstance(size, SymInt):
            with graph.inserting_before(node):
                found = _insert_size_computation(graph, size.node.expr, known)
            if isinstance(found, fx.Node):
                _find_latest_input_number(found, latest)
            if computed.issuperset(node.all_input_nodes):
                computed.add(node)
                if not isinstance(found, fx.Node) or latest[node] < latest[found]:
                    known[str(size.node.expr)] = node
            elif found is not None and latest.get(found, -1) <= latest[node]:
                node.replace_all_uses_with(found)
    graph.eliminate_dead_code()


def _find_latest_input_number(node: fx.Node, known_numbers: dict[fx.Node, int]) -> int:
    if node not in known_numbers:
        known_numbers[node] = max(_find_latest_input_number(x, known_numbers) for x in node.all_input_nodes)
    return known_numbers[node]


def _insert_size_computation(graph: fx.Graph, size: Any, known: dict[str, fx.Node]) -> Any:
    # a sum or product of known sizes; None for any other
    if size.is_Integer:
        return int(size)
    if str(size) not in known and (size.is_Add or size.is_Mul):
        parts = [_insert_size_computation(graph, part, known) for part in size.args]
        if not any(part is None for part in parts):
            known[str(size)] = reduce(partial(_insert_operation, graph, add if size.is_Add else mul), parts)
    return known.get(str(size))


def _insert_operation(graph: fx.Graph, operation: Callable[..., Any], first: Any, second: Any) -> fx.Node:
    node = graph.call_function(operation, (first, second))
    node.meta["val"] = operation(*(x.meta["val"] if isinstance(x, fx.Node) else x for x in (first, second)))
    return node


def expand_library_calls(graph: fx.Graph, on_gpu: bool = False) -> None:
    """Expand library calls, such as small matrix products, into operators for Inductor or a GPU."""
    written = _WRITTEN_ON_GPU if on_gpu else _WRITTEN
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in written:
            written[node.target](graph, node)
    graph.eliminate_dead_code()


def fold_constants(graph: fx.GraphModule) -> None:
    """Compute copies of constants to another device or dtype once."""
    for n, node in enumerate(list(graph.graph.nodes)):
        source: Any = node.args[0] if node.args else None
        if node.target in _COPIES and isinstance(source, fx.Node) and source.op == "get_attr":
            value = node.target(getattr(graph, str(source.target)), **node.kwargs)
            graph.register_buffer(name := f"_folded_{n}", value, persistent=False)
            with graph.graph.inserting_before(node):
                held = graph.graph.get_attr(name)
            held.meta.update(node.meta)
            node.replace_all_uses_with(held)
    graph.graph.eliminate_dead_code()


def _is_always_zero(node: fx.Node, zeros: set[fx.Node]) -> bool:
    # whether a result is zero wherever it is finite
    first = node.args[0] if node.args else None
    if node.target in _ZEROS:
        return True
    if node.target in _PRODUCTS:
        return any(x in zeros or (isinstance(x, float) and x == 0) for x in node.args)
    if node.target is _aten.slice_backward.default and "0" in sizes_as_text(first):
        return True
    return (node.target in _LINEAR and first in zeros) or (node.target in _ADDED and {*node.args[:2]} <= zeros)


def _find_operand_equal_to_result(node: fx.Node, zeros: set[fx.Node]) -> fx.Node | None:
    first = node.args[0] if node.args else None
    if node.target in _WHOLE and sizes_as_text(node) == sizes_as_text(first):
        return first  # type: ignore[return-value]
    if node.target in _BY_ONE and _is_one(node.args[1]) and not node.kwargs and _has_shape_and_dtype_of(first, node):
        return first  # type: ignore[return-value]
    if (
        node.target in _WRITES_ALL
        and _has_shape_and_dtype_of(node.args[1], node)
        and node.args[1].meta["val"].device == node.meta["val"].device  # type: ignore[union-attr]
    ):
        return node.args[1]  # type: ignore[return-value]
    if node.target in _ADDED:
        second = node.args[1]
        if second in zeros and _has_shape_and_dtype_of(first, node):
            return first  # type: ignore[return-value]
        if (
            first in zeros
            and node.target is _aten.add.Tensor
            and not node.kwargs
            and _has_shape_and_dtype_of(second, node)
        ):
            return second  # type: ignore[return-value]
    return None


def _is_one(x: Any) -> bool:
    return isinstance(x, (int, float)) and x == 1


def sizes_as_text(node: Any) -> list[str]:
    """Shape of a node's value, as text."""
    return [str(n) for n in node.meta["val"].shape]


def _has_shape_and_dtype_of(operand: Any, node: fx.Node) -> bool:
    if not isinstance(operand, fx.Node) or not isinstance(operand.meta["val"], Tensor):
        return False
    mine, wanted = sizes_as_text(operand), sizes_as_text(node)
    same = len(mine) == len(wanted) and all(m in (n, m if n == "1" else n) for m, n in zip(mine, wanted, strict=True))
    return same and operand.meta["val"].dtype == node.meta["val"].dtype


def _expand_determinant(graph: fx.Graph, node: fx.Node) -> None:
    matrix: Any = node.args[0]
    if any(user.args[1] != 0 for user in node.users) or sizes_as_text(matrix)[-1] != "3":
        return

    call = partial(insert_call, graph)

    def insert_matrix_entry(i: int, j: int) -> fx.Node:
        return call(_aten.select.int, call(_aten.select.int, matrix, -2, i), -1, j)

    with graph.inserting_before(node):
        terms = []
        for n in range(3):
            after, last = (n + 1) % 3, (n + 2) % 3
            minor = call(
                _aten.sub.Tensor,
                call(_aten.mul.Tensor, insert_matrix_entry(1, after), insert_matrix_entry(2, last)),
                call(_aten.mul.Tensor, insert_matrix_entry(1, last), insert_matrix_entry(2, after)),
            )
            terms.append(call(_aten.mul.Tensor, insert_matrix_entry(0, n), minor))
        found = call(_aten.add.Tensor, call(_aten.add.Tensor, *terms[:2]), terms[2])
    for user in list(node.users):
        user.replace_all_uses_with(found)


def _expand_batched_row_products(graph: fx.Graph, node: fx.Node) -> None:
    *added, rows, matrices = node.args
    one, columns = sizes_as_text(node)[1:]
    if one != "1" or not columns.isdigit() or int(columns) > _FEW or node.kwargs:
        return
    with graph.inserting_before(node):
        scaled = insert_call(graph, _aten.mul.Tensor, insert_call(graph, _aten.transpose.int, rows, 1, 2), matrices)
        found = insert_call(graph, _aten.sum.dim_IntList, scaled, [1], True)
        if added:
            found = insert_call(graph, _aten.add.Tensor, added[0], found)
    node.replace_all_uses_with(found)


def multiply_column(_graph: fx.Graph, node: fx.Node) -> None:
    """Make the product of a column and a row a broadcast product."""
    if sizes_as_text(node.args[0])[1] == "1":
        node.target = _aten.mul.Tensor


def _replace_index_put_by_index_add(graph: fx.Graph, node: fx.Node) -> None:
    # sums of rows by `index_put` sort the rows on a GPU
    given: Any = (*node.args, False)[:4]
    into, indices, rows, adds = given
    if adds is not True or len(indices) > 1 or indices[0].meta["val"].dtype not in (torch.int32, torch.int64):
        return
    at, (length, of_rows, of_into) = indices[0], map(sizes_as_text, (indices[0], rows, into))
    if length != of_rows[:1] or len(of_rows) != len(of_into):
        return
    call = partial(insert_call, graph)
    with graph.inserting_before(node):
        if of_rows[1:] != of_into[1:]:  # they may be equal all the same
            rest = [call(_aten.sym_size.int, into, axis) for axis in range(1, len(of_into))]
            rows = call(_aten.expand.default, rows, [-1, *rest])
        node.replace_all_uses_with(
            call(_aten.index_add.default, into, 0, insert_index_from_begin(graph, at, into), rows)
        )


def insert_index_from_begin(graph: fx.Graph, at: Any, into: Any) -> fx.Node:
    """Insert an index whose negative numbers count from the end of ``into``."""
    call = partial(insert_call, graph)
    from_end = call(_aten.add.Tensor, at, call(_aten.sym_size.int, into, 0))
    return call(_aten.where.self, call(_aten.lt.Scalar, at, 0), from_end, at)


def _expand_inverse_root(graph: fx.Graph, node: fx.Node) -> None:
    # a loop of Inductor's would call a slow function for such a power, as of norms and their derivatives
    x, exponent = node.args
    if exponent in _INVERSE_ROOTS:
        with graph.inserting_before(node):
            found = insert_call(graph, _aten.rsqrt.default, x)
            for _ in range(_INVERSE_ROOTS.index(exponent)):
                found = insert_call(graph, _aten.div.Tensor, found, x)
        node.replace_all_uses_with(found)


def _expand_addition_to_columns(graph: fx.Graph, node: fx.Node) -> None:
    # x[..., at] += row is x + zeros with the row at these columns, for which all rows share one row
    given: Any = node.args
    x, indices, value = given[:3]
    if len(given) > 3 or node.kwargs or value.target is not _aten.add.Tensor or value.kwargs:
        return
    (old, row), at, columns = value.args, indices[-1], x.meta["val"].shape[-1]
    reads_columns = old.target is _aten.index.Tensor and old.args == (x, indices)
    if not (reads_columns and isinstance(row, fx.Node) and _is_index_of_columns(indices, x)):
        return
    if sizes_as_text(row) != sizes_as_text(at) or row.meta["val"].dtype != x.meta["val"].dtype:
        return
    with graph.inserting_before(node):
        none = insert_call(graph, _aten.new_zeros.default, row, [columns])
        added = insert_call(graph, _aten.index_put.default, none, [at], row)
        node.replace_all_uses_with(insert_call(graph, _aten.add.Tensor, x, added))


def _expand_gradient_of_columns(graph: fx.Graph, node: fx.Node) -> None:
    # the gradient g by x of x[..., at] += row: g without these columns, and the sum of g for each time that one is read
    operands: Any = list(map(_operand_behind_clones, node.args[:2]))
    puts = [x for x in operands if isinstance(x, fx.Node) and x.target is _aten.index_put.default]
    given: Any = sorted((x.args for x in puts), key=len)
    if list(map(len, given)) != [3, 4] or node.kwargs or given[1][3] is not True:
        return
    (g, indices, none), (zeros, read_indices, read, _) = given
    g = _operand_behind_clones(g)
    reads_columns = read.target is _aten.index.Tensor and _operand_behind_clones(read.args[0]) is g
    are_zero = none.target in _ZEROS and zeros.target in _ZEROS
    if not (reads_columns and are_zero and indices == read_indices == read.args[1]):
        return
    if not _is_index_of_columns(indices, node) or not _has_shape_and_dtype_of(g, node):
        return
    call, at = partial(insert_call, graph), indices[-1]
    count, columns = at.meta["val"].shape[0], node.meta["val"].shape[-1]
    with graph.inserting_before(node):
        one_each, no_times = call(_aten.new_ones.default, g, [columns]), call(_aten.new_zeros.default, g, [columns])
        zeros_at, ones_at = call(_aten.new_zeros.default, g, [count]), call(_aten.new_ones.default, g, [count])
        times = call(
            _aten.add.Tensor,
            call(_aten.index_put.default, one_each, [at], zeros_at),
            call(_aten.index_put.default, no_times, [at], ones_at, True),
        )
        node.replace_all_uses_with(call(_aten.mul.Tensor, g, times))


def _is_index_of_columns(indices: Any, matrix: fx.Node) -> bool:
    # of the last axis alone, by a vector of known length
    *others, at = indices
    if any(others) or not isinstance(at, fx.Node) or len(indices) != matrix.meta["val"].dim():
        return False
    index, columns = at.meta["val"], matrix.meta["val"].shape[-1]
    known = index.dim() == 1 and type(index.shape[0]) is int and type(columns) is int
    return known and index.dtype in (torch.int32, torch.int64)


def _operand_behind_clones(x: Any) -> Any:
    while isinstance(x, fx.Node) and x.target is _aten.clone.default:
        x = x.args[0]
    return x


def _expand_silu(graph: fx.Graph, node: fx.Node) -> None:
    # by its sigmoid, as its derivatives are, so that they share it
    x = node.args[0]
    with graph.inserting_before(node):
        node.replace_all_uses_with(
            insert_call(graph, _aten.mul.Tensor, x, insert_call(graph, _aten.sigmoid.default, x))
        )


def _expand_silu_backward(graph: fx.Graph, node: fx.Node) -> None:
    g, x = node.args
    with graph.inserting_before(node):
        s = insert_call(graph, _aten.sigmoid.default, x)
        rest = insert_call(graph, _aten.mul.Tensor, x, insert_call(graph, _aten.rsub.Scalar, s, 1))
        slope = insert_call(graph, _aten.mul.Tensor, s, insert_call(graph, _aten.add.Scalar, rest, 1))
        node.replace_all_uses_with(insert_call(graph, _aten.mul.Tensor, g, slope))


_WRITTEN: dict[Any, Callable[[fx.Graph, fx.Node], None]] = {
    _aten.silu.default: _expand_silu,
    _aten.silu_backward.default: _expand_silu_backward,
    _aten.pow.Tensor_Scalar: _expand_inverse_root,
    _aten.index_put.default: _expand_addition_to_columns,
    _aten.add.Tensor: _expand_gradient_of_columns,
    _aten._linalg_det.default: _expand_determinant,
    _aten.bmm.default: _expand_batched_row_products,
    _aten.baddbmm.default: _expand_batched_row_products,
    _aten.mm.default: multiply_column,
}
_ON_GPU = (_aten._linalg_det.default, _aten.bmm.default, _aten.baddbmm.default)
_WRITTEN_ON_GPU = {target: _WRITTEN[target] for target in _ON_GPU} | {
    _aten.index_put.default: _replace_index_put_by_index_add
}
_COPIES = {_aten._to_copy.default, _aten.lift_fresh_copy.default}


def insert_call(graph: fx.Graph, target: Any, *args: Any, **options: Any) -> fx.Node:
    """Insert a call node, with its fake value in ``meta["val"]``."""
    node = graph.call_function(target, args, options)
    given = fx.map_arg(args, lambda x: x.meta["val"])
    node.meta["val"] = target(*given, **options)
    return node
