"""Operators that a graph calls once for equal arguments, looked for while it is traced.

Inductor merges equal calls where it splits a graph into one for each direction, and nowhere else: in a graph without
gradients every layer would sort the same edges.
"""

from __future__ import annotations

from typing import Any

import torch

from tpgen import _torch
from tpgen.kernels.runtime.registration import library


def share_equal_calls(name: str) -> None:
    """Let graphs call an operator of a tensor and a number once for equal ones: it may depend on nothing else."""
    mode = getattr(_torch, "TracingMode", None)
    if mode is not None:
        torch.library.register_torch_dispatch(f"tpgen::{name}", mode, _traced, lib=library)


def _traced(mode: Any, operator: Any, types: Any, args: tuple[Any, ...], kwargs: Any = None) -> Any:
    """A call while a graph is traced: the result of an equal one that stands there, or a node of its own."""
    tracer, (x, number) = mode.tracer, args
    if not (hasattr(tracer, "unwrap_proxy") and hasattr(tracer, "proxy")):  # of a graph that is written anew
        return mode.__torch_dispatch__(operator, types, args, kwargs or {})
    same = _equal_call(tracer.graph, operator, getattr(tracer.unwrap_proxy(x), "node", None), number)
    if same is None:
        return mode.__torch_dispatch__(operator, types, args, kwargs or {})
    return _torch.track_tensors(operator(*args), tracer.proxy(same), constant=None, tracer=tracer)


def _equal_call(graph: Any, operator: Any, x: Any, number: Any) -> Any:
    """The first call of an operator on what a node holds, with nothing written since; None where there is none."""
    first, known, calls = dict[Any, Any](), dict[Any, Any](), list[Any]()
    for node in graph.nodes:
        first[node] = node
        if _writes(node):
            known.clear()
            calls.clear()
            first = {one: one for one in first}  # those that held the same may differ now
        elif node.op == "call_function" and not node.is_impure():
            first[node] = known.setdefault((node.target, _spelled((node.args, node.kwargs), first)), node)
            calls += [node] * (node.target is operator)
    mine = first.get(x)
    same = (n for n in calls if mine is not None and first.get(n.args[0]) is mine and _equal(n.args[1], number))
    return next(same, None)


def _writes(node: Any) -> bool:
    return getattr(getattr(node.target, "_schema", None), "is_mutable", False)


def _spelled(x: Any, first: dict[Any, Any]) -> Any:
    """Arguments as a key, each node as the first that holds the same."""
    if isinstance(x, tuple | list):
        return tuple(_spelled(one, first) for one in x)
    if isinstance(x, dict):
        return tuple((name, _spelled(one, first)) for name, one in x.items())
    return first[x] if hasattr(x, "op") else repr(x)


def _equal(there: Any, number: Any) -> bool:
    """Whether two numbers, one of them maybe a node, are equal for all sizes that a graph is for."""
    value = there.meta["val"] if hasattr(there, "op") else there
    return bool(_torch.symbolic_shapes.statically_known_true(value == number))
