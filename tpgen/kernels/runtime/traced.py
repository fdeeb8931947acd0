"""Equal operator calls, merged in traced graphs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from tpgen.base import _torch
from tpgen.kernels.runtime.registration import library


def merge_equal_operator_calls(operator_name: str) -> None:
    """Make traced graphs call an operator once for equal arguments."""
    # Inductor merges equal calls only in graphs with gradients: else every layer would sort the same edges
    mode = getattr(_torch, "TracingMode", None)
    if mode is not None:
        torch.library.register_torch_dispatch(f"tpgen::{operator_name}", mode, _call_or_reuse_equal_node, lib=library)


def _call_or_reuse_equal_node(mode: Any, operator: Any, types: Any, args: tuple[Any, ...], kwargs: Any = None) -> Any:
    # a call while a graph is traced: the result of an equal one that stands there, or a node of its own
    tracer = mode.tracer
    if not (hasattr(tracer, "unwrap_proxy") and hasattr(tracer, "proxy")):  # of a graph that is written anew
        return mode.__torch_dispatch__(operator, types, args, kwargs or {})
    given = [getattr(tracer.unwrap_proxy(x), "node", None) if isinstance(x, torch.Tensor) else x for x in args]
    same = None if any(x is None for x in given) else _find_node_with_equal_arguments(tracer.graph, operator, given)
    if same is None:
        return mode.__torch_dispatch__(operator, types, args, kwargs or {})
    return _torch.track_tensors(operator(*args), tracer.proxy(same), constant=None, tracer=tracer)


def _find_node_with_equal_arguments(graph: Any, operator: Any, arguments: list[Any]) -> Any:
    first, known, calls = dict[Any, Any](), dict[Any, Any](), list[Any]()
    for node in graph.nodes:
        first[node] = node
        if getattr(getattr(node.target, "_schema", None), "is_mutable", False):  # a node that writes
            known.clear()
            calls.clear()
            first = {one: one for one in first}  # those that held the same may differ now
        elif node.op == "call_function" and not node.is_impure():
            first[node] = known.setdefault((node.target, _make_argument_key((node.args, node.kwargs), first)), node)
            calls += [node] * (node.target is operator)
    same = (n for n in calls if all(_is_same_value(*pair, first) for pair in zip(n.args, arguments, strict=True)))
    return next(same, None)


def _make_argument_key(argument: Any, first_equal_node: dict[Any, Any]) -> Hashable:
    # each node as the first node with the same value
    if isinstance(argument, tuple | list):
        return tuple(_make_argument_key(one, first_equal_node) for one in argument)
    if isinstance(argument, dict):
        return tuple((name, _make_argument_key(one, first_equal_node)) for name, one in argument.items())
    return first_equal_node[argument] if hasattr(argument, "op") else repr(argument)


def _is_same_value(argument: Any, other: Any, first_equal_node: dict[Any, Any]) -> bool:
    # numbers must be equal for all sizes of the graph
    if hasattr(other, "op"):
        return other in first_equal_node and first_equal_node.get(argument) is first_equal_node[other]
    value = argument.meta["val"] if hasattr(argument, "op") else argument
    return bool(_torch.symbolic_shapes.statically_known_true(value == other))
