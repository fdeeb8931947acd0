"""Graphs whose loops Inductor vectorises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import SymInt, Tensor, fx

from tpgen.base import _torch
from tpgen.networks.simplify import insert_call, sizes_as_text

_aten = torch.ops.aten
EXACT_DTYPES = (torch.float32, torch.float64)  # dtypes in which two sums round as one does
_ELEMENTWISE = (  # of a tensor and numbers
    *(_aten.div.Tensor, _aten.mul.Tensor, _aten.sub.Tensor, _aten.div.Scalar, _aten.mul.Scalar, _aten.add.Scalar),
    *(_aten.sub.Scalar, _aten.rsub.Scalar, _aten.neg.default, _aten.pow.Tensor_Scalar, _aten.rsqrt.default),
)
_VIEWS = {
    *(_aten.view.default, _aten._unsafe_view.default, _aten.unsqueeze.default, _aten.squeeze.dim),
    *(_aten.expand.default, _aten.permute.default, _aten.transpose.int, _aten.t.default),
    *(_aten.slice.Tensor, _aten.select.int),
}


def write_vector_loops(graph: fx.Graph) -> None:
    """Rewrite loops that Inductor would not vectorise."""
    for node in list(graph.nodes):
        rule = _RULES.get(node.target)
        if rule is not None and not node.kwargs and isinstance(node.meta.get("val"), Tensor):
            with graph.inserting_before(node):
                new = rule(graph, node)
            if new is not None:
                node.replace_all_uses_with(new)
    graph.eliminate_dead_code()
    _compute_values_without_rows_once(graph)


def _expand_later(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    # f(expand(x)) is expand(f(x)) for an x of parameters alone
    operand, *numbers = _arguments(node)
    if not isinstance(operand, fx.Node) or any(_is_tensor(x) for x in numbers):
        return None
    known = dict[str, fx.Node]()
    x = _insert_value_before_expansion(graph, operand, known)
    if x is operand or _has_open_size(x.meta["val"].shape):
        return None
    sizes = [known.get(str(n)) if isinstance(n, SymInt) else n for n in operand.meta["val"].shape]
    if None in sizes:
        return None
    expanded = insert_call(graph, _aten.expand.default, insert_call(graph, node.target, x, *numbers), sizes)
    return insert_call(graph, _aten.clone.default, expanded, memory_format=torch.contiguous_format)


def _insert_value_before_expansion(graph: fx.Graph, node: fx.Node, known: dict[str, fx.Node]) -> fx.Node:
    # of as many axes; `known` collects nodes of the sizes that are expanded to
    source: Any = node.args[0] if node.args else None
    if node.target is _aten.clone.default:
        return _insert_value_before_expansion(graph, source, known)
    if node.target is _aten.expand.default and source.meta["val"].dim() == node.meta["val"].dim():
        known.update({str(n.meta["val"]): n for n in node.all_input_nodes[1:]})
        return _insert_value_before_expansion(graph, source, known)
    if node.target is _aten.unsqueeze.default:
        before = _insert_value_before_expansion(graph, source, known)
        if before is not source:
            return insert_call(graph, node.target, before, node.args[1])
    return node


def _sum_rows_first(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    x, axes, *rest = _arguments(node)
    sizes = x.meta["val"].shape
    if not axes or len(sizes) < 3 or x.meta["val"].dtype not in EXACT_DTYPES:
        return None
    summed = {axis % len(sizes) for axis in axes}
    if not {0, len(sizes) - 1} <= summed or len(summed) == len(sizes):
        return None
    if not _has_open_size(sizes[:1]) or _has_open_size(sizes[1:]):
        return None
    return insert_call(graph, node.target, insert_call(graph, node.target, x, [0], True), axes, *rest)


def concatenate_slices(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    """Concatenate summed slices, each written into zeros, that cover an axis."""
    if not _is_sum(node) or (len(node.users) == 1 and _is_sum(next(iter(node.users)))):
        return None  # the user's rule sees these slices, too
    summands = list(_summands(node))
    slices = [x for x in summands if isinstance(x, fx.Node) and x.target is _aten.slice_backward.default]
    written = [_arguments(x) for x in slices]  # rows, sizes, axis, begin, end, step
    axes = {of[2] for of in written}
    if len(slices) < 2 or len(axes) > 1 or any(sizes_as_text(x) != sizes_as_text(node) for x in slices):
        return None
    axis, begins = axes.pop(), {of[3]: of[0] for of in written if of[5] == 1}
    if len(begins) < len(slices) or any(len(x.users) > 1 for x in slices):
        return None
    if _has_open_size(x.meta["val"].shape[axis] for x in (node, *begins.values())):
        return None
    joined, at = list[Any](), 0
    while at in begins:
        joined.append(begins.pop(at))
        at += joined[-1].meta["val"].shape[axis]
    if begins or at != node.meta["val"].shape[axis]:
        return None
    whole = insert_call(graph, _aten.cat.default, joined, axis)
    for other in summands:
        if other not in slices:
            whole = insert_call(graph, _aten.add.Tensor, whole, other)
    return whole


def _summands(node: fx.Node) -> Iterator[Any]:
    for x in node.args[:2]:
        if isinstance(x, fx.Node) and _is_sum(x) and len(x.users) == 1:
            yield from _summands(x)
        else:
            yield x


def _is_sum(node: fx.Node) -> bool:
    return node.target is _aten.add.Tensor and not node.kwargs


def _arguments(node: fx.Node) -> Any:
    return node.args


def _compute_values_without_rows_once(graph: fx.Graph) -> None:
    # Inductor would compute an elementwise value again for each row that reads the value
    once = getattr(_torch, "realize", None)
    for node in list(graph.nodes):
        if once is not None and _is_elementwise_without_rows(node) and any(map(_has_rows_behind_views, node.users)):
            with graph.inserting_after(node):
                computed = graph.call_function(once, (node,))
            computed.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(computed, delete_user_cb=lambda user, new=computed: user is not new)


def _is_elementwise_without_rows(node: fx.Node) -> bool:
    is_elementwise = torch.Tag.pointwise in getattr(node.target, "tags", ()) and node.target is not _aten.clone.default
    return is_elementwise and _is_tensor(node) and not _has_open_size(node.meta["val"].shape)


def _has_rows_behind_views(user: fx.Node) -> bool:
    if not _is_tensor(user):
        return False
    is_view = user.target in _VIEWS
    return _has_open_size(user.meta["val"].shape) or (is_view and any(map(_has_rows_behind_views, user.users)))


def _is_tensor(x: Any) -> bool:
    return isinstance(x, fx.Node) and isinstance(x.meta.get("val"), Tensor)


def _has_open_size(sizes: Iterable[Any]) -> bool:
    return any(isinstance(n, SymInt) for n in sizes)


_RULES: dict[Any, Callable[[fx.Graph, fx.Node], fx.Node | None]] = {
    **dict.fromkeys(_ELEMENTWISE, _expand_later),
    _aten.sum.dim_IntList: _sum_rows_first,
    _aten.add.Tensor: concatenate_slices,
}
