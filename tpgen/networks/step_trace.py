"""Trace a network's evaluation into a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext, free_unbacked_symbols

from tpgen.base._torch import ConstantSource, pytree
from tpgen.base.errors import DeployError, InputError, TpgenError
from tpgen.networks.array_findings import NumpyResultMode
from tpgen.networks.arrays import OTHER_NUMBERS, record_lines_that_call_numpy, refuse_traced_arrays_in_attributes
from tpgen.networks.dependent import ASKS_FOR_NUMBER, explain_data_dependent_errors
from tpgen.networks.draws import DRAWS_UNFOLLOWED, kept_generators, python_and_numpy_random_states
from tpgen.networks.functional import make_fake_mode, trace_without_writes
from tpgen.networks.gathered_products import multiply_before_gathers
from tpgen.networks.lengths import open_lengths
from tpgen.networks.neutral_edges import EdgePadding
from tpgen.networks.objects import objects_with_dicts
from tpgen.networks.reach import ReachableState, record_executed_code
from tpgen.networks.reads import Reads, reading
from tpgen.networks.recording import ComputedInput, Recording, recording
from tpgen.networks.replays import on_gpu
from tpgen.networks.results import are_equal_results, flatten, leaf_constants, unflatten
from tpgen.networks.signature import ParameterSlots, Signature
from tpgen.networks.simplify import (
    expand_library_calls,
    fold_constants,
    read_sizes_of_inputs,
    simplify_graph,
)
from tpgen.networks.sizes import InputSizes
from tpgen.networks.stages import (
    GradientStage,
    GraphPart,
    clone_results_that_view_inputs,
    drop_group_sources_known_by_species,
    returned_nodes,
    split,
    subgraph,
)
from tpgen.networks.user_functions import FunctionNotedError, UserFunctions
from tpgen.nn.plain_tensors import count_writes

_Finds = Callable[[Recording], AbstractContextManager[Any]]  # of operations that a program takes for findings
_BY_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_SEED = 2_718_281_828
Evaluate = Callable[..., Any]  # from the arguments of a call to results, of which tensors are those of the program


@dataclass(eq=False)
class _SourcedInput:
    """`ComputedInput` with graphs of the source tensors, and the last value."""

    finding: ComputedInput
    first: GraphPart
    sources: GraphPart
    last: tuple[Tensor, list[Tensor]] | None = None

    def compute_or_reuse(self, inputs: list[Tensor], refresh: bool) -> list[Tensor] | None:
        """Compute from program ``inputs``; without ``refresh``, reuse the last value for an equal first source."""
        if self.finding.mismatch is None:
            return self.finding.compute(*self.sources.of(inputs))
        (first,), last = self.first.of(inputs), self.last
        if last and not refresh and first.dtype == last[0].dtype and first.is_cpu and torch.equal(first, last[0]):
            return last[1]
        found = self.finding.compute(*self.sources.of(inputs))
        self.last = None if found is None else (first.clone(), found)
        return found


@dataclass
class TracedEvaluation:
    """A traced evaluation: program, input conditions, reads, computed inputs, result structure."""

    program: GraphPart
    sizes: InputSizes  # of parameters, tensors, findings and cotangents
    reads: Reads
    searches: dict[str, _SourcedInput]
    result: pytree.TreeSpec
    constants: dict[int, Any] = field(default_factory=dict)  # leaves of the result that are no tensors
    padding: EdgePadding | None = None  # on a GPU
    saves: range = range(0)  # numbers of the outputs behind the results
    stages: tuple[GradientStage, ...] = ()
    updates: tuple[int, ...] = ()  # inputs that the network writes into: buffers, and tensors of a call

    def complete(self, inputs: list[Tensor], refresh: bool = True) -> list[Tensor] | None:
        """Append computed inputs, or, without ``refresh``, reused ones; None if one fails."""
        for search in self.searches.values():
            found = search.compute_or_reuse(inputs, refresh)
            if found is None:
                return None
            inputs = inputs + found
        return inputs

    def saved(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Select the outputs that gradient stages take."""
        begin = self.result.num_leaves - len(self.constants)
        return list(outputs[begin : begin + len(self.saves)])

    @property
    def draws(self) -> bool:
        """Whether calls draw random numbers."""
        return any(search.finding.is_drawn for search in self.searches.values())

    def confirms_findings(self, outputs: Sequence[Tensor]) -> bool:
        """Whether the program's outputs confirm all reused computed inputs."""
        return all(float(x) <= 0 for x in outputs[len(outputs) - self._count_checks_of_findings :])

    def updated(self, outputs: Sequence[Tensor]) -> dict[int, Tensor]:
        """New values of written inputs, by number."""
        end = len(outputs) - self._count_checks_of_findings
        return dict(zip(self.updates, outputs[end - len(self.updates) : end], strict=True))

    @property
    def _count_checks_of_findings(self) -> int:
        return sum(search.finding.mismatch is not None for search in self.searches.values())

    def leaves(self, outputs: Sequence[Tensor]) -> list[Any]:
        """Leaves of the network's result: the program's tensors, and constants."""
        rest = iter(outputs)
        return [self.constants[n] if n in self.constants else next(rest) for n in range(self.result.num_leaves)]

    def results(self, outputs: Sequence[Tensor]) -> Any:
        """Rebuild the network's result from outputs."""
        return unflatten(self.leaves(outputs), self.result)


@explain_data_dependent_errors()
def trace_evaluation(
    evaluate: Evaluate,
    slots: ParameterSlots,
    signature: Signature,
    tensors: Sequence[Tensor],
    cotangents: Sequence[Sequence[Tensor]] = (),
) -> TracedEvaluation:
    """Trace an evaluation into a program of parameters and example tensors.

    With ``cotangents`` of stages, ``evaluate`` takes these before its arguments, and returns results and the gradients
    of each stage.
    """
    functions = UserFunctions()
    trace = partial(_trace_with_computed_inputs, evaluate, slots, signature, tensors, cotangents, functions)
    try:
        return trace(nullcontext)
    except TpgenError:
        raise
    except Exception:  # torch knows no sizes that depend on numbers, or no conditions on such
        while True:
            try:
                return trace(partial(NumpyResultMode, functions))
            except FunctionNotedError:
                pass


def _trace_with_computed_inputs(
    evaluate: Evaluate,
    slots: ParameterSlots,
    signature: Signature,
    tensors: Sequence[Tensor],
    cotangents: Sequence[Sequence[Tensor]],
    functions: UserFunctions,
    make_mode: _Finds,
) -> TracedEvaluation:
    call = _CallToTrace(evaluate, slots, signature, [x.requires_grad for x in tensors], make_mode)
    numbers = torch.default_generator.manual_seed(_SEED).get_state()  # which a network that seeds itself does not leave
    with kept_generators():
        others = python_and_numpy_random_states()
        call.run_and_record_example(tensors, cotangents)
        if python_and_numpy_random_states() != others:
            raise DeployError(DRAWS_UNFOLLOWED)
    leaves = [x.nan_to_num() if isinstance(x, Tensor) else x for x in call.leaves]
    functions.results = functions.results or leaves
    if functions.have_arrays and not are_equal_results(functions.results, leaves):
        raise DeployError(OTHER_NUMBERS)
    if make_mode is nullcontext and not torch.equal(numbers, torch.get_rng_state()):
        raise _RandomNumbersError
    inputs = _FakeInputs.from_tensors(slots.tensors(), tensors, list(call.known.values()), cotangents)
    with (
        torch.no_grad(),
        open_lengths([x for x in call.codes.items() if x[0] not in functions.whole]),
        record_lines_that_call_numpy() as lines,
    ):
        graph = trace_without_writes(lambda *given: call.compute_outputs(*given), inputs)
    if make_mode is nullcontext and lines:
        raise _ArraysError
    read_sizes_of_inputs(graph.graph, len(graph.graph.find_nodes(op="placeholder")) - sum(map(len, cotangents)))
    simplify_graph(graph.graph)
    # a number may be a cotangent's size
    if any(map(_draws_numbers, graph.graph.nodes)):
        raise DeployError(DRAWS_UNFOLLOWED)
    by_values = _reads_number_from_tensor if cotangents else _has_size_read_from_numbers
    if make_mode is nullcontext and any(map(by_values, graph.graph.nodes)):
        raise _SizeOfNumbersError
    clone_results_that_view_inputs(graph.graph, call.results)
    inputs = inputs.without_unused_computed_inputs(graph.graph, [name in call.counts for name in call.known])
    searches, gpu = call.make_sourced_inputs(graph), on_gpu((*slots.tensors(), *tensors))
    results = [x.meta["val"] for x in returned_nodes(graph)[: call.results]]
    padding = EdgePadding.read_from_trace(signature, inputs.given, results) if gpu else None
    if not gpu:
        multiply_before_gathers(graph.graph)
    expand_library_calls(graph.graph, gpu)
    call.record_values_to_watch(graph)
    if gpu:  # a CUDA graph records no copies from a CPU
        fold_constants(graph)
    parts = split(graph, call.spec, call.constants, call.results, list(map(len, cotangents)))
    sizes, count = InputSizes.read_from_trace(pytree.tree_leaves(inputs)), len(inputs.parameters)
    return TracedEvaluation(
        *(parts.program, sizes, call.reads, searches, parts.result, parts.constants, padding, parts.saves),
        stages=parts.stages,
        updates=(*call.written, *(count + n for n in call.written_tensors)),
    )


@dataclass
class _CallToTrace:
    evaluate: Evaluate
    slots: ParameterSlots
    signature: Signature
    asks: list[bool]  # whether tensors of the call require gradients
    finds: _Finds
    # of the example
    findings: dict[str, ComputedInput] = field(default_factory=dict)
    known: dict[str, list[Tensor]] = field(default_factory=dict)  # in the order of the call: one may need another
    leaves: list[Any] = field(default_factory=list)
    written: Sequence[int] = ()  # buffers
    written_tensors: Sequence[int] = ()  # of the call
    codes: Any = None
    ahead: Reads = field(default_factory=Reads)
    reach: Any = None
    # of the trace
    spec: Any = None
    constants: dict[int, Any] = field(default_factory=dict)
    results: int = 0
    counts: dict[str, int] = field(default_factory=dict)  # of sources of each finding
    reads: Reads = field(default_factory=Reads)

    def run_and_record_example(self, tensors: Sequence[Tensor], cotangents: Sequence[Sequence[Tensor]]) -> None:
        slots, signature = self.slots, self.signature
        own = _detach_with_gradient_flags([x.detach().clone() for x in tensors], self.asks)
        versions = list(map(count_writes, own))
        # kernels are built for these
        held = slots.holding(_detach_with_gradient_flags(slots.tensors(), slots.gradient_flags()))
        evaluate = partial(self.evaluate, cotangents) if cotangents else self.evaluate
        with (
            held,
            slots.restored() as self.written,
            reading(slots.modules, kept=True) as self.ahead,
            record_executed_code() as self.codes,
        ):
            self.findings, self.known, self.leaves = _run_for_computed_inputs(evaluate, signature, own, self.finds)
        pairs = zip(own, versions, tensors, strict=True)
        self.written_tensors = [n for n, of in enumerate(pairs) if _is_written_to(*of)]
        if any(own[n].requires_grad for n in self.written_tensors):
            raise DeployError("the network writes numbers that have a gradient into a tensor that it is given")
        if self.written_tensors and on_gpu(tensors):
            raise DeployError("the network writes into a tensor that it is given")
        refuse_traced_arrays_in_attributes(slots.modules)
        self.reach = ReachableState(self.codes, slots.modules)
        for kind in {type(x) for x, _ in objects_with_dicts(*signature.arguments(tensors))} - {dict}:
            self.reach.record_reachable_from(f"the class {kind.__name__} of an argument", kind)
        self.ahead.watch_reachable_values(self.reach, slots.modules)

    def compute_outputs(
        self,
        parameters: list[Tensor],
        tensors: list[Tensor],
        computed_inputs: list[list[Tensor]],
        cotangents: list[list[Tensor]],
    ) -> list[Tensor]:
        slots, findings = self.slots, self.findings
        tensors = [x.clone() if n in self.written_tensors else x for n, x in enumerate(tensors)]
        given = _detach_with_gradient_flags(tensors, self.asks)
        args, options = self.signature.arguments(given)
        parameters = [x.clone() if n in self.written else x for n, x in enumerate(parameters)]
        held = slots.holding(_detach_with_gradient_flags(parameters, slots.gradient_flags()))
        program = Recording(dict(zip(self.known, computed_inputs, strict=True)), findings)
        with held, recording(program), self.finds(program), reading(slots.modules) as self.reads, torch.enable_grad():
            leaves, self.spec = flatten(self.evaluate(*([cotangents] if cotangents else ()), *args, **options))
            updates = [x.detach() for n, x in enumerate(slots.tensors()) if n in self.written]
            updates += [given[n].detach() for n in self.written_tensors]
        self.constants = leaf_constants(leaves)
        made = [*(x.detach() for x in leaves if isinstance(x, Tensor)), *updates]
        there = [name for name in self.known if name in program.sources]
        asked_of = [(findings[name].mismatch, program.given[name], program.sources[name]) for name in there]
        made += [wrong(known, *sources) for wrong, known, sources in asked_of if wrong]
        self.results, self.counts = len(made), {name: len(program.sources[name]) for name in there}
        return [*made, *(x for name in there for x in program.sources[name])]

    def make_sourced_inputs(self, graph: fx.GraphModule) -> dict[str, _SourcedInput]:
        found, begin = {}, self.results
        for name, count in self.counts.items():
            few = drop_group_sources_known_by_species(graph.graph, begin, count) if name == "groups" else count
            outputs = returned_nodes(graph)
            first, sources = (subgraph(graph, outputs[begin : begin + n]) for n in (1, few))
            if self.findings[name].fixed and any(n >= len(self.slots.tensors()) for n in sources.takes):
                raise DeployError(ASKS_FOR_NUMBER.format(line=self.findings[name].line))
            found[name] = _SourcedInput(self.findings[name], first, sources)
            begin += few
        return found

    def record_values_to_watch(self, graph: fx.GraphModule) -> None:
        self.ahead.drop_objects_changed_by_hooks(self.reach)
        self.reads.watch_reachable_values(self.reach, self.slots.modules)
        refuse_tensors_that_require_grad(self.reads.tensors() if self.slots.gradients else ())
        self.reads.watch_graph_constants(graph)


class _SizeOfNumbersError(Exception):
    """A trace took a size from numbers, which Inductor may refuse."""


class _ArraysError(Exception):
    """A trace met arrays of numpy, of which the network may catch the error."""


class _RandomNumbersError(Exception):
    """An example drew random numbers, which a program takes as findings."""


def _has_size_read_from_numbers(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and bool(free_unbacked_symbols(value))


def _reads_number_from_tensor(node: fx.Node) -> bool:
    return not _BY_VALUES.isdisjoint(getattr(node.target, "tags", ()))


def _draws_numbers(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def refuse_tensors_that_require_grad(tensors: Sequence[tuple[str, Tensor]]) -> None:
    """Raise `InputError` if a tensor requires a gradient."""
    for name, x in tensors:
        if x.requires_grad:
            raise InputError(
                f"{name} requires a gradient and is no parameter of the network: register it as one, or detach it"
            )


class _FakeInputs(NamedTuple):
    parameters: list[Tensor]
    given: list[Tensor]
    found: list[list[Tensor]]
    cotangents: list[list[Tensor]]

    @staticmethod
    def from_tensors(
        parameters: Sequence[Tensor],
        tensors: Sequence[Tensor],
        computed_inputs: Sequence[Sequence[Tensor]],
        cotangents: Sequence[Sequence[Tensor]],
    ) -> _FakeInputs:
        # contiguous and without numbers; sizes from 2 on are open, except those of parameters
        mode = make_fake_mode(duck_shape=False)

        def with_open_sizes(x: Tensor, name: str) -> Tensor:
            sizes: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * x.dim())
            return mode.from_tensor(x.detach().contiguous(), symbolic_context=sizes, source=ConstantSource(name))

        return _FakeInputs(
            [mode.from_tensor(x.detach().contiguous(), static_shapes=True) for x in parameters],
            [with_open_sizes(x, f"given{n}") for n, x in enumerate(tensors)],
            [[with_open_sizes(x, f"found{m}_{n}") for n, x in enumerate(of)] for m, of in enumerate(computed_inputs)],
            [[with_open_sizes(x, f"cotangent{m}_{n}") for n, x in enumerate(of)] for m, of in enumerate(cotangents)],
        )

    def without_unused_computed_inputs(self, graph: fx.Graph, are_used: Sequence[bool]) -> _FakeInputs:
        placeholders = iter(list(graph.find_nodes(op="placeholder"))[len(self.parameters) + len(self.given) :])
        for yes, of in zip(are_used, self.found, strict=True):
            for node in islice(placeholders, len(of)):
                if not yes:
                    graph.erase_node(node)
        return self._replace(found=[of for yes, of in zip(are_used, self.found, strict=True) if yes])


def _run_for_computed_inputs(
    evaluate: Evaluate, signature: Signature, tensors: Sequence[Tensor], make_mode: _Finds
) -> tuple[dict[str, ComputedInput], dict[str, list[Tensor]], list[Any]]:
    # evaluate once, as what is written at a first call must not be traced; findings, and those of this call
    args, options = signature.arguments(_detach_with_gradient_flags(tensors, [x.requires_grad for x in tensors]))
    with recording(Recording({})) as program, make_mode(program), torch.enable_grad():
        leaves = flatten(evaluate(*args, **options))[0]
    found = {name: program.findings[name].compute(*(x.detach() for x in of)) for name, of in program.sources.items()}
    known = {name: tensors for name, tensors in found.items() if tensors is not None}
    return program.findings, known, [x.detach() if isinstance(x, Tensor) else x for x in leaves]


def _detach_with_gradient_flags(tensors: Sequence[Tensor], asked: Sequence[bool]) -> list[Tensor]:
    return [x.detach().requires_grad_(yes) for x, yes in zip(tensors, asked, strict=True)]


def _is_written_to(copied: Tensor, version: int, original: Tensor) -> bool:
    return not torch.equal(copied, original) if version < 0 else count_writes(copied) != version
