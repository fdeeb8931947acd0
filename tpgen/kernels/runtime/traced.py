"""Equal operator calls, merged in traced graphs."""

from __future__ import annotations

from typing import Any

import torch

from tpgen.base import _torch
from tpgen.kernels.runtime.registration import library


def share_equal_calls(name: str) -> None:
    """Call an operator once for equal arguments in traced graphs."""
    # Inductor merges equal calls only in graphs with gradients: else every layer would sort the same edges
    mode = getattr(_torch, "TracingMode", None)
    if mode is not None:
        torch.library.register_torch_dispatch(f"tpgen::{name}", mode, _call_or_reuse_equal_node, lib=library)


def _call_or_reuse_equal_node(mode: Any, operator: Any, types: Any, args: tuple[Any, ...], kwargs: Any = None) -> Any:
    # a call while a graph is traced: the result of an equal one that stands there, or a node of its own
    tracer = mode.tracer
    if not (hasattr(tracer, "unwrap_proxy") and hasattr(tracer, "proxy")):  # of a graph that is written anew
        return mode.__torch_dispatch__(operator, types, args, kwargs or {})
    given = [getattr(tracer.unwrap_proxy(x), "node", None) if isinstance(x, torch.Tensor) else x for x in args]
    same = None if any(x is None for x in given) else _find_call_with_equal_arguments(tracer.graph, operator, given)
    if same is None:
        return mode.__torch_dispatch__(operator, types, args, kwargs or {})
    return _torch.track_tensors(operator(*args), tracer.proxy(same), constant=None, tracer=tracer)


def _find_call_with_equal_arguments(graph: Any, operator: Any, given: list[Any]) -> Any:
    """Node that calls an operator on equal arguments, or None."""
    first, known, calls = dict[Any, Any](), dict[Any, Any](), list[Any]()
    for node in graph.nodes:
        first[node] = node
        if getattr(getattr(node.target, "_schema", None), "is_mutable", False):  # a node that writes
            known.clear()
            calls.clear()
            first = {one: one for one in first}  # those that held the same may differ now
        elif node.op == "call_function" and not node.is_impure():
            first[node] = known.setdefault(
                (node.target, _key_of_equal_arguments((node.args, node.kwargs), first)), node
            )
            calls += [node] * (node.target is operator)
    same = (n for n in calls if all(_is_same_value(*pair, first) for pair in zip(n.args, given, strict=True)))
    return next(same, None)


def _key_of_equal_arguments(x: Any, first: dict[Any, Any]) -> Any:
    # each node as the first node with the same value
    if isinstance(x, tuple | list):
        return tuple(_key_of_equal_arguments(one, first) for one in x)
    if isinstance(x, dict):
        return tuple((name, _key_of_equal_arguments(one, first)) for name, one in x.items())
    return first[x] if hasattr(x, "op") else repr(x)


def _is_same_value(argument: Any, given: Any, first: dict[Any, Any]) -> bool:
    # numbers must be equal for all sizes of the graph
    if hasattr(given, "op"):
        return given in first and first.get(argument) is first[given]
    value = argument.meta["val"] if hasattr(argument, "op") else argument
    return bool(_torch.symbolic_shapes.statically_known_true(value == given))
