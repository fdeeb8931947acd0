"""Compiled programs, cached as libraries."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any

import torch
from torch import Tensor, fx

from tpgen._version import __version__
from tpgen.base import _torch
from tpgen.base._torch import has_tangents, is_functorch_wrapped_tensor, is_tracing
from tpgen.base.errors import DeployError, KernelError, TpgenError
from tpgen.base.locks import ForkedLock
from tpgen.base.progress import announce
from tpgen.kernels.build import cache
from tpgen.kernels.build.compiler import need_compiler
from tpgen.kernels.build.processor import cpu_features
from tpgen.kernels.runtime.failures import failures_seen
from tpgen.networks.dependent import user_line
from tpgen.networks.edges import find_rows
from tpgen.networks.named import call_by_name
from tpgen.networks.neutral_edges import EdgePadding
from tpgen.networks.packages import conditions_of, write_traced
from tpgen.networks.products import products_by_kernels
from tpgen.networks.replays import CudaGraphs, ReplayedRun, on_gpu
from tpgen.networks.results import are_equal_results
from tpgen.networks.signature import ParameterSlots, Signature, tensors_by_name
from tpgen.networks.sizes import InputSizes
from tpgen.networks.step_trace import Evaluate, GraphPart, TracedEvaluation, trace_evaluation

WRITING = ForkedLock(RLock)  # while a network is written down, other tensors stand in the places of its own

_only_cached: ContextVar[bool] = ContextVar("programs are taken from the cache", default=False)

RunLibrary = Callable[[list[Tensor]], "list[Tensor] | None"]
_Function = tuple[RunLibrary, InputSizes]  # and the conditions on its inputs
_Make = Callable[[GraphPart, InputSizes, list[Tensor]], _Function]
_AUTOCASTS = ("cpu", "cuda")
# one file is compiled, for which headers are not worth to be compiled before; torch writes into what it is given
_OPTIONS = {
    "aot_inductor.precompile_headers": False,
    "aot_inductor.enable_line_tables": False,  # nobody steps through it
    "size_asserts": False,  # `Program` looks at sizes, and no operator of ours returns others than it says
    "realize_reads_threshold": 1,  # what several loops read is short: they read it rather than compute it again
    "cpp.vec_isa_ok": True,  # kernels have been compiled for this machine: no need to try its vectors again
}


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
    others: dict[tuple, Program | None] = field(default_factory=dict)  # where other inputs require gradients

    @staticmethod
    def of(
        title: str, evaluate: Evaluate, slots: ParameterSlots, signature: Signature, tensors: Sequence[Tensor]
    ) -> Program:
        """Build the program of an evaluation from example ``tensors``; errors mention ``title``."""
        while True:
            failures = failures_seen()
            try:
                return Program._trace_and_compile(title, evaluate, slots, signature, tensors)
            except KernelError:
                if failures == failures_seen():
                    raise

    @staticmethod
    def _trace_and_compile(
        title: str, evaluate: Evaluate, slots: ParameterSlots, signature: Signature, tensors: Sequence[Tensor]
    ) -> Program:
        try:
            with WRITING.lock, _without_autocast((*slots.tensors(), *tensors)):
                written = trace_evaluation(evaluate, slots, signature, tensors)
        except TpgenError:
            raise
        except Exception as error:
            why = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise DeployError(
                f"{title} cannot be written as one program: {why}{user_line(error)}; take what depends on values out "
                "of forward, or use the network as it is"
            ) from error
        parameters = slots.tensors()
        inputs = written.complete([x.detach().contiguous() for x in (*parameters, *tensors)])
        assert inputs is not None, "the program holds for its example"
        make = partial(_function_on_gpu, len(parameters)) if on_gpu(inputs) else library_of
        function, sizes = _function_or_fallback(title, make, written, inputs)
        before, behind = sizes.part(0, len(parameters) + len(tensors)), sizes.part(len(parameters), None)
        program = Program(title, evaluate, signature, slots, written, before, behind, function)
        if written.padding is not None and not program._has_neutral_edges(written.padding, list(tensors)):
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
        """Return a call's result; None if the program does not fit, or for a ``recorded`` call."""
        signature, tensors = signature.in_order(tensors, self.signature)
        signature.need(self.signature)
        if recorded:
            return None
        if signature.beside != self.signature.beside:
            other = (
                self._program_for_gradients(signature, tensors)
                if self._fits_inputs(self._parameters_and_tensors(tensors))
                else None
            )
            return None if other is None else other.run(signature, tensors, recorded)
        made = self.run_tensors(tensors)
        return None if made is None else self.written.results(made)

    def run_tensors(self, tensors: list[Tensor]) -> list[Tensor] | None:
        """Return a call's result tensors; None if the program does not fit."""
        padding = self.written.padding
        padded = None if padding is None else padding.add(tensors)
        if padding is None or padded is None:
            return self._run_once(tensors)
        made = self._run_once(padded)
        return None if made is None else padding.take_out(made, tensors)

    def _has_neutral_edges(self, padding: EdgePadding, tensors: list[Tensor]) -> bool:
        padded = padding.doubled(tensors)
        if padded is None:
            return False
        with torch.no_grad():
            plain, made = self._run_once(tensors), self._run_once(padded)
        return plain is not None and made is not None and are_equal_results(padding.take_out(made, tensors), plain)

    def _run_once(self, tensors: list[Tensor]) -> list[Tensor] | None:
        inputs = self._parameters_and_tensors(tensors)
        if not self._fits_inputs(inputs):
            return None
        made = self._run_library(inputs, len(tensors), refresh=False)
        if made is not None and not self.written.confirms_findings(made):
            made = self._run_library(inputs, len(tensors), refresh=True)
        return made

    def _parameters_and_tensors(self, tensors: list[Tensor]) -> list[Tensor]:
        with WRITING.lock:
            return [*self.slots.tensors(), *tensors]

    def _fits_inputs(self, inputs: list[Tensor]) -> bool:
        return not any(map(torch.is_autocast_enabled, _AUTOCASTS)) and self.before.hold(inputs)

    def _program_for_gradients(self, signature: Signature, tensors: Sequence[Tensor]) -> Program | None:
        if any(x.grad_fn is not None for x in tensors) or not signature.asks_otherwise(self.signature):
            return None
        with WRITING.lock:
            found = self.others.get(signature.beside)
            if signature.beside not in self.others or not (found is None or found.is_unchanged()):
                try:
                    found = Program.of(self.title, self.evaluate, self.slots, signature, tensors)
                except DeployError:
                    found = None
                self.others[signature.beside] = found
            return found

    def _run_library(self, inputs: list[Tensor], count: int, refresh: bool) -> list[Tensor] | None:
        complete = self.written.complete(inputs, refresh)
        if complete is None or not self.behind.hold(complete[len(inputs) - count :]):
            return None
        given = self.written.program.given(complete)
        try:
            return self.function(given)
        except RuntimeError:  # of an index out of range, say: what the network says of the call is said by itself
            return None


@contextmanager
def _without_autocast(tensors: Sequence[Tensor]) -> Iterator[None]:
    with ExitStack() as stack:
        for device in {"cpu", *(x.device.type for x in tensors)}:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def is_recorded(tensors: Iterable[Tensor]) -> bool:
    """Whether autograd, `torch.func`, forward mode or a tracer records operations on tensors."""
    if is_tracing() or has_tangents():
        return True
    asks = torch.is_grad_enabled()
    return any((asks and x.grad_fn is not None) or is_functorch_wrapped_tensor(x) for x in tensors)


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

    def _current_program(self, *args: Any, **options: Any) -> Program:
        if not self._is_current():
            with WRITING.lock:  # of several threads, one builds it
                if not self._is_current():
                    self.build(*args, **options)
        assert self._program is not None
        return self._program


@contextmanager
def only_cached() -> Iterator[None]:
    """Forbid compilation inside the block: uncached programs raise `DeployError`."""
    token = _only_cached.set(True)
    try:
        yield
    finally:
        _only_cached.reset(token)


# -- libraries ---------------------------------------------------------------------------------------------------------


def _function_or_fallback(title: str, make: _Make, written: TracedEvaluation, inputs: list[Tensor]) -> _Function:
    try:
        with torch.autocast("cpu", enabled=False):
            return make(written.program, written.sizes, inputs)
    except TpgenError:  # of a kernel: the program is written again without it, or refused
        raise
    except Exception as error:
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        warnings.warn(
            f"{title} was written as one program, which does not compile ({type(error).__name__}: {why}): the network "
            "itself serves all calls",
            stacklevel=2,
        )
    return _serve_no_call, written.sizes


def _serve_no_call(_given: list[Tensor]) -> None:
    return None


def _function_on_gpu(parameters: int, program: GraphPart, sizes: InputSizes, inputs: list[Tensor]) -> _Function:
    device, *others = {x.device for x in program.given(inputs)}

    def run(*given: Tensor) -> list[Tensor]:
        return program.graph.forward(*(x.contiguous() for x in given))

    if others or device.type != "cuda":  # a recording would keep the numbers of tensors on a CPU
        return (lambda given: run(*given)), sizes
    replayed = ReplayedRun(run, sum(n < parameters for n in program.takes), CudaGraphs(device))

    def run_or_replay(given: list[Tensor]) -> list[Tensor]:
        plain = torch.is_inference_mode_enabled() or torch.cuda.is_current_stream_capturing()
        return run(*given) if plain else replayed(given)

    return run_or_replay, sizes


def library_of(program: GraphPart, sizes: InputSizes, inputs: list[Tensor]) -> tuple[RunLibrary, InputSizes]:
    """Load or compile the library for ``inputs``; return a function of tensors, and conditions."""
    graph, key = program.graph, ""
    find_rows(graph.graph)
    products_by_kernels(graph.graph)
    call_by_name(graph.graph)
    graph.recompile()
    for like in ("", [list(x.shape) for x in inputs]):  # the first is for most, the second for those of such sizes
        key = _library_key(graph, [key, like, sizes.conditions])
        given = tuple(x.contiguous() for x in program.given(inputs))
        found = cache.finished_entry(key, cache.PROGRAM) or _compiled_entry(key, graph, given)
        loader = _torch.PackageLoader(str(found.library), "model", False, 1, -1)
        held = sizes.and_also(conditions_of(loader.get_metadata()))
        if held.hold(inputs):
            break
    return (lambda given: loader.boxed_run([x.contiguous() for x in given])), held  # it does not look at strides


def _compiled_entry(key: str, graph: fx.GraphModule, inputs: tuple) -> cache.Entry:
    entry = cache.Entry(cache.current_directory(), key, cache.PROGRAM)
    with entry.locked():
        if not entry.intact():
            if _only_cached.get():
                raise DeployError("the program is not in the cache of kernels")
            announce("compiles a network as one program, once for this machine: some half a minute")
            built = entry.new_file(cache.PROGRAM)
            try:
                built.write_bytes(_compile_graph(graph, inputs))
                entry.publish(built)
            finally:
                built.unlink(missing_ok=True)
    return entry


def _compile_graph(graph: fx.GraphModule, inputs: tuple) -> bytes:
    held, known = io.BytesIO(), set(_torch.inductor_options())
    options = {name: value for name, value in _OPTIONS.items() if name in known}  # others came with a later torch
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's own
        write_traced(graph, inputs, held, options)
    return held.getvalue()


def _library_key(graph: fx.GraphModule, more_of_key: Any) -> str:
    # name of a library: a hash of its graph's text, its inputs, conditions on them, constants, and who compiles
    described = [
        more_of_key,
        graph.code,
        [str((x.meta["val"].shape, x.meta["val"].dtype)) for x in graph.graph.find_nodes(op="placeholder")],
        [_hash_of_tensor(getattr(graph, str(x.target))) for x in graph.graph.find_nodes(op="get_attr")],
        [__version__, torch.__version__, need_compiler().identity, cpu_features(), _OPTIONS],
    ]
    return hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()[:32]


def _hash_of_tensor(x: Any) -> str:
    return hashlib.sha256(x.detach().contiguous().numpy().tobytes()).hexdigest() if isinstance(x, Tensor) else str(x)
