"""Make fx record modules as single nodes."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from tpgen.base.errors import TraceError


def keep_whole(module: nn.Module) -> None:
    """Make fx record each call of a module as one node.

    >>> layer = type("Layer", (nn.Module,), {"forward": lambda self, x: x + 1})()
    >>> keep_whole(layer)
    >>> [node.op for node in fx.symbolic_trace(nn.Sequential(layer)).graph.nodes]
    ['placeholder', 'call_module', 'output']
    """
    # fx asks the instance whether __module__ begins with "torch.nn"; the class keeps its own
    vars(module)["__module__"] = nn.__name__


def look_inside(module: nn.Module) -> None:
    """Undo `keep_whole`."""
    vars(module).pop("__module__", None)


def is_kept_whole(module: nn.Module) -> bool:
    """Whether `keep_whole` was called for a module."""
    return "__module__" in vars(module)


def traced_root_error(module: nn.Module) -> TraceError:
    """Error for tracing a module that must be one node."""
    name = type(module).__name__
    return TraceError(f"{name} is one node of a graph: trace a network that holds it, such as nn.Sequential(module)")


def has_proxy(*values: Any) -> bool:
    """Whether an argument or a dict's value is an fx proxy."""
    return any(has_proxy(*v.values()) if isinstance(v, dict) else isinstance(v, fx.Proxy) for v in values)


def record_leaf_call(module: nn.Module, *arguments: Any, **options: Any) -> fx.Proxy | None:
    """Record a module's call as one node; None without proxy arguments.

    Raises `TraceError` for the root of a trace.

    >>> network = nn.Sequential(nn.Linear(2, 3))
    >>> x = fx.Graph().placeholder("x")
    >>> record_leaf_call(network[0], x) is None
    True
    """
    tracer = next((x.tracer for x in (*arguments, *options.values()) if isinstance(x, fx.Proxy)), None)
    if not isinstance(tracer, fx.Tracer):
        return None
    if tracer.root is module:
        raise traced_root_error(module)
    return tracer.create_proxy("call_module", tracer.path_of_module(module), arguments, options)
