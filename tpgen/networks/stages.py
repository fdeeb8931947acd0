"""Stages of a traced graph: results, gradients, gradients of gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from tpgen.base._torch import pytree
from tpgen.networks.cse import cse
from tpgen.networks.functional import aliases

_aten = torch.ops.aten
# operations that a later stage repeats, as Inductor fuses them into the loops that read them
_FUSED = {
    *(_aten.cat.default, _aten.clone.default, _aten._to_copy.default, _aten.constant_pad_nd.default),
    *(_aten.index.Tensor, _aten.index_select.default, _aten.embedding.default, _aten.gather.default),
    *(_aten.arange.default, _aten.arange.start_step, _aten.full.default, _aten.full_like.default),
    *(_aten.zeros.default, _aten.ones.default, _aten.zeros_like.default, _aten.ones_like.default),
    *(_aten.lift_fresh_copy.default, _aten.new_zeros.default, _aten.new_ones.default, _aten.new_full.default),
}


@dataclass(frozen=True, eq=False)
class GraphPart:
    """Graph, with the places of inputs among all inputs."""

    graph: fx.GraphModule
    takes: tuple[int, ...]

    def given(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Select the graph's inputs."""
        return [inputs[n] for n in self.takes]

    def of(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run the graph on its share of all inputs."""
        return self.graph.forward(*self.given(inputs))


@dataclass(frozen=True, eq=False)
class GradientStage:
    """Graph of gradients: of inputs, all cotangents, and tensors that earlier stages saved, numbered in this order."""

    graph: GraphPart
    places: tuple[int, ...]  # of the gradients among those asked for: others are None
    depends: tuple[frozenset[int], ...]  # numbers of the stage's cotangents that each gradient is computed from
    saves: range  # numbers of the outputs behind the gradients


class Parts(NamedTuple):
    """A traced graph in stages: program, structure and constants of its results, numbers of what it saves."""

    program: GraphPart
    result: pytree.TreeSpec
    constants: dict[int, Any]
    saves: range = range(0)
    stages: tuple[GradientStage, ...] = ()


def split(
    graph: fx.GraphModule, spec: pytree.TreeSpec, constants: dict[int, Any], count: int, cotangents: Sequence[int]
) -> Parts:
    """Split a graph whose first ``count`` outputs are results, gradients of each stage, and checks.

    The graph's last inputs are ``cotangents`` of each stage.
    """
    if not cotangents:
        return Parts(subgraph(graph, returned_nodes(graph)[:count]), spec, constants)
    _remove_detach_and_dead_nodes(graph.graph, graph)
    outputs, leaves = iter(returned_nodes(graph)[:count]), iter(range(spec.num_leaves))
    places = [[n for n, x in enumerate(islice(leaves, of.num_leaves)) if x not in constants] for of in spec.children()]
    results, *gradients = ([next(outputs) for _ in of] for of in places)
    checks, inputs = list(outputs), _placeholders(graph)
    saved, known = _saved_nodes([[*results, *checks], *gradients]), list[fx.Node]()
    parts, saves = [], []
    for found, kept, last in zip((results, *gradients), saved, (checks, *([] for _ in gradients)), strict=True):
        parts.append(subgraph(graph, [*found, *kept, *last], known))
        saves.append(range(len(inputs) + len(known), len(inputs) + len(known) + len(kept)))
        known += kept
    slopes = iter(list(enumerate(inputs))[len(inputs) - sum(cotangents) :])
    depends = [
        _cotangents_behind_gradients(of, dict(islice(slopes, n))) for of, n in zip(gradients, cotangents, strict=True)
    ]
    stages = tuple(GradientStage(*of) for of in zip(parts[1:], map(tuple, places[1:]), depends, saves[1:], strict=True))
    result = spec.children()[0]
    return Parts(parts[0], result, {n: x for n, x in constants.items() if n < result.num_leaves}, saves[0], stages)


def _cotangents_behind_gradients(
    gradients: Sequence[fx.Node], cotangents: dict[int, fx.Node]
) -> tuple[frozenset[int], ...]:
    known = [_find_ancestor_nodes_up_to([node]) for node in gradients]
    return tuple(frozenset(n for n, x in cotangents.items() if x in of) for of in known)


def _saved_nodes(outputs: Sequence[Sequence[fx.Node]]) -> list[list[fx.Node]]:
    # select what each stage saves for later ones, from the outputs of all stages.
    # Stages save outputs of kernels, matrix products and sums, and repeat pointwise operations and gathers.
    known = [_find_ancestor_nodes_up_to([node for of in outputs[: n + 1] for node in of]) for n in range(len(outputs))]
    saved: list[list[fx.Node]] = [[] for _ in outputs]
    for n in reversed(range(1, len(outputs))):
        ends = {node for node in known[n - 1] if _is_worth_saving(node)}
        for node in _find_ancestor_nodes_up_to([*outputs[n], *saved[n]], ends):
            if node in ends:
                of = next(stage for stage, nodes in zip(saved, known, strict=True) if node in nodes)
                of += [node] if node not in of else []
    return saved


def _find_ancestor_nodes_up_to(nodes: Iterable[fx.Node], ends: Collection[fx.Node] = ()) -> dict[fx.Node, None]:
    # these nodes and all that they are computed from, but not beyond an end
    found: dict[fx.Node, None] = {}
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found[node] = None
            pending += () if node in ends else node.all_input_nodes
    return found


def _is_worth_saving(node: fx.Node) -> bool:
    if node.op != "call_function" or not node.all_input_nodes or not isinstance(node.meta.get("val"), Tensor):
        return False
    by: Any = node.args[0] if node.target is getitem else node
    return not (torch.Tag.pointwise in getattr(by.target, "tags", ()) or by.target in _FUSED or aliases(by))


def _placeholders(graph: fx.GraphModule) -> list[fx.Node]:
    return list(graph.graph.find_nodes(op="placeholder"))


def returned_nodes(graph: fx.GraphModule) -> list[fx.Node]:
    """Nodes that a graph returns."""
    output: Any = graph.graph.output_node()
    return list(output.args[0])


def subgraph(graph: fx.GraphModule, outputs: Sequence[fx.Node], given: Sequence[fx.Node] = ()) -> GraphPart:
    """Extract the part that computes outputs from the graph's placeholders and further ``given`` nodes."""
    made = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for node in (*_placeholders(graph), *given):
        copies[node] = made.placeholder(node.name)
        copies[node].meta["val"] = node.meta["val"].contiguous()
    made.graph_copy(graph.graph, copies)
    made.output([copies[node] for node in outputs])
    _remove_detach_and_dead_nodes(made, graph)
    placeholders = list(made.find_nodes(op="placeholder"))
    takes = tuple(n for n, x in enumerate(placeholders) if x.users)
    for x in placeholders:
        if not x.users:
            made.erase_node(x)
    for n, x in enumerate(made.find_nodes(op="placeholder")):
        x.target = x.name = f"input_{n}"  # the same in a process that has others beside them
    return GraphPart(fx.GraphModule(graph, made), takes)  # with the constants of the graph


def clone_results_that_view_inputs(graph: fx.Graph, result_count: int) -> None:
    """Copy results that view inputs."""
    output: Any = graph.output_node()
    results = list(output.args[0])
    for n, root in enumerate(results[:result_count]):
        while root.op == "call_function" and aliases(root):
            root = root.args[0]
        if root.op == "placeholder":
            with graph.inserting_before(output):
                copied = graph.call_function(torch.ops.aten.clone.default, (results[n],))
            copied.meta["val"] = results[n].meta["val"]
            results[n] = copied
    output.args = (results,)


def drop_group_sources_known_by_species(graph: fx.Graph, first_source: int, source_count: int) -> int:
    """Drop sources of groups of atoms that follow from species; return how many stay."""
    output: Any = graph.output_node()
    if source_count != 3:
        return source_count
    results = list(output.args[0])
    rows, table, numbers = results[first_source : first_source + 3]
    if rows.target is not torch.ops.aten.embedding.default or rows.args != (table, numbers):
        return source_count
    results[first_source : first_source + 3] = [numbers]
    output.args = (results,)
    return 1


def _remove_detach_and_dead_nodes(graph: fx.Graph, module: fx.GraphModule) -> None:
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0])
    graph.eliminate_dead_code()
    cse(graph, module)
