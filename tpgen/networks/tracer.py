"""Trace a whole network into an fx graph.

>>> import torch, tpgen
>>> network = torch.nn.Sequential(tpgen.TensorSquare("2x1o"), torch.nn.ReLU())
>>> graph_module = trace_network(network)
>>> [(node.op, node.meta["module_path"]) for node in graph_module.graph.nodes]
[('placeholder', ''), ('call_module', '0'), ('call_module', '1'), ('output', '')]
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from e3nn import o3
from e3nn.math import soft_one_hot_linspace
from torch import fx, nn
from torch.fx.node import map_aggregate

from tpgen.base.errors import TpgenError, TraceError, first_line
from tpgen.emitter.emit import EmittedModule
from tpgen.emitter.leaf import is_kept_whole, traced_root_error
from tpgen.networks.inline import inline_products, product_of
from tpgen.networks.reach import TORCH_CODE

Leaf = Callable[[nn.Module, str], bool]
Attributes = Mapping[str, Any] | Callable[[fx.Node], Mapping[str, Any]]

# e3nn's functions that look at values or are TorchScript inside: a graph holds them as one call
LEAF_FUNCTIONS: tuple[Callable, ...] = (o3.spherical_harmonics, soft_one_hot_linspace)

# torch's functions that make a tensor of a size: recorded where the size is one of the graph
FACTORIES: tuple[Callable, ...] = (
    torch.zeros,
    torch.ones,
    torch.full,
    torch.empty,
    torch.eye,
    torch.arange,
    torch.linspace,
    torch.rand,
    torch.randn,
)


def is_leaf(module: nn.Module, path: str = "") -> bool:
    """Whether a module stays one node by default, as torch.nn's, tpgen's and e3nn's do.

    >>> is_leaf(torch.nn.ReLU()), is_leaf(o3.Linear("1o", "1o")), is_leaf(torch.nn.Sequential())
    (True, True, False)
    """
    if _is_scripted(module) or is_kept_whole(module) or isinstance(module, EmittedModule):
        return True
    if isinstance(module, nn.Sequential):
        return False
    home = type(module).__module__
    return home.startswith(("torch.nn.", "torch.ao.nn.", "e3nn.")) and not home.startswith("e3nn.nn.models")


def opening(*kinds: type[nn.Module] | str, otherwise: Leaf = is_leaf) -> Leaf:
    """A leaf predicate that traces into given classes or paths; ``otherwise`` decides for other modules.

    >>> opening(torch.nn.ReLU)(torch.nn.ReLU(), "act"), opening("act")(torch.nn.ReLU(), "act")
    (False, False)
    """
    classes = tuple(kind for kind in kinds if isinstance(kind, type))
    return lambda module, path: not (path in kinds or isinstance(module, classes)) and otherwise(module, path)


class NetworkTracer(fx.Tracer):
    """fx tracer with a leaf predicate and node attributes.

    Parameters
    ----------
    leaf
        ``(module, path) -> bool``: whether a module stays one node.  `trace_network` inlines products that are no
        leaves.
    attributes
        entries for each node's ``meta``: a mapping, or a function of the node.
    """

    def __init__(self, leaf: Leaf = is_leaf, attributes: Attributes | None = None) -> None:
        super().__init__()
        self.leaf = leaf
        self.attributes = attributes if attributes is not None else {}
        self.opened: set[str] = set()  # paths of products to be replaced by their programs

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module stays one node; `TraceError` if untraceable."""
        if self.leaf(m, module_qualified_name):
            return True
        if product_of(m) is not None:
            self.opened.add(module_qualified_name)
            return True
        if _is_scripted(m):
            raise TraceError(
                f"module {module_qualified_name!r} is TorchScript, which has no Python code to trace: keep it a leaf "
                "(the default), or put the module that it was scripted from in its place"
            )
        if is_kept_whole(m):
            raise TraceError(
                f"module {module_qualified_name!r} is a {type(m).__name__}, whose code of tpgen's cannot be traced: "
                "keep it a leaf (the default), or restore the network if it is converted"
            )
        return False

    def create_arg(self, a: Any) -> Any:
        """Turn irreps into text, which all of e3nn takes."""
        return str(a) if isinstance(a, (o3.Irreps, o3.Irrep)) else super().create_arg(a)

    def create_node(
        self, kind: str, target: Any, args: Any, kwargs: Any, name: Any = None, type_expr: Any = None
    ) -> fx.Node:
        """Add module path and attributes to a node's ``meta``."""
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        node.meta["module_path"] = self.scope.module_path
        node.meta.update(self.attributes(node) if callable(self.attributes) else self.attributes)
        return node


def trace_network(
    network: nn.Module,
    *,
    leaf: Leaf = is_leaf,
    attributes: Attributes | None = None,
    functions: Iterable[Callable] = (),
    concrete_args: dict[str, Any] | None = None,
) -> fx.GraphModule:
    """Trace a network into a graph module with the same parameters.

    Products, e3nn's modules, ``functions`` and `LEAF_FUNCTIONS` become single nodes; name functions whose result
    depends on values, such as a neighbour search.  `NetworkTracer` explains ``leaf`` and ``attributes``;
    ``concrete_args`` fixes arguments of ``forward``.  ``meta["module_path"]`` names each node's module.

    Raises `TraceError` with the source line if code needs a value that only a call has.
    """
    if not isinstance(network, nn.Module):
        raise TraceError(
            f"give an nn.Module to trace, not {type(network).__name__}; wrap a function in a module that calls it"
        )
    if _globals_of_forward(type(network)) is None:
        raise TraceError(
            f"{type(network).__name__} has no Python code to trace (it is TorchScript, or its forward is built in): "
            "trace the module that it was made from"
        )
    if is_kept_whole(network):
        raise traced_root_error(network)
    tracer = NetworkTracer(leaf, attributes)
    try:
        with _record_functions_and_len_as_nodes((*LEAF_FUNCTIONS, *FACTORIES, *functions), network):
            graph = tracer.trace(network, concrete_args)
    except TpgenError:
        raise
    except Exception as error:
        raise TraceError(_write_trace_error_message(error, tracer)) from error
    traced = fx.GraphModule(network, graph, class_name=type(network).__name__)
    if not tracer.opened:
        return traced
    return inline_products(traced, lambda product, path: path in tracer.opened)


def _is_scripted(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.jit")


# --- functions as nodes ---------------------------------------------------------------------------------------------


def _wrap_to_record_call_as_node(function: Callable) -> Callable:
    # the function, which becomes a node where an argument is a proxy
    @functools.wraps(function)
    def call_or_record_node(*args: Any, **kwargs: Any) -> Any:
        tracers: list[Any] = []
        map_aggregate((args, kwargs), lambda a: tracers.append(a.tracer) if isinstance(a, fx.Proxy) else a)
        return (
            tracers[0].create_proxy("call_function", function, args, kwargs) if tracers else function(*args, **kwargs)
        )

    return call_or_record_node


@contextmanager
def _record_functions_and_len_as_nodes(functions: Iterable[Callable], network: nn.Module) -> Iterator[None]:
    wrappers = {id(function): _wrap_to_record_call_as_node(function) for function in functions}
    undo: list[tuple[dict[str, Any], str, Any]] = []
    own = {id(names) for names in _globals_of_user_forwards(network)}
    missing = object()
    try:
        for scope in _list_namespaces_in_use(network):
            found = {name: wrappers[id(value)] for name, value in scope.items() if id(value) in wrappers}
            if id(scope) in own and "len" not in scope:
                found["len"] = _wrap_to_record_call_as_node(len)
            for name, wrapper in found.items():
                undo.append((scope, name, scope.get(name, missing)))
                scope[name] = wrapper
        yield
    finally:
        for scope, name, before in reversed(undo):
            if before is missing:
                del scope[name]
            else:
                scope[name] = before


def _list_namespaces_in_use(network: nn.Module) -> list[dict[str, Any]]:
    scopes: dict[int, dict[str, Any]] = {id(vars(torch)): vars(torch)}
    for names in _globals_of_user_forwards(network):
        scopes[id(names)] = names
        for value in list(names.values()):
            if isinstance(value, ModuleType) and not value.__name__.startswith("torch"):
                scopes.setdefault(id(vars(value)), vars(value))
    return list(scopes.values())


def _globals_of_user_forwards(network: nn.Module) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for kind in dict.fromkeys(type(module) for module in network.modules()):
        names = _globals_of_forward(kind)
        if names is not None and not names.get("__name__", "torch.fx").startswith(("torch.", "tpgen.nn.")):
            found[id(names)] = names
    return list(found.values())


def _globals_of_forward(kind: type[nn.Module]) -> dict[str, Any] | None:
    return getattr(inspect.getattr_static(kind, "forward", None), "__globals__", None)


# --- errors ---------------------------------------------------------------------------------------------------------

_WAYS_OUT = (  # part of fx's message, and what to do
    (
        "inputs to control flow",
        "the code decides by a value of a tensor: make the module a leaf (leaf=...), take the decision out of forward, "
        "or fix the argument it depends on (concrete_args=...)",
    ),
    (
        "iterated",
        "the code goes through a tensor whose length is not known: unpack it into a fixed number of names, "
        "or make the module a leaf (leaf=...)",
    ),
    (
        "not installed as a submodule",
        "the code calls a module that the network does not hold: assign it to an attribute",
    ),
)
_OTHERWISE = (
    "this code needs a value that only a call has: make its module a leaf (leaf=...), or the function it calls a node "
    "(functions=...)"
)


def _write_trace_error_message(error: Exception, network_tracer: NetworkTracer) -> str:
    way_out = next((advice for part, advice in _WAYS_OUT if part in str(error)), _OTHERWISE)
    if helper := _name_outermost_user_function(error):
        way_out = f"keep {helper} as one node of the graph: functions=[{helper}]"
    return (
        f"cannot trace {_describe_traced_location(error, network_tracer)}: {first_line(error).rstrip('.')}; {way_out}"
    )


def _name_outermost_user_function(error: Exception) -> str:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        found = inspect.unwrap(frame.f_globals.get(frame.f_code.co_name, _name_outermost_user_function))
        ours = frame.f_code.co_filename.startswith(TORCH_CODE) or frame.f_globals is globals()
        if not ours and getattr(found, "__code__", None) is frame.f_code:
            return frame.f_code.co_name
    return ""


def _describe_traced_location(error: Exception, tracer: NetworkTracer) -> str:
    path = next(reversed(tracer.module_stack.values()))[0] if tracer.module_stack else ""
    module = f"module {path!r}" if path else "the network"
    ours = (TORCH_CODE, __file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    if not frames:
        return module
    last = frames[-1]
    return f"{module}, {Path(last.filename).name}:{last.lineno} ({last.line or 'source not available'})"
