"""Calls served by compiled programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import deepcopy
from functools import partial
from logging import getLogger
from math import inf
from time import perf_counter
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from tpgen.base.errors import DeployError, InputError, OptionError, a_kind
from tpgen.base.progress import announce
from tpgen.kernels.build.build import count_cores
from tpgen.kernels.build.rehearsal import dry_run_before_compiling
from tpgen.networks.beside import ProgramBuilder, build
from tpgen.networks.bypass import bypassing_programs, must_run_eagerly
from tpgen.networks.comparison import SlowerProgramError, refuse_slower_program
from tpgen.networks.copies import copy_to_call
from tpgen.networks.draws import generator_at, kept_generators
from tpgen.networks.gate import Gate
from tpgen.networks.gradients import BackwardPass, ServedCall
from tpgen.networks.holders import held_networks
from tpgen.networks.kinds import CallKind
from tpgen.networks.known_programs import (
    WEEK,
    are_libraries_cached,
    comparison_record,
    program_record,
    record_libraries,
)
from tpgen.networks.libraries import NotCachedError, names_of_libraries, only_cached
from tpgen.networks.outcome import (
    LeavesWithGraphs,
    StateBefore,
    apply_outcome,
    evaluation,
    outcome_of,
    restored_attributes,
)
from tpgen.networks.replays import on_gpu
from tpgen.networks.results import are_equal_results, flatten
from tpgen.networks.signature import ParameterSlots, Signature
from tpgen.networks.step_program import WRITING, Program, is_followed_by_transforms
from tpgen.nn.plain_tensors import count_writes

When = Literal["auto"] | bool

LONGEST_CALL = 0.25  # a program is built of calls that take no longer
_KINDS = 64  # of calls of a network
_PLACE = "_tpgen_calls"
_UNSCRIPTED = "__jit_ignored_attributes__"  # what TorchScript leaves out
_NAMES = _PLACE, "_compiled_call_impl", _UNSCRIPTED
_BUILDS = "{} a program for calls of {}, {}: they will be faster (program=False leaves it)"
_log = getLogger("tpgen")


class Calls:
    """Replaces a network's ``nn.Module.__call__``: counts and times calls, and builds programs."""

    def __init__(self, network: nn.Module, when: When) -> None:
        self.__setstate__({"network": network, "when": when})

    def __getstate__(self) -> dict[str, Any]:
        return {"network": self._network, "when": self.when}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.when: When = state["when"]
        self._network: Any = state["network"]
        self._said = self._handed = False
        self._forget_kinds_and_renew_lock()
        _all.add(self)
        ignored = [*getattr(type(self._network), _UNSCRIPTED, ()), *_NAMES]
        vars(self._network).update({_PLACE: self, "_compiled_call_impl": self, _UNSCRIPTED: ignored})

    def _forget_kinds_and_renew_lock(self) -> None:
        self._kinds: dict[tuple, list[CallKind]] = {}
        self._gate = Gate()

    def __call__(self, *args: Any, **options: Any) -> Any:
        network = self._network
        if must_run_eagerly():
            return network._call_impl(*args, **options)
        try:
            signature, tensors = Signature.split_call(args, options)
        except InputError:  # an object that nobody sees into
            self._serve_wrapped_network(network)
            return network._call_impl(*args, **options)
        kind = (
            None if is_followed_by_transforms(tensors) else self._find_or_add_kind_of_call(network, signature, tensors)
        )
        if kind is None or kind.refused:
            if kind is not None and kind.is_of_objects:
                self._serve_wrapped_network(network)
            with self._gate.calling():
                return network._call_impl(*args, **options)
        if kind.program is not None:
            outcome = kind.served(tensors, partial(self._recompute_by_network, kind, tensors))
            if outcome is not None:
                return apply_outcome(outcome, args, options, network)
        return self._call_network_and_count(network, kind, tensors, args, options)

    def _serve_wrapped_network(self, network: nn.Module) -> None:
        if not self._handed:
            self._handed, own = True, len(list(network.parameters()))
            for child in network.children():
                if len(list(child.parameters())) == own and _PLACE not in vars(child):
                    Calls(child, self.when)

    def _find_or_add_kind_of_call(
        self, network: nn.Module, signature: Signature, tensors: Sequence[Tensor]
    ) -> CallKind:
        key = signature.constants, signature.beside, torch.is_grad_enabled(), network.training
        for kind in self._kinds.get(key, ()):
            if kind.signature.spec == signature.spec:
                return kind
        if len(self._kinds) >= _KINDS:
            self._kinds.clear()
        kind = CallKind(signature, tensors)
        self._kinds.setdefault(key, []).append(kind)
        return kind

    def _recompute_by_network(
        self, kind: CallKind, tensors: list[Tensor], call: ServedCall, found: BackwardPass
    ) -> Any:
        network, program = self._network, call.program
        held: AbstractContextManager[None] = nullcontext()
        sources = [*program.slots.tensors(), *tensors]
        if not (program.is_unchanged() and call.is_unchanged(sources)):
            raise InputError(
                f"{type(network).__name__} or a tensor given to it has changed since it was called, and a result of "
                "that call is differentiated now: differentiate before you change it, or convert it with program=False"
            )
        kind.note_pass(found)
        count = len(sources) - len(tensors)
        sources = [call.before[n].clone() if n >= count and n in call.before else x for n, x in enumerate(sources)]
        if any(x.grad_fn is not None for x in tensors):  # a gradient by a source leaves out those computed from it
            sources = [x.view_as(x) if x.requires_grad else x for x in sources]
            held = _hold_stand_ins(program.slots, sources[:count])
        args, options = kind.signature.arguments(sources[count:])
        with (
            bypassing_programs(),
            self._gate.calling(),
            program.slots.restored(),
            restored_attributes(network),
            generator_at(call.generator),
            held,
        ):
            for n, x in call.before.items():
                if n < count:
                    call.sources[n].data.copy_(x)
            return flatten(outcome_of(network, args, options)[1])[0], sources

    def _call_network_and_count(
        self, network: Any, kind: CallKind, tensors: list[Tensor], args: tuple, options: dict[str, Any]
    ) -> Any:
        if kind.program is not None:  # it does not hold for this call
            with self._gate.calling(), bypassing_programs():
                return network._call_impl(*args, **options)
        given, readable = StateBefore.copy_state(network, args, options), [*tensors, *network.parameters()]
        versions, begun = list(map(count_writes, readable)), perf_counter()
        with self._gate.calling(), bypassing_programs(), self._compile_kernels_in_parallel(network, kind):
            result = network._call_impl(*args, **options)
        kind.count, kind.seconds = kind.count + 1, min(kind.seconds, perf_counter() - begun)
        written = [n for n, x in enumerate(readable) if count_writes(x) != versions[n]]
        if any(n >= len(tensors) or tensors[n].requires_grad for n in written):
            kind.refuse("the network writes into a parameter, or into a tensor that has a gradient")
        else:
            kind.note_written_tensors(written)
            self._watch_and_build(network, kind, tensors, given, result)
        return result

    def _watch_and_build(
        self, network: nn.Module, kind: CallKind, tensors: list[Tensor], given: StateBefore, result: Any
    ) -> None:
        try:
            leaves, _ = flatten(given.collect_outcome(result))
        except DeployError as error:
            kind.refuse(str(error))
            return
        valued = kind.watch(network, tensors, leaves)
        if kind.busy.acquire(blocking=False):  # of several threads, one builds
            try:
                self._build_if_due(network, kind, valued)
            finally:
                kind.busy.release()

    def _compile_kernels_in_parallel(self, network: nn.Module, kind: CallKind) -> AbstractContextManager[Any]:
        if kind.count or _has_module_or_global_hooks(network) or torch.is_autocast_enabled("cpu"):
            return nullcontext()
        return dry_run_before_compiling(partial(_run_call_on_copies, network, kind), count_cores() + 1)

    def _build_if_due(self, network: nn.Module, kind: CallKind, valued: bool) -> None:
        if kind.builder is not None:
            if not kind.builder.works():
                self._build_and_check_program(network, kind, only_cached)
        elif kind.program is None and ((self.when is True and valued) or kind.count >= kind.need):
            self._begin_build_or_put_off(network, kind)

    # -- programs ------------------------------------------------------------------------------------------------------

    def serves(self, network: nn.Module) -> bool:
        """Whether these calls belong to this network, no shallow copy's origin."""
        return self._network is network

    def ready(self, network: nn.Module) -> None:
        """Finish or build the programs of all kinds so far."""
        for kind in [kind for kinds in self._kinds.values() for kind in kinds]:
            with kind.busy:
                if kind.builder is not None:
                    kind.builder.wait()
                    self._build_and_check_program(network, kind, only_cached)
                elif not kind.refused and kind.program is None and not _has_module_or_global_hooks(network):
                    self._build_and_check_program(network, kind)

    def _is_program_wanted(self, network: nn.Module, kind: CallKind) -> bool:
        return not _has_module_or_global_hooks(network) and (self.when is True or kind.seconds < LONGEST_CALL)

    def _builds_by_itself(self) -> bool:
        return self.when == "auto" and os.environ.get("TPGEN_PROGRAM") != "0"

    def _begin_build_or_put_off(self, network: nn.Module, kind: CallKind) -> None:
        if self.when == "auto" and not self._builds_by_itself():
            kind.refuse("TPGEN_PROGRAM=0 asks for none")
        elif self.when == "auto" and torch.are_deterministic_algorithms_enabled():
            kind.refuse("torch.use_deterministic_algorithms asks for equal bits, of a program too")
        elif not self._is_program_wanted(network, kind):
            kind.put_off()
        elif self.when is True:
            self._build_and_check_program(network, kind)
        elif on_gpu((*network.parameters(), *kind.tensors)):  # which is traced alone, within seconds
            self._announce_once(_BUILDS.format("traces", type(network).__name__, "once"))
            self._build_and_check_program(network, kind)
        elif known := comparison_record(network, kind).read_refusal(WEEK):
            self._refuse_program_and_log(network, kind, f"{known[0]}, in an earlier process")
        else:
            if are_libraries_cached(program_record(network, kind)):
                self._announce_once(_BUILDS.format("takes", type(network).__name__, "from the cache"))
                self._build_and_check_program(network, kind, only_cached)
            if kind.program is None and not kind.refused:
                self._build_in_background(network, kind)

    def _build_in_background(self, network: nn.Module, kind: CallKind) -> None:
        args, options, _ = kind.example()
        try:
            kind.builder = ProgramBuilder(
                network, {"args": args, "options": options, "grad": kind.grad, "requests": kind.requests}
            )
        except Exception as error:
            kind.need = inf
            _log.info("no other process can build the program of %s: %s", type(network).__name__, error)
            return
        self._announce_once(_BUILDS.format("builds", type(network).__name__, "beside them"))

    def _build_and_check_program(
        self, network: nn.Module, kind: CallKind, how: Callable[[], Any] = nullcontext
    ) -> None:
        failure = kind.builder.failure() if kind.builder is not None else ""
        if failure:
            self._refuse_program_and_log(network, kind, failure)
            return
        with self._gate.writing() as free, restored_attributes(network), torch.random.fork_rng(devices=[]):
            if not free or kind.program is not None:
                return
            try:
                known = comparison_record(network, kind)
                requests, (outcome, graphs) = kind.requests, self._run_example_for_outcome(network, kind)
                args, options, tensors = kind.example()
                with how(), names_of_libraries() as names:
                    program = build(network, kind.grad, args, options, requests)
                if not program.serves:
                    raise DeployError("its program does not compile")
                if on_gpu((*network.parameters(), *tensors)):
                    _check_program_equals_network(program, tensors, outcome)
                elif self._builds_by_itself():
                    refuse_slower_program(program, network, requests, args, options)
                kind.drop()
                kind.adopt(program, graphs, requests)
                record_libraries(program_record(network, kind), names)
            except Exception as error:
                if isinstance(error, SlowerProgramError):
                    with suppress(OSError):
                        known.record_refusal(str(error))
                if not isinstance(error, NotCachedError) or kind.builder is not None:
                    self._refuse_program_and_log(network, kind, str(error))
                return
        _log.info("a program serves calls of %s", type(network).__name__)

    def _run_example_for_outcome(self, network: nn.Module, kind: CallKind) -> tuple[tuple, LeavesWithGraphs]:
        args, options, tensors = kind.example()
        flags = [x.requires_grad for x in tensors]
        held = ParameterSlots(network, gradients=False).restored(parameters=True)
        with bypassing_programs(), kept_generators(), torch.set_grad_enabled(kind.grad), held:
            outcome = outcome_of(network, args, options)[1]
        return outcome, LeavesWithGraphs.classify_leaves(network, outcome, flags, tensors)

    def _refuse_program_and_log(self, network: nn.Module, kind: CallKind, why: str) -> None:
        kind.refuse(why)
        _log.info("the network %s serves its calls itself: %s", type(network).__name__, why)

    def _announce_once(self, what: str) -> None:
        _log.info("tpgen %s", what)
        if not self._said:
            self._said = True
            announce(what)


@contextmanager
def _hold_stand_ins(slots: ParameterSlots, parameters: Sequence[Tensor]) -> Iterator[None]:
    with WRITING.lock, slots.holding(parameters):
        yield


def _check_program_equals_network(program: Program, tensors: list[Tensor], outcome: tuple) -> None:
    with torch.no_grad():
        made = program.run_tensors(tensors)
    if made is None:
        raise DeployError("its program does not serve the call that it was made of")
    if not are_equal_results(program.written.leaves(made), flatten(outcome)[0]):
        raise DeployError("its program gives other numbers")


def _run_call_on_copies(network: nn.Module, kind: CallKind) -> None:
    args, options, _ = deepcopy(kind.example())
    numbers = torch.get_rng_state()
    try:
        evaluation(copy_to_call(network), kind.grad)(*args, **options)
    finally:
        torch.set_rng_state(numbers)


def _has_module_or_global_hooks(network: nn.Module) -> bool:
    return any(HOOKS_OF_ALL) or any(vars(module).get(name) for module in network.modules() for name in _HOOKS)


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
HOOKS_OF_ALL = [x for name, x in vars(torch_modules).items() if name.startswith("_global_") and isinstance(x, dict)]
_all: WeakSet[Calls] = WeakSet()


def _reset_all_served_networks() -> None:
    for calls in list(_all):
        calls._forget_kinds_and_renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all_served_networks)


def check_when(when: Any) -> None:
    """Raise `OptionError` unless ``when`` is "auto", True or False."""
    if when not in ("auto", True, False):
        raise OptionError(f'program: give "auto", True or False, got {when!r}')


def serve(network: nn.Module, when: When) -> None:
    """Let programs serve calls of a network, unless ``when`` is False."""
    if when is not False:
        Calls(network, when)


def serve_no_more(network: nn.Module) -> None:
    """Undo `serve` in all modules of a network."""
    for module in network.modules():
        calls = vars(module).get(_PLACE)
        if calls is not None and vars(module).get("_compiled_call_impl") is calls:
            for name in _NAMES:
                del vars(module)[name]


def ready(network: Any) -> None:
    """Build programs for all calls so far of a converted network or calculator, and wait.

    >>> ready(nn.Linear(1, 1))  # calls of others have no program
    """
    networks = held_networks(network)
    if not networks:
        raise InputError(f"network: ready takes a torch.nn.Module, got {a_kind(network)}")
    for module in (module for one in networks.values() for module in one.modules()):
        calls = vars(module).get(_PLACE)
        if calls is not None and calls.serves(module):
            calls.ready(module)
