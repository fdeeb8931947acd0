"""Compiled programs, cached as libraries."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, pairwise, starmap
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.base._torch import has_tangents, is_functorch_wrapped_tensor, is_tracing
from tpgen.base.errors import DeployError, KernelError, TpgenError, first_line
from tpgen.base.locks import ForkedLock, cached_property
from tpgen.kernels.runtime.failures import failures_seen
from tpgen.networks.dependent import user_line_of_error
from tpgen.networks.draws import set_generator
from tpgen.networks.libraries import Library, RunLibrary, library_of
from tpgen.networks.neutral_edges import EdgePadding
from tpgen.networks.replays import CudaGraphs, ReplayedRun, on_gpu
from tpgen.networks.results import are_equal_results, memory_address
from tpgen.networks.signature import ParameterSlots, Signature, tensors_by_name
from tpgen.networks.sizes import InputSizes
from tpgen.networks.stages import GraphPart
from tpgen.networks.step_trace import Evaluate, TracedEvaluation, trace_evaluation

WRITING = ForkedLock(RLock)  # while a network is written down, other tensors stand in the places of its own

_Compiled = tuple[RunLibrary, "GradientPrograms | None", InputSizes]  # and conditions on inputs
DOES_NOT_COMPILE = "which does not compile"
_AUTOCASTS = ("cpu", "cuda")


class ProgramRun(NamedTuple):
    """Inputs of a program, findings included, outputs, and the state of torch's generator before a call that draws."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    generator: Tensor | None = None


@dataclass(frozen=True, eq=False)
class GradientPrograms:
    """Compiled stages of gradients; tensors have the numbers of `GradientStage`."""

    written: TracedEvaluation
    functions: tuple[RunLibrary, ...]
    cotangents: tuple[range, ...]  # of each stage

    def kept(self, ran: ProgramRun, before: dict[int, Tensor]) -> dict[int, Tensor]:
        """Select what stages need of a run."""
        slopes = range(len(ran.inputs), self.written.saves.start)
        known = [*ran.inputs, *(None for _ in slopes), *self.written.saved(ran.outputs)]
        needed = {n: x for n in self._numbers_of_needed_tensors if (x := known[n]) is not None}
        return needed | {n: x for n, x in before.items() if n in needed}

    @cached_property
    def _numbers_of_needed_tensors(self) -> list[int]:
        needed = {n for stage in self.written.stages for n in stage.graph.takes}
        return sorted(n for n in needed if n < self.written.saves.stop)

    def run(self, stage: int, known: dict[int, Tensor]) -> list[Tensor] | None:
        """Gradients and saved tensors of a stage; None if the function raises."""
        try:
            return self.functions[stage]([known[n] for n in self.written.stages[stage].graph.takes])
        except RuntimeError:
            return None

    def run_all(self, ran: ProgramRun, cotangents: Sequence[Sequence[Tensor]]) -> None:
        """Run all stages behind a run."""
        known = self.kept(ran, {})
        for n, of in enumerate(self.written.stages):
            known |= dict(zip(self.cotangents[n], cotangents[n], strict=True))
            made = self.run(n, known)
            if made is None:
                return
            known |= dict(zip(of.saves, made[len(of.places) :], strict=True))


@dataclass(frozen=True, eq=False)
class Program:
    """Compiled evaluation of a network, with conditions on network and inputs."""

    title: str
    evaluate: Evaluate
    signature: Signature
    slots: ParameterSlots
    written: TracedEvaluation
    before: InputSizes  # of parameters and tensors
    behind: InputSizes  # of tensors and findings
    function: RunLibrary
    gradients: GradientPrograms | None = None
    others: dict[tuple, Program | None] = field(default_factory=dict)  # where other inputs require gradients

    @staticmethod
    def build_from_example(
        title: str,
        evaluate: Evaluate,
        slots: ParameterSlots,
        signature: Signature,
        tensors: Sequence[Tensor],
        cotangents: Sequence[Sequence[Tensor]] = (),
    ) -> Program:
        """Build the program of an evaluation from example ``tensors``; errors mention ``title``."""
        while True:
            failures = failures_seen()
            try:
                with torch.random.fork_rng(devices=[]):
                    return Program._trace_and_compile(title, evaluate, slots, signature, tensors, cotangents)
            except KernelError:
                if failures == failures_seen():
                    raise

    @staticmethod
    def _trace_and_compile(
        title: str,
        evaluate: Evaluate,
        slots: ParameterSlots,
        signature: Signature,
        tensors: Sequence[Tensor],
        cotangents: Sequence[Sequence[Tensor]],
    ) -> Program:
        try:
            with WRITING.lock, _without_autocast((*slots.tensors(), *tensors)):
                written = trace_evaluation(evaluate, slots, signature, tensors, cotangents)
        except TpgenError:
            raise
        except Exception as error:
            raise DeployError(
                f"{title} cannot be written as one program: {first_line(error)}{user_line_of_error(error)}; take what "
                "depends on values out of forward, or use the network as it is"
            ) from error
        parameters = slots.tensors()
        inputs = written.complete([x.detach().contiguous() for x in (*parameters, *tensors)])
        assert inputs is not None, "the program holds for its example"
        known = written.sizes.part(0, len(inputs))
        make = partial(_make_gpu_function_with_replays, len(parameters)) if on_gpu(inputs) else library_of

        def compile_all() -> _Compiled:
            held = _compile_gradient_stages(written, inputs, cotangents) if written.stages else (None, known)
            function, of_all = make(written.program, held[1], inputs)
            return function, held[0], of_all

        function, gradients, sizes = _compiled_or_none(title, compile_all, known)
        before, behind = sizes.part(0, len(parameters) + len(tensors)), sizes.part(len(parameters), None)
        program = Program(title, evaluate, signature, slots, written, before, behind, function, gradients)
        if written.padding is not None and not program._is_padding_neutral(written.padding, list(tensors)):
            written.padding = None
        return program

    @property
    def serves(self) -> bool:
        """Whether the program was compiled."""
        return self.function is not _serve_no_call

    def is_unchanged(self) -> bool:
        """Whether the network is unchanged, except values of parameters and buffers."""
        with WRITING.lock:
            return self.written.reads.is_unchanged() and self.slots.is_unchanged()

    def why_not(self, tensors: list[Tensor]) -> str:
        """Condition of the program that a call breaks, as text; empty for others than sizes and dtypes."""
        known = {n: name for name, n in tensors_by_name(self.signature).items()}
        names = [known.get(n, f"tensor {n}") for n in range(len(tensors))]
        inputs = self._parameters_and_tensors(tensors)
        if len(inputs) != len(self.before.shapes):  # a tensor is given twice
            return ""
        return self.before.first_broken(inputs, [*self.slots.names, *names])

    def run(self, signature: Signature, tensors: list[Tensor], recorded: bool) -> Any:
        """Result of a call; None if the program does not fit, or for a ``recorded`` call."""
        signature, tensors = signature.in_order(tensors, self.signature)
        signature.need(self.signature)
        if recorded:
            return None
        if signature.beside != self.signature.beside:
            other = (
                self._program_for_gradients(signature, tensors)
                if self._can_take_inputs(self._parameters_and_tensors(tensors))
                else None
            )
            return None if other is None else other.run(signature, tensors, recorded)
        ran = self.run_call(tensors)
        if ran is None:
            return None
        self.write_updates(ran, tensors)
        return self.written.results(ran.outputs)

    def write_updates(self, ran: ProgramRun, tensors: list[Tensor]) -> None:
        """Write into the network's buffers, and tensors of the call, what the network would."""
        if self.written.updates:
            inputs = self._parameters_and_tensors(tensors)
            for n, x in self.written.updated(ran.outputs).items():
                if n < len(inputs) - len(tensors):
                    inputs[n].data.copy_(x)  # a graph of an earlier call may hold the buffer
                else:
                    inputs[n].copy_(x)

    def run_tensors(self, tensors: list[Tensor]) -> list[Tensor] | None:
        """Result tensors of a call; None if the program does not fit."""
        ran = self.run_call(tensors)
        return None if ran is None else ran.outputs

    def run_call(self, tensors: list[Tensor]) -> ProgramRun | None:
        """Run the program for a call's tensors; None if the program does not fit."""
        padding = self.written.padding
        padded = None if padding is None else padding.add(tensors)
        if padding is None or padded is None:
            return self._run_and_confirm_findings(tensors)
        ran = self._run_and_confirm_findings(padded)
        return None if ran is None else ran._replace(outputs=padding.take_out(ran.outputs, tensors))

    def _is_padding_neutral(self, padding: EdgePadding, tensors: list[Tensor]) -> bool:
        padded = padding.doubled(tensors)
        if padded is None:
            return False
        with torch.no_grad():
            plain, ran = self._run_and_confirm_findings(tensors), self._run_and_confirm_findings(padded)
        if plain is None or ran is None:
            return False
        return are_equal_results(padding.take_out(ran.outputs, tensors), plain.outputs)

    def _run_and_confirm_findings(self, tensors: list[Tensor]) -> ProgramRun | None:
        inputs = self._parameters_and_tensors(tensors)
        if not self._can_take_inputs(inputs) or self._writes_into_shared_memory(inputs, len(tensors)):
            return None
        generator = torch.get_rng_state() if self.written.draws else None
        ran = self._complete_inputs_and_run_library(inputs, len(tensors), refresh=False)
        if ran is not None and not self.written.confirms_findings(ran.outputs):
            set_generator(generator)
            ran = self._complete_inputs_and_run_library(inputs, len(tensors), refresh=True)
        if ran is None:
            set_generator(generator)
            return None
        return ran._replace(generator=generator)

    def _parameters_and_tensors(self, tensors: list[Tensor]) -> list[Tensor]:
        with WRITING.lock:
            return [*self.slots.tensors(), *tensors]

    def _can_take_inputs(self, inputs: list[Tensor]) -> bool:
        return not any(map(torch.is_autocast_enabled, _AUTOCASTS)) and self.before.hold(inputs)

    def _writes_into_shared_memory(self, inputs: list[Tensor], count: int) -> bool:
        written = [n for n in self.written.updates if n >= len(inputs) - count]
        places = Counter(map(memory_address, inputs)) if written else {}
        return any(places[memory_address(inputs[n])] > 1 for n in written)

    def _program_for_gradients(self, signature: Signature, tensors: Sequence[Tensor]) -> Program | None:
        if any(x.grad_fn is not None for x in tensors) or not signature.asks_otherwise(self.signature):
            return None
        with WRITING.lock:
            found = self.others.get(signature.beside)
            if signature.beside not in self.others or not (found is None or found.is_unchanged()):
                try:
                    found = Program.build_from_example(self.title, self.evaluate, self.slots, signature, tensors)
                except DeployError:
                    found = None
                self.others[signature.beside] = found
            return found

    def _complete_inputs_and_run_library(self, inputs: list[Tensor], count: int, refresh: bool) -> ProgramRun | None:
        complete = self.written.complete(inputs, refresh)
        if complete is None or not self.behind.hold(complete[len(inputs) - count :]):
            return None
        given = self.written.program.given(complete)
        try:
            made = self.function(given)
        except RuntimeError:  # of an index out of range, say: what the network says of the call is said by itself
            return None
        return None if made is None else ProgramRun(complete, made)


@contextmanager
def _without_autocast(tensors: Sequence[Tensor]) -> Iterator[None]:
    with ExitStack() as stack:
        for device in {"cpu", *(x.device.type for x in tensors)}:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def is_followed_by_transforms(tensors: Iterable[Tensor]) -> bool:
    """Whether `torch.func`, forward mode or a tracer follows operations on tensors."""
    return is_tracing() or has_tangents() or any(map(is_functorch_wrapped_tensor, tensors))


def is_recorded(tensors: Sequence[Tensor]) -> bool:
    """Whether autograd, `torch.func`, forward mode or a tracer records operations on tensors."""
    return is_followed_by_transforms(tensors) or (
        torch.is_grad_enabled() and any(x.grad_fn is not None for x in tensors)
    )


class BuiltOnce:
    """Base of callables whose first call builds a program."""

    _program: Any = None
    _of_program: tuple[str, ...] = ("_program",)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self._of_program}

    def build(self, *args: Any, **options: Any) -> None:
        """Build the program for calls like an example."""
        raise NotImplementedError

    def _is_current(self) -> bool:
        return self._program is not None and self._program.is_unchanged()

    def _build_or_reuse_program(self, *args: Any, **options: Any) -> Program:
        if not self._is_current():
            with WRITING.lock:  # of several threads, one builds it
                if not self._is_current():
                    self.build(*args, **options)
        assert self._program is not None
        return self._program


# -- compiled stages ---------------------------------------------------------------------------------------------------


def _compiled_or_none(title: str, make: Callable[[], _Compiled], sizes: InputSizes) -> _Compiled:
    try:
        with torch.autocast("cpu", enabled=False):
            return make()
    except TpgenError:  # of a kernel: the program is written again without it, or refused
        raise
    except Exception as error:
        warnings.warn(
            f"{title} was written as one program, {DOES_NOT_COMPILE} ({type(error).__name__}: {first_line(error)}): "
            "the network itself serves all calls",
            stacklevel=2,
        )
    return _serve_no_call, None, sizes


def _compile_gradient_stages(
    written: TracedEvaluation, inputs: list[Tensor], cotangents: Sequence[Sequence[Tensor]]
) -> tuple[GradientPrograms, InputSizes]:
    # and conditions on inputs, which hold for all stages
    known, sizes, functions = [*inputs, *chain.from_iterable(cotangents)], written.sizes, []
    saved = written.saved(written.program.of(inputs))
    for stage in written.stages:
        made = stage.graph.of([*known, *saved])  # before the compiler changes the graph
        function, sizes = library_of(stage.graph, sizes, known, saved)
        functions.append(function)
        saved = [*saved, *made[len(stage.places) :]]
    held, found = sizes.part(0, len(inputs)), {*sizes.conditions} - {*written.sizes.conditions}
    if not found <= {*held.conditions}:
        raise DeployError("its gradients depend on sizes of cotangents")
    ends = list(accumulate(map(len, cotangents), initial=len(inputs)))
    return GradientPrograms(written, tuple(functions), tuple(starmap(range, pairwise(ends)))), held


def _serve_no_call(_given: list[Tensor]) -> None:
    return None


def _make_gpu_function_with_replays(
    parameters: int, program: GraphPart, sizes: InputSizes, inputs: list[Tensor]
) -> Library:
    device, *others = {x.device for x in program.given(inputs)}

    def run_graph_on_contiguous(*given: Tensor) -> list[Tensor]:
        return program.graph.forward(*(x.contiguous() for x in given))

    if others or device.type != "cuda":  # a recording would keep the numbers of tensors on a CPU
        return (lambda given: run_graph_on_contiguous(*given)), sizes
    replayed = ReplayedRun(run_graph_on_contiguous, sum(n < parameters for n in program.takes), CudaGraphs(device))

    def run_or_replay(given: list[Tensor]) -> list[Tensor]:
        plain = torch.is_inference_mode_enabled() or torch.cuda.is_current_stream_capturing()
        return run_graph_on_contiguous(*given) if plain else replayed(given)

    return run_or_replay, sizes
