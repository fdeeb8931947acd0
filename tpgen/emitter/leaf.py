"""Products are single nodes in the graphs that `torch.fx.symbolic_trace` makes of networks around them."""

from __future__ import annotations

from typing import Any

from torch import fx, nn


def leaf_call(module: nn.Module, *arguments: Any, **options: Any) -> fx.Proxy | None:
    """The call of a module as one node where fx traces a network that holds it; None where it does not.

    >>> network = nn.Sequential(nn.Linear(2, 3))
    >>> x = fx.Graph().placeholder("x")
    >>> leaf_call(network[0], x) is None
    True
    """
    tracer = next((x.tracer for x in (*arguments, *options.values()) if isinstance(x, fx.Proxy)), None)
    if not isinstance(tracer, fx.Tracer) or tracer.root is module:
        return None
    return tracer.create_proxy("call_module", tracer.path_of_module(module), arguments, options)
