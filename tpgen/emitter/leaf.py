"""Modules that fx records as single nodes, in a trace of a network that holds them."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from tpgen.base.errors import TraceError


def keep_whole(module: nn.Module) -> None:
    """Let tracers of fx record each call of a module as one node, as they do with modules of torch.nn.

    fx looks into every module whose ``__module__`` does not begin with "torch.nn".  It asks the instance, so an
    attribute of the instance answers: the class keeps its own, and a call costs nothing more.

    >>> layer = type("Layer", (nn.Module,), {"forward": lambda self, x: x + 1})()
    >>> keep_whole(layer)
    >>> [node.op for node in fx.symbolic_trace(nn.Sequential(layer)).graph.nodes]
    ['placeholder', 'call_module', 'output']
    """
    vars(module)["__module__"] = nn.__name__


def look_inside(module: nn.Module) -> None:
    """Undo `keep_whole`."""
    vars(module).pop("__module__", None)


def is_kept_whole(module: nn.Module) -> bool:
    """Whether `keep_whole` was called for a module."""
    return "__module__" in vars(module)


def traced_root_error(module: nn.Module) -> TraceError:
    """The error of a trace that has such a module as its root."""
    name = type(module).__name__
    return TraceError(f"{name} is one node of a graph: trace a network that holds it, such as nn.Sequential(module)")


def has_proxy(*values: Any) -> bool:
    """Whether fx traces the call that these are arguments of, or are entries of its dicts."""
    return any(has_proxy(*v.values()) if isinstance(v, dict) else isinstance(v, fx.Proxy) for v in values)


def leaf_call(module: nn.Module, *arguments: Any, **options: Any) -> fx.Proxy | None:
    """One node for a call of ``module.forward`` with a proxy, which no tracer has seen; None without a proxy.

    Raises `TraceError` where the module itself is traced.

    >>> network = nn.Sequential(nn.Linear(2, 3))
    >>> x = fx.Graph().placeholder("x")
    >>> leaf_call(network[0], x) is None
    True
    """
    tracer = next((x.tracer for x in (*arguments, *options.values()) if isinstance(x, fx.Proxy)), None)
    if not isinstance(tracer, fx.Tracer):
        return None
    if tracer.root is module:
        raise traced_root_error(module)
    return tracer.create_proxy("call_module", tracer.path_of_module(module), arguments, options)
