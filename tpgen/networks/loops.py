"""Graphs whose loops Inductor vectorises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import SymInt, Tensor, fx

from tpgen.base import _torch
from tpgen.networks.simplify import insert_call, sizes_as_text

_aten = torch.ops.aten
_OF_NUMBERS = (_aten.div.Scalar, _aten.mul.Scalar, _aten.add.Scalar, _aten.sub.Scalar, _aten.rsub.Scalar)
_ELEMENTWISE = {  # of a tensor, and of numbers
    *(_aten.div.Tensor, _aten.mul.Tensor, _aten.sub.Tensor, *_OF_NUMBERS),
    *(_aten.neg.default, _aten.pow.Tensor_Scalar, _aten.rsqrt.default, _aten.sqrt.default),
}


def write_vector_loops(graph: fx.Graph) -> None:
    """Rewrite broadcasts, sums over rows and sums of slices.

    Expanded values are computed before they are expanded; a value of parameters alone is computed once, not for each
    row.  Sums over rows and components are two sums.  Sums of columns written into zeros are a concatenation.
    """
    for node in list(graph.nodes):
        rule = _RULES.get(node.target)
        if rule is not None and isinstance(node.meta.get("val"), Tensor):
            with graph.inserting_before(node):
                new = rule(graph, node)
            if new is not None:
                node.replace_all_uses_with(new)
    graph.eliminate_dead_code()
    _compute_values_without_rows_once(graph)


def _expand_later(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    # f(expand(x)) is expand(f(x)), also behind new axes and wider ones
    expanded, *rest = given = _arguments(node)
    if not (isinstance(expanded, fx.Node) and expanded.target is _aten.expand.default) or node.kwargs:
        return None
    x, sizes = _arguments(expanded)[:2]
    if x.meta["val"].dim() != len(sizes) or any(isinstance(y.meta["val"], Tensor) for y in node.all_input_nodes[1:]):
        return None
    if node.target is _aten.expand.default:
        if len(given[1]) > len(sizes):
            return None
        wider = [old if new == -1 else new for old, new in zip(sizes, given[1], strict=True)]
        return insert_call(graph, node.target, x, wider)
    if node.target is _aten.unsqueeze.default:
        axis = rest[0] % (len(sizes) + 1)
        rest, sizes = [axis], [*sizes[:axis], 1, *sizes[axis:]]
    return insert_call(graph, _aten.expand.default, insert_call(graph, node.target, x, *rest), sizes)


def _sum_rows_first(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    x, axes, *rest = _arguments(node)
    sizes = x.meta["val"].shape
    summed = {axis % len(sizes) for axis in axes}
    has_rows_and_last = len(summed) > 1 and {0, len(sizes) - 1} <= summed and len(summed) < len(sizes)
    if node.kwargs or not has_rows_and_last or not _has_open_size(sizes[:1]) or _has_open_size(sizes[1:]):
        return None
    return insert_call(graph, node.target, insert_call(graph, node.target, x, [0], True), axes, *rest)


def _concatenate_slices(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    # a sum of slices that are written into zeros, where these cover an axis
    if node.kwargs or any(user.target is _aten.add.Tensor and len(node.users) == 1 for user in node.users):
        return None  # or a summand of such a sum
    summands = list(_summands(node))
    slices = [x for x in summands if isinstance(x, fx.Node) and x.target is _aten.slice_backward.default]
    written = [_arguments(x) for x in slices]  # rows, sizes, axis, begin, end, step
    axes = {of[2] for of in written}
    if len(slices) < 2 or len(axes) > 1 or any(sizes_as_text(x) != sizes_as_text(node) for x in slices):
        return None
    axis, begins = axes.pop(), {of[3]: of[0] for of in written if of[5] == 1}
    if _has_open_size(x.meta["val"].shape[axis] for x in (node, *begins.values())):
        return None
    joined, at = list[Any](), 0
    while at in begins:
        joined.append(begins[at])
        at += joined[-1].meta["val"].shape[axis]
    if len(joined) < len(slices) or at != node.meta["val"].shape[axis]:
        return None
    whole = insert_call(graph, _aten.cat.default, joined, axis)
    for other in summands:
        if other not in slices:
            whole = insert_call(graph, _aten.add.Tensor, whole, other)
    return whole


def _summands(node: fx.Node) -> Iterator[Any]:
    for x in node.args[:2]:
        if isinstance(x, fx.Node) and x.target is _aten.add.Tensor and not x.kwargs and len(x.users) == 1:
            yield from _summands(x)
        else:
            yield x


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
    value, tags = node.meta.get("val"), getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags and isinstance(value, Tensor) and not _has_open_size(value.shape)


def _has_rows_behind_views(user: fx.Node) -> bool:
    value = user.meta.get("val")
    if not isinstance(value, Tensor):
        return False
    if _has_open_size(value.shape):
        return True
    return user.target in _VIEWS and any(map(_has_rows_behind_views, user.users))


def _has_open_size(sizes: Iterable[Any]) -> bool:
    return any(isinstance(n, SymInt) for n in sizes)


_VIEWS = {_aten.view.default, _aten.unsqueeze.default, _aten.expand.default, _aten.squeeze.dim, _aten.slice.Tensor}
_RULES: dict[Any, Callable[[fx.Graph, fx.Node], fx.Node | None]] = {
    **dict.fromkeys((*_ELEMENTWISE, _aten.unsqueeze.default, _aten.expand.default), _expand_later),
    _aten.sum.dim_IntList: _sum_rows_first,
    _aten.add.Tensor: _concatenate_slices,
}
