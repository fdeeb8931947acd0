"""Matrix products as kernels of linear layers."""

# ``x W`` is a linear layer of scalars; ``g Wᵀ`` and ``xᵀ g`` are its gradients.

from __future__ import annotations

from operator import getitem as _getitem
from typing import Any, NamedTuple, cast

import torch
from torch import fx

from tpgen.kernels.runtime.call import product_call_text
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.runtime.targets import why_kernel_unsupported
from tpgen.networks.simplify import insert_call
from tpgen.planner.linear import make_matrix_plan

_aten, _tpgen = torch.ops.aten, torch.ops.tpgen
_TRANSPOSES = {_aten.t.default, _aten.transpose.int, _aten.permute.default}
_FEWEST = 4  # rows and columns of a matrix: products with smaller ones are loops


class _LayerCall(NamedTuple):
    """Linear layer or gradient: wanted result, sizes of W, row factor, other factor."""

    opens: str
    sizes: tuple[int, int]
    rows: fx.Node
    other: fx.Node


def replace_matrix_products_by_kernels(graph: fx.Graph) -> None:
    """Replace products of rows and fixed-size matrices, gradients included, by kernel calls."""
    for node in graph.find_nodes(op="call_function", target=_aten.mm.default):
        layer = _match_linear_layer_or_gradient(node)
        plan = None if layer is None else make_matrix_plan(*layer.sizes)
        if layer is None or plan is None or why_kernel_unsupported(plan, dtype=node.meta["val"].dtype):
            continue
        text = describe(plan)
        with graph.inserting_before(node):
            node.replace_all_uses_with(_WRITERS[layer.opens](graph, layer, text))
    graph.eliminate_dead_code()


def _match_linear_layer_or_gradient(matrix_product: fx.Node) -> _LayerCall | None:
    first, second = cast("tuple[fx.Node, fx.Node]", matrix_product.args)
    value = matrix_product.meta["val"]
    if value.dtype not in (torch.float32, torch.float64) or value.device.type != "cpu":
        return None
    (left, left_turned), (right, right_turned) = map(_matrix_and_whether_transposed, (first, second))
    if not isinstance(first.meta["val"].shape[0], int):
        found = _LayerCall("x1" if right_turned else "out", _shape_of(right), first, right)
    elif left_turned:
        found = _LayerCall("w", _shape_of(matrix_product), left, second)
    else:
        return None
    return found if all(type(n) is int and n >= _FEWEST for n in found.sizes) else None


def _shape_of(node: fx.Node) -> tuple[Any, Any]:
    return tuple(node.meta["val"].shape)


def _matrix_and_whether_transposed(node: fx.Node) -> tuple[fx.Node, bool]:
    # the matrix behind transposes, and whether it is transposed
    turned = False
    while node.op == "call_function" and node.target in _TRANSPOSES and len(_shape_of(node)) == 2:
        node, turned = node.args[0], turned is not _is_swap_of_axes(node)  # type: ignore[assignment]
    return node, turned


def _is_swap_of_axes(node: fx.Node) -> bool:
    # whether a permutation of a matrix's axes exchanges them
    if node.target is _aten.t.default:
        return True
    exchanges = node.target is _aten.transpose.int  # else the axes that come first and second
    first, second = cast("tuple[int, int]", node.args[1:] if exchanges else node.args[1])
    return bool((first - second) % 2 if exchanges else first % 2)


def _insert_layer_call(graph: fx.Graph, layer: _LayerCall, plan_description: str) -> fx.Node:
    x = layer.rows
    return _insert_kernel_call(
        graph, [x, _insert_slice_without_columns(graph, x), _insert_flat_weights(graph, layer)], plan_description, "out"
    )


def _insert_rows_gradient_call(graph: fx.Graph, layer: _LayerCall, plan_description: str) -> fx.Node:
    g = layer.rows
    rows = insert_call(graph, _aten.sym_size.int, g, 0)
    x = insert_call(graph, _aten.new_empty.default, g, [rows, layer.sizes[0]])  # of which the shape alone is read
    return _insert_kernel_call(
        graph,
        [x, _insert_slice_without_columns(graph, g), _insert_flat_weights(graph, layer), g],
        plan_description,
        "x1",
    )


def _insert_weights_gradient_call(graph: fx.Graph, layer: _LayerCall, plan_description: str) -> fx.Node:
    x, g = layer.rows, layer.other
    w = insert_call(
        graph, _aten.new_empty.default, x, [layer.sizes[0] * layer.sizes[1]]
    )  # of which the shape alone is read
    made = _insert_kernel_call(graph, [x, _insert_slice_without_columns(graph, x), w, g], plan_description, "w")
    return insert_call(graph, _aten.view.default, made, list(layer.sizes))


def _insert_kernel_call(graph: fx.Graph, tensors: list[fx.Node], plan_description: str, result_operand: str) -> fx.Node:
    return insert_call(
        graph,
        _getitem,
        insert_call(graph, _tpgen.form.default, tensors, [], plan_description, product_call_text(result_operand)),
        0,
    )


_WRITERS = {"out": _insert_layer_call, "x1": _insert_rows_gradient_call, "w": _insert_weights_gradient_call}


def _insert_slice_without_columns(graph: fx.Graph, rows: fx.Node) -> fx.Node:
    # rows of the second input, which a linear layer has not
    return insert_call(graph, _aten.slice.Tensor, rows, 1, 0, 0)


def _insert_flat_weights(graph: fx.Graph, layer: _LayerCall) -> fx.Node:
    w = layer.other
    if not w.meta["val"].is_contiguous():
        w = insert_call(graph, _aten.clone.default, w, memory_format=torch.contiguous_format)
    return insert_call(graph, _aten.view.default, w, [layer.sizes[0] * layer.sizes[1]])
