"""Write an fx graph as torch code over proxies.

``node.meta["tpgen"]`` records instructions and role.  Equal calls share a node.

>>> writer = GraphWriter()
>>> x = writer.placeholder("x")
>>> with writer.serving(0, "contraction"):
...     a = x * 2.0
>>> with writer.serving(1, "contraction"):
...     b = x * 2.0
>>> a.node is b.node, a.node.meta["tpgen"].instructions
(True, (0, 1))
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer

from tpgen.base.drawing.graphs import PictureNode

# An fx.Proxy: torch code over it reads as it would over the tensor it stands for, and is typed so.
Traced = Any


@dataclass(frozen=True)
class NodeOrigin:
    """A graph node's role, and instructions that use the node (empty: all)."""

    instructions: tuple[int, ...]
    role: str


class _DeduplicatingTracer(GraphAppendingTracer):
    def __init__(self, graph: fx.Graph) -> None:
        """Append nodes to ``graph``, equal ones once."""
        super().__init__(graph)
        self.current = NodeOrigin((), "broadcast")
        self.known: dict[Any, fx.Node] = {}

    def create_node(
        self, kind: str, target: Any, args: Any, kwargs: Any, name: Any = None, type_expr: Any = None
    ) -> fx.Node:
        """Create a node, or return an equal one."""
        key = (kind, target, make_hashable(args), make_hashable(kwargs))
        node = self.known.get(key)
        if node is None:
            node = super().create_node(kind, target, args, kwargs, name, type_expr)
            node.meta["tpgen"] = self.current
            self.known[key] = node
        else:
            before: NodeOrigin = node.meta["tpgen"]
            if before.instructions:  # else it serves all
                both = sorted({*before.instructions, *self.current.instructions}) if self.current.instructions else ()
                node.meta["tpgen"] = NodeOrigin(tuple(both), before.role)
        return node


class GraphWriter:
    """An fx graph under construction, with its constants."""

    def __init__(self) -> None:
        """Begin an empty graph."""
        self.graph = fx.Graph()
        self.constants: dict[str, np.ndarray] = {}
        self._recorder = _DeduplicatingTracer(self.graph)

    def placeholder(self, name: str, kind: type = torch.Tensor) -> Traced:
        """Add a placeholder to the graph."""
        node = self.graph.placeholder(name, kind)
        node.meta["tpgen"] = NodeOrigin((), "broadcast")
        return fx.Proxy(node, self._recorder)

    def constant(self, name: str, values: np.ndarray) -> Traced:
        """Add a named buffer to the graph, numbered if the name is taken."""
        wanted, number = name, 0
        while not np.array_equal(self.constants.setdefault(name, values), values):
            number += 1
            name = f"{wanted}_{number}"
        return self._recorder.create_proxy("get_attr", name, (), {})

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Traced:
        """Record a function call without tensor arguments."""
        return self._recorder.create_proxy("call_function", function, args, kwargs)

    @contextmanager
    def serving(self, instructions: int | tuple[int, ...], role: str) -> Iterator[None]:
        """Tag graph nodes added inside the block with instructions and role."""
        before = self._recorder.current
        served = (instructions,) if isinstance(instructions, int) else instructions
        self._recorder.current = NodeOrigin(served, role)
        try:
            yield
        finally:
            self._recorder.current = before

    @contextmanager
    def role(self, role: str) -> Iterator[None]:
        """Tag graph nodes added inside the block with a role, keeping instructions."""
        with self.serving(self._recorder.current.instructions, role):
            yield

    def forget(self) -> None:
        """Stop reusing earlier nodes."""
        self._recorder.known.clear()

    def finish(self, output: Traced | tuple[Traced, ...]) -> fx.Graph:
        """Set the output, remove dead nodes, return the graph."""
        if isinstance(output, tuple):
            node = self.graph.output(tuple(x.node for x in output), tuple[torch.Tensor, ...])
        else:
            node = self.graph.output(output.node, torch.Tensor)
        node.meta["tpgen"] = NodeOrigin((), "reshape")
        self.graph.eliminate_dead_code(is_impure_node=_has_effect)
        read = {node.target for node in self.graph.nodes if node.op == "get_attr"}
        self.constants = {name: values for name, values in self.constants.items() if name in read}
        self.graph.lint()
        return self.graph


def _has_effect(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or node.meta["tpgen"].role == "stream"


def make_hashable(value: Any) -> Any:
    """Hashable key for arguments."""
    if isinstance(value, (tuple, list)):
        return (type(value).__name__, *(make_hashable(v) for v in value))
    if isinstance(value, dict):
        return tuple((k, make_hashable(v)) for k, v in value.items())
    if isinstance(value, (fx.Node, fx.Proxy)):
        return value.node if isinstance(value, fx.Proxy) else value
    return type(value).__name__, repr(value)


def list_graph_rows(graph: fx.Graph) -> list[tuple[str, ...]]:
    """List a graph's nodes as rows of a table, head first."""
    rows: list[tuple[str, ...]] = [("node", "op", "target", "arguments", "role", "instructions")]
    for node in graph.nodes:
        origin = node.meta["tpgen"]
        arguments = ", ".join([*map(str, node.args), *(f"{k}={v}" for k, v in node.kwargs.items())])
        served = ",".join(map(str, origin.instructions)) or "all"
        rows.append((node.name, node.op, _target_name(node), arguments, origin.role, served))
    return rows


def list_picture_nodes(graph: fx.Graph) -> dict[str, PictureNode]:
    """A graph's nodes for a picture, without constants."""
    dots = {}
    for node in graph.nodes:
        is_end = node.op in ("placeholder", "output")
        served: tuple[int, ...] = getattr(node.meta.get("tpgen"), "instructions", ())  # none outside of programs
        title, path = node.name if is_end else _target_name(node), served[0] if len(served) == 1 else None
        if node.op != "get_attr":
            dots[node.name] = PictureNode([source.name for source in node.all_input_nodes], title, path, is_end)
    return dots


def _target_name(node: fx.Node) -> str:
    return str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
