"""Passes over emitted graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import fx

from tpgen.base.errors import EmitError
from tpgen.emitter import streams as cuda
from tpgen.emitter.graph_writer import NodeOrigin


def name_nodes(graph: fx.Graph) -> fx.Graph:
    """Copy a graph; name nodes after segment or path."""
    new = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        args = fx.map_arg(node.args, lambda n: copies[n])
        kwargs = fx.map_arg(node.kwargs, lambda n: copies[n])
        copy = new.create_node(node.op, node.target, args, kwargs, _name_by_path_and_operation(node), node.type)
        copy.meta = dict(node.meta)
        copies[node] = copy
    new.lint()
    return new


def _name_by_path_and_operation(node: fx.Node) -> str | None:
    # fx adds a number to a name that is taken
    if node.op in ("placeholder", "get_attr", "output"):
        return None
    if "name" in node.meta:
        return node.meta["name"]
    operation = node.target if isinstance(node.target, str) else node.target.__name__.strip("_")
    served = node.meta["tpgen"].instructions
    return f"path{served[0]}_{operation}" if len(served) == 1 else operation


def put_on_streams(graph: fx.Graph, count: int) -> fx.Graph:
    """Run independent paths on ``count`` CUDA streams, shared nodes and sums on the caller's.

    Raises `EmitError` unless ``count`` is a positive integer.
    """
    if type(count) is not int or count < 1:
        raise EmitError(f"streams must be a positive number of CUDA streams (or 0 for none), got {count!r}")
    before, groups, after = _partition_nodes_by_stream(graph, _assign_instructions_to_streams(graph, count))
    if len(groups) < 2:
        return graph  # a single group has nothing to run beside
    return _rewrite_graph_on_streams(graph, before, groups, after)


def _assign_instructions_to_streams(graph: fx.Graph, count: int) -> dict[int, int]:
    # largest first to the least loaded; ties by number, so that the result is the same every time
    weights: dict[int, int] = {}
    for node in graph.nodes:
        for instruction in node.meta["tpgen"].instructions:
            weights[instruction] = weights.get(instruction, 0) + 1
    load = [0] * count
    stream_of = {}
    for instruction in sorted(weights, key=lambda i: (-weights[i], i)):
        stream = load.index(min(load))
        stream_of[instruction] = stream
        load[stream] += weights[instruction]
    return stream_of


def _partition_nodes_by_stream(
    graph: fx.Graph, stream_of: dict[int, int]
) -> tuple[list[fx.Node], dict[int, list[fx.Node]], list[fx.Node]]:
    place: dict[fx.Node, int | str] = {}
    for node in graph.nodes:
        streams = {stream_of[i] for i in node.meta["tpgen"].instructions}
        inputs = {place[n] for n in node.all_input_nodes} - {"before"}
        if "after" not in inputs and len(inputs | streams) == 1 and streams:
            place[node] = streams.pop()
        else:
            place[node] = "after" if inputs or node.op == "output" else "before"
    groups: dict[int, list[fx.Node]] = {}
    for node, where in place.items():
        if isinstance(where, int):
            groups.setdefault(where, []).append(node)
    return [n for n, p in place.items() if p == "before"], groups, [n for n, p in place.items() if p == "after"]


def _rewrite_graph_on_streams(
    graph: fx.Graph, before: list[fx.Node], nodes_of_streams: dict[int, list[fx.Node]], after: list[fx.Node]
) -> fx.Graph:
    new = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}

    def copy_nodes(nodes: Iterable[fx.Node]) -> None:
        for node in nodes:
            copies[node] = new.node_copy(node, lambda n: copies[n])

    def add_call_node(function: Callable[..., Any], *args: Any, instructions: tuple[int, ...] = ()) -> fx.Node:
        node = new.call_function(function, args)
        node.meta["tpgen"] = NodeOrigin(instructions, "stream")
        return node

    copy_nodes(before)
    like = next(node for node in new.nodes if node.op == "placeholder")
    main = add_call_node(cuda.current_stream, like)
    sides = {}
    for number, nodes in nodes_of_streams.items():
        served = tuple(sorted({i for node in nodes for i in node.meta["tpgen"].instructions}))
        side = sides[number] = add_call_node(cuda.side_stream, like, number, instructions=served)
        add_call_node(cuda.wait, side, main, instructions=served)
        add_call_node(cuda.set_stream, side, instructions=served)
        copy_nodes(nodes)
        add_call_node(cuda.set_stream, main, instructions=served)
    read_after = {n for node in after for n in node.all_input_nodes}
    for number, nodes in nodes_of_streams.items():
        add_call_node(cuda.wait, main, sides[number])
        for node in nodes:
            if node in read_after:
                add_call_node(cuda.hand_over, copies[node], main, instructions=node.meta["tpgen"].instructions)
    copy_nodes(after)
    new.lint()
    return new
