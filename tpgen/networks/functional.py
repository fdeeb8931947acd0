"""Traces without in-place operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tpgen.base._torch import FakeTensorMode, pytree, replaced_attribute, without_stack_traces
from tpgen.emitter.emit import free_source_text_with_code


def make_fake_mode(**options: Any) -> Any:
    """A fake tensor mode for one trace; ``options`` are `ShapeEnv`'s."""
    mode = FakeTensorMode(shape_env=ShapeEnv(**options), allow_non_fake_inputs=True)
    mode.cache_enabled = False  # few operators of a trace come twice
    return mode


def trace_without_writes(function: Callable[..., Any], inputs: Sequence[Any]) -> fx.GraphModule:
    """Trace a function at example inputs into a graph without writes."""
    graph = _trace_with_symbolic_sizes(function, inputs)
    if make_functional(graph.graph):
        return graph
    flat, spec = pytree.tree_flatten(inputs)  # torch does any graph, by tracing it again
    return _trace_with_symbolic_sizes(functionalize(lambda *given: graph(*pytree.tree_unflatten(given, spec))), flat)


def _trace_with_symbolic_sizes(function: Callable[..., Any], inputs: Sequence[Any]) -> fx.GraphModule:
    with without_stack_traces(), free_source_texts_with_graphs():
        return make_fx(function, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*inputs)


@contextmanager
def free_source_texts_with_graphs() -> Iterator[None]:
    """Free source texts of the block's graphs together with the graphs."""

    def wrap_recompile(recompile: Callable[[fx.GraphModule], Any]) -> Callable[[fx.GraphModule], Any]:
        def recompile_and_tie_source_text(self: fx.GraphModule) -> Any:
            made = recompile(self)
            free_source_text_with_code(type(self).forward.__code__)
            return made

        return recompile_and_tie_source_text

    with replaced_attribute(fx.GraphModule, "recompile", wrap_recompile):
        yield


def make_functional(graph: fx.Graph) -> bool:
    """Make a graph's in-place operations functional; return False if other readers see a write."""
    order = {node: n for n, node in enumerate(graph.nodes)}
    for node in order:
        if (
            node.op == "call_function"
            and _operator_schema_of_node(node) is not None
            and _operator_schema_of_node(node).is_mutable
        ):
            plain: Any = _find_functional_operator(node)
            if plain is None or any(
                order[user] > order[node] for view in _views_of_written_tensor(node) for user in view.users
            ):
                return False
            written: Any = node.args[0]
            written.replace_all_uses_with(node, lambda user, after=order[node]: order[user] > after)
            node.target = plain
    return True


def _find_functional_operator(in_place_call: fx.Node) -> Any:
    space, _, name = in_place_call.target.name().partition("::")  # type: ignore[union-attr]
    operation, _, overload = name.partition(".")
    written: Any = in_place_call.args[0] if in_place_call.args else None
    if space != "aten" or not operation.endswith("_") or not isinstance(written, fx.Node):
        return None
    if written.op != "call_function" or _operator_schema_of_node(written) is None or aliases(written):
        return None
    dtype = written.meta["val"].dtype
    for operand in in_place_call.all_input_nodes:
        x = operand.meta["val"]
        if isinstance(x, Tensor) and x.dtype != dtype and (x.is_floating_point() or not dtype.is_floating_point):
            return None  # in place the dtype stays, else it may be promoted
    return getattr(getattr(torch.ops.aten, operation[:-1], None), overload or "default", None)


def _views_of_written_tensor(write: fx.Node) -> set[fx.Node]:
    written: Any = write.args[0]
    found: set[fx.Node] = set()
    pending = [user for user in written.users if user is not write]
    while pending:
        view = pending.pop()
        if view not in found and aliases(view):
            found.add(view)
            pending += view.users
    return found


def aliases(node: fx.Node) -> bool:
    """Whether a node may return an operand's memory."""
    schema = _operator_schema_of_node(node)
    return node.op == "call_function" and (schema is None or any(x.alias_info is not None for x in schema.returns))


def _operator_schema_of_node(node: fx.Node) -> Any:
    return getattr(node.target, "_schema", None)
