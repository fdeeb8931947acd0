"""Trace a network's evaluation into a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext, free_unbacked_symbols

from tpgen.base._torch import ConstantSource, pytree
from tpgen.base.errors import DeployError, InputError, TpgenError
from tpgen.networks.cse import cse
from tpgen.networks.dependent import ASKS_FOR_NUMBER, Dependent, plain_words
from tpgen.networks.functional import aliases, fake_mode, traced
from tpgen.networks.lengths import open_lengths
from tpgen.networks.neutral_edges import EdgePadding
from tpgen.networks.objects import objects_with_dicts
from tpgen.networks.reach import Reach, executed_code
from tpgen.networks.reads import Reads, reading
from tpgen.networks.recording import Finding, Recording, recording
from tpgen.networks.replays import on_gpu
from tpgen.networks.results import flatten, leaf_constants, unflatten
from tpgen.networks.signature import ParameterSlots, Signature
from tpgen.networks.simplify import fold_constants, rewrite, simplify_graph
from tpgen.networks.sizes import InputSizes

_Finds = Callable[[Recording], AbstractContextManager[Any]]  # of operations that a program takes for findings
Evaluate = Callable[..., Any]  # from the arguments of a call to results, of which tensors are those of the program


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


@dataclass(eq=False)
class Search:
    """Search of each call for a finding: graphs of the sources, and the last result."""

    finding: Finding
    first: GraphPart
    sources: GraphPart
    last: tuple[Tensor, list[Tensor]] | None = None

    def find(self, inputs: list[Tensor], refresh: bool) -> list[Tensor] | None:
        """Compute the finding; without ``refresh``, reuse the last one for an equal first source."""
        if self.finding.wrong is None:
            return self.finding.find(*self.sources.of(inputs))
        (first,), last = self.first.of(inputs), self.last
        if last and not refresh and first.dtype == last[0].dtype and first.is_cpu and torch.equal(first, last[0]):
            return last[1]
        found = self.finding.find(*self.sources.of(inputs))
        self.last = None if found is None else (first.clone(), found)
        return found


@dataclass
class TracedEvaluation:
    """A traced evaluation: program, input conditions, reads, searches and result structure."""

    program: GraphPart
    sizes: InputSizes  # of parameters, tensors and findings
    reads: Reads
    searches: dict[str, Search]
    result: pytree.TreeSpec
    constants: dict[int, Any] = field(default_factory=dict)  # leaves of the result that are no tensors
    padding: EdgePadding | None = None  # on a GPU

    def complete(self, inputs: list[Tensor], refresh: bool = True) -> list[Tensor] | None:
        """Append findings, perhaps reused unless ``refresh``, to the inputs; None if a search fails."""
        for search in self.searches.values():
            found = search.find(inputs, refresh)
            if found is None:
                return None
            inputs = inputs + found
        return inputs

    def confirms_findings(self, outputs: Sequence[Tensor]) -> bool:
        """Whether the program's outputs confirm all reused findings."""
        count = sum(search.finding.wrong is not None for search in self.searches.values())
        return all(float(x) <= 0 for x in outputs[len(outputs) - count :])

    def leaves(self, outputs: Sequence[Tensor]) -> list[Any]:
        """Merge the program's tensors and constants into the result's leaves."""
        rest = iter(outputs)
        return [self.constants[n] if n in self.constants else next(rest) for n in range(self.result.num_leaves)]

    def results(self, outputs: Sequence[Tensor]) -> Any:
        """Rebuild the network's result from outputs."""
        return unflatten(self.leaves(outputs), self.result)


@plain_words()
def trace_evaluation(
    evaluate: Evaluate, slots: ParameterSlots, signature: Signature, tensors: Sequence[Tensor]
) -> TracedEvaluation:
    """Trace an evaluation that reads parameters in the slots, at example tensors."""
    try:
        return _trace_with_findings(evaluate, slots, signature, tensors, nullcontext)
    except TpgenError:
        raise
    except Exception:  # torch knows no sizes that depend on numbers, or no conditions on such
        return _trace_with_findings(evaluate, slots, signature, tensors, Dependent)


def _trace_with_findings(
    evaluate: Evaluate, slots: ParameterSlots, signature: Signature, tensors: Sequence[Tensor], finds: _Finds
) -> TracedEvaluation:
    asked = slots.gradient_flags()
    held = slots.holding(_detached_leaves(slots.tensors(), asked))  # kernels are built for what is asked alone
    with held, slots.unwritten(), reading(slots.modules, kept=True) as ahead, executed_code() as codes:
        example = _run_example(evaluate, signature, tensors, finds)
    reach = Reach(codes, slots.modules)
    for kind in {type(x) for x, _ in objects_with_dicts(*signature.arguments(tensors))} - {dict}:
        reach.add(f"the class {kind.__name__} of an argument", kind)
    ahead.follow(reach, slots.modules)
    seen: dict[str, Any] = {}

    def call_with_findings(parameters: list[Tensor], given: list[Tensor], found: list[list[Tensor]]) -> list[Tensor]:
        args, options = signature.arguments(_detached_leaves(given, [x.requires_grad for x in tensors]))
        held = slots.holding(_detached_leaves(parameters, asked))
        program = Recording(dict(zip(names, found, strict=True)), findings)
        with held, recording(program), finds(program), reading(slots.modules) as seen["reads"], torch.enable_grad():
            leaves, seen["spec"] = flatten(evaluate(*args, **options))
        seen["constants"] = leaf_constants(leaves)
        made = [x.detach() for x in leaves if isinstance(x, Tensor)]
        there = [name for name in names if name in program.sources]
        asked_of = [(findings[name].wrong, program.given[name], program.sources[name]) for name in there]
        made += [wrong(known, *sources) for wrong, known, sources in asked_of if wrong]
        seen["results"], seen["counts"] = len(made), {name: len(program.sources[name]) for name in there}
        return [*made, *(x for name in there for x in program.sources[name])]

    findings, known = example
    names = list(known)  # in the order of the call: one may be found from another
    inputs = _fake_inputs([x.detach() for x in slots.tensors()], list(tensors), list(known.values()))
    with torch.no_grad(), open_lengths(list(codes.items())):
        graph = traced(call_with_findings, inputs)
    simplify_graph(graph.graph)
    if finds is nullcontext and any(map(_has_size_of_numbers, graph.graph.nodes)):
        raise _SizeOfNumbersError
    _clone_input_views(graph.graph, seen["results"])
    inputs = _drop_unused_findings(graph.graph, inputs, [name in seen["counts"] for name in names])
    searches, begin = {}, seen["results"]
    for name, count in seen["counts"].items():
        few = _shorten_group_sources(graph.graph, begin, count) if name == "groups" else count
        first, sources = (_subgraph(graph, begin, begin + n) for n in (1, few))
        if findings[name].fixed and any(n >= len(slots.tensors()) for n in sources.takes):
            raise DeployError(ASKS_FOR_NUMBER.format(line=findings[name].line))
        searches[name] = Search(findings[name], first, sources)
        begin += few
    gpu = on_gpu((*slots.tensors(), *tensors))
    padding = EdgePadding.of(signature, inputs[1], _result_values(graph.graph, seen["results"])) if gpu else None
    rewrite(graph.graph, gpu)
    ahead.settle_objects(reach)
    seen["reads"].follow(reach, slots.modules)
    _need_parameters(seen["reads"].tensors() if slots.gradients else ())
    seen["reads"].keep(graph)
    if gpu:  # a CUDA graph records no copies from a CPU
        fold_constants(graph)
    program, sizes = _subgraph(graph, 0, seen["results"]), InputSizes.of(pytree.tree_leaves(inputs))
    return TracedEvaluation(program, sizes, seen["reads"], searches, seen["spec"], seen["constants"], padding)


class _SizeOfNumbersError(Exception):
    """A trace took a size from numbers, which Inductor may refuse."""


def _has_size_of_numbers(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and bool(free_unbacked_symbols(value))


def _result_values(graph: fx.Graph, count: int) -> list[Tensor]:
    output: Any = graph.output_node()
    return [x.meta["val"] for x in output.args[0][:count]]


def _need_parameters(tensors: Sequence[tuple[str, Tensor]]) -> None:
    for name, x in tensors:
        if x.requires_grad:
            raise InputError(
                f"{name} requires a gradient and is no parameter of the network: register it as one, or detach it"
            )


def _fake_inputs(parameters: list[Tensor], tensors: list[Tensor], found: list[list[Tensor]]) -> tuple[Any, Any, Any]:
    # stand-ins of tensors, contiguous and without numbers: sizes of parameters are known, others from 2 on open
    mode = fake_mode(duck_shape=False)

    def with_open_sizes(x: Tensor, name: str) -> Tensor:
        sizes: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * x.dim())
        return mode.from_tensor(x.detach().contiguous(), symbolic_context=sizes, source=ConstantSource(name))

    known = [mode.from_tensor(x.contiguous(), static_shapes=True) for x in parameters]
    given = [with_open_sizes(x, f"given{n}") for n, x in enumerate(tensors)]
    return known, given, [[with_open_sizes(x, f"found{m}_{n}") for n, x in enumerate(of)] for m, of in enumerate(found)]


def _drop_unused_findings(graph: fx.Graph, inputs: tuple[Any, Any, Any], used: Sequence[bool]) -> tuple[Any, Any, Any]:
    # inputs less those that only the example's call asked for, and which nothing reads
    known, given, found = inputs
    begin, placeholders = len(known) + len(given), graph.find_nodes(op="placeholder")
    asked = [yes for yes, of in zip(used, found, strict=True) for _ in of]
    for node, yes in zip(list(placeholders)[begin:], asked, strict=True):
        if not yes:
            graph.erase_node(node)
    return known, given, [of for yes, of in zip(used, found, strict=True) if yes]


def _run_example(
    evaluate: Evaluate, signature: Signature, tensors: Sequence[Tensor], finds: _Finds
) -> tuple[dict[str, Finding], dict[str, list[Tensor]]]:
    # evaluate once, as what is written at a first call must not be traced; findings, and those of this call
    args, options = signature.arguments(_detached_leaves(tensors, [x.requires_grad for x in tensors]))
    with recording(Recording({})) as program, finds(program), torch.enable_grad():
        evaluate(*args, **options)
    found = {name: program.findings[name].find(*(x.detach() for x in of)) for name, of in program.sources.items()}
    return program.findings, {name: tensors for name, tensors in found.items() if tensors is not None}


def _detached_leaves(tensors: Sequence[Tensor], asked: Sequence[bool]) -> list[Tensor]:
    return [x.detach().requires_grad_(yes) for x, yes in zip(tensors, asked, strict=True)]


def _clone_input_views(graph: fx.Graph, count: int) -> None:
    # copy results that are views of inputs, as positions without a strain would be: results are values
    output: Any = graph.output_node()
    results = list(output.args[0])
    for n, root in enumerate(results[:count]):
        while root.op == "call_function" and aliases(root):
            root = root.args[0]
        if root.op == "placeholder":
            with graph.inserting_before(output):
                copied = graph.call_function(torch.ops.aten.clone.default, (results[n],))
            copied.meta["val"] = results[n].meta["val"]
            results[n] = copied
    output.args = (results,)


def _shorten_group_sources(graph: fx.Graph, begin: int, count: int) -> int:
    """Drop sources that species determine; return how many stay."""
    output: Any = graph.output_node()
    if count != 3:
        return count
    results = list(output.args[0])
    rows, table, numbers = results[begin : begin + 3]
    if rows.target is not torch.ops.aten.embedding.default or rows.args != (table, numbers):
        return count
    results[begin : begin + 3] = [numbers]
    output.args = (results,)
    return 1


def _subgraph(graph: fx.GraphModule, begin: int, end: int | None) -> GraphPart:
    made = fx.Graph()
    copied: Any = made.graph_copy(graph.graph, {})
    made.output(copied[begin:end])
    for node in made.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        node.replace_all_uses_with(node.args[0])
    made.eliminate_dead_code()
    cse(made, graph)
    placeholders = list(made.find_nodes(op="placeholder"))
    takes = tuple(n for n, x in enumerate(placeholders) if x.users)
    for x in placeholders:
        if not x.users:
            made.erase_node(x)
    for n, x in enumerate(made.find_nodes(op="placeholder")):
        x.target = x.name = f"input_{n}"  # the same in a process that has others beside them
    return GraphPart(fx.GraphModule(graph, made), takes)  # with the constants of the graph
