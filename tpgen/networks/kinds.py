"""Kinds of calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._torch import is_functorch_wrapped_tensor
from tpgen.base.errors import DeployError
from tpgen.networks.beside import ProgramBuilder
from tpgen.networks.gradients import BackwardPass, Recompute, Requests, ServedCall, add_pass_to_requests, attach_graph
from tpgen.networks.objects import objects_with_dicts
from tpgen.networks.outcome import LeavesWithGraphs
from tpgen.networks.passes import watch_passes
from tpgen.networks.replays import on_gpu
from tpgen.networks.results import Given, unflatten
from tpgen.networks.signature import Signature
from tpgen.networks.sizes import tensor_guards
from tpgen.networks.step_program import Program
from tpgen.networks.step_trace import refuse_tensors_that_require_grad
from tpgen.networks.trial import is_floating

ENOUGH_CALLS = 10  # that a program is built after
_MORE = 4  # times as many, before the next program is built of calls whose network has changed
_MISSES = 3  # backward passes that a program was built for in vain
DIFFERENTIATED = "its results are differentiated in ways that programs do not serve"


class CallKind:
    """Calls with equal signature and gradient flags: count, shortest time, example, program."""

    def __init__(self, signature: Signature, tensors: Sequence[Tensor]) -> None:
        _, _, *kinds = signature.beside
        self.signature, self.grad = signature, torch.is_grad_enabled()
        self.is_of_objects = any(not isinstance(x, dict) for x, _ in objects_with_dicts(*signature.arguments(tensors)))
        # an example, on the memory of the caller's
        self.tensors = [x.detach().requires_grad_(asks) for x, (asks, *_) in zip(tensors, kinds, strict=True)]
        self.count, self.need, self.seconds = 0, float(ENOUGH_CALLS), inf
        self.refused = ""  # why there is no program, and will be none
        self.busy = Lock()  # while a program is asked for
        self.builder: ProgramBuilder | None = None
        self.program: Program | None = None
        self.requests: Requests = ()  # of backward passes so far
        self._misses = 0
        self._written: set[int] = set()  # tensors that the network writes into
        self._behind: frozenset[int] = frozenset()  # leaves that others are computed from
        self._served: Requests = ()  # that the program serves
        self._graphs: LeavesWithGraphs | None = None
        self._alike: Any = None  # a check that parameters require gradients as they did
        self._asks: list[bool] = []

    def example(self) -> tuple[tuple, dict[str, Any], list[Tensor]]:
        """Arguments, keywords and detached tensors of an example."""
        own = [x.clone() if n in self._written else x for n, x in enumerate(self.tensors)]
        tensors = [x.detach().requires_grad_(x.requires_grad) for x in own]
        return *self.signature.arguments(tensors), tensors

    def note_written_tensors(self, numbers: Collection[int]) -> None:
        """Copy the example's tensors that the network writes into, from here on for each run."""
        new = {*numbers} - self._written
        if new:  # none of these has a gradient
            self.tensors = [x.clone() if n in new else x for n, x in enumerate(self.tensors)]
            self._written |= new

    def watch(self, network: nn.Module, tensors: Sequence[Tensor], leaves: Sequence[Any]) -> bool:
        """Note backward passes through an outcome; return whether a floating leaf requires no gradient."""
        watch_passes(self, network, tensors, leaves)
        return not all(x.requires_grad for x in filter(is_floating, leaves))

    def knows_leaves(self, leaves: frozenset[int], again: bool) -> bool:
        """Whether the next program serves passes from these leaves, or none."""
        given = self._behind.union(*(request.given for request in self.requests))
        return bool(self.refused) or (leaves <= given and len(self.requests) > again)

    def note_pass(self, found: BackwardPass) -> None:
        """Let the next program serve passes like this one, too."""
        if found.behind is not None:
            request = replace(found.request, given=found.request.given - self._behind)
            self._behind |= found.behind
            found = replace(found, request=request, is_plain=found.is_plain or not request.given)
        if not found.is_plain or found.is_observed or on_gpu(self.tensors):
            self.refuse(DIFFERENTIATED)
            return
        requests = add_pass_to_requests(self.requests, found) if found.request.given else self.requests
        if requests != self.requests:
            if self.program is not None or self.builder is not None:
                self.put_off() if self.requests else self.drop()
            self.requests = requests
        elif found.behind is None and self.program is not None:  # which serves other passes alone
            self._misses += 1
            if self._misses >= _MISSES:
                self.refuse(DIFFERENTIATED)

    def refuse(self, why: str) -> None:
        """Let the network serve these calls from now on."""
        self.refused, self.tensors = why, []
        self.drop()

    def drop(self) -> None:
        """Discard the program and restart the count."""
        if self.builder is not None:
            self.builder.end()
        self.builder = self.program = None
        self.count, self.seconds = 0, inf

    def put_off(self) -> None:
        """Drop the program; build after four times more calls."""
        self.need *= _MORE
        self.drop()

    def adopt(self, program: Program, graphs: LeavesWithGraphs, requests: Requests) -> None:
        """Store a program that serves requests; `DeployError` unless its result has the network's structure."""
        if program.written.result != graphs.spec:
            raise DeployError("its program returns something else")
        if graphs.led:
            refuse_tensors_that_require_grad(program.written.reads.tensors())
        self._asks, self._alike = [x.requires_grad for x in program.slots.tensors()], None
        self.program, self._graphs = program, graphs
        self._served = requests

    def holds(self, parameters: list[Tensor]) -> bool:
        """Whether parameters are leaves with unchanged requires_grad; a change drops the program."""
        if self._alike is not None and self._alike.check(*parameters):
            return True
        if any(x.grad_fn is not None or is_functorch_wrapped_tensor(x) for x in parameters):
            return False
        if [x.requires_grad for x in parameters] != self._asks:
            self.drop()
            return False
        self._alike = tensor_guards(parameters)
        return True

    def served(self, tensors: list[Tensor], recompute: Recompute) -> Any:
        """Compute a call's outcome by the program; None if the program does not fit."""
        program, graphs = self.program, self._graphs
        assert program is not None
        assert graphs is not None
        with torch.no_grad():
            if not program.is_unchanged():
                return self.put_off()
            parameters = program.slots.tensors()
            sources = [*parameters, *tensors]
            if graphs.led and any(x._backward_hooks for x in sources):  # of what has no gradient, too
                return None
            if not graphs.alike and any(x._post_accumulate_grad_hooks for x in sources):
                return None
            made = program.run_call(tensors) if self.holds(parameters) else None
            if made is None:
                return None
            before = {n: sources[n].clone() for n in program.written.updates} if graphs.led else {}
            known = {} if program.gradients is None or not graphs.led else program.gradients.kept(made, before)
            program.write_updates(made, list(tensors))
        leaves = [sources[x.place] if type(x) is Given else x for x in program.written.leaves(made.outputs)]
        for x in (*(leaves[n] for n in graphs.asking), *(tensors[n] for n in graphs.asked)):
            x.requires_grad_()
        if graphs.led:
            sources += [leaves[n] for n in graphs.asking]
            call = ServedCall(program, self._served, graphs, sources, before, made.generator, recompute)
            found = attach_graph(call, known, {n: leaves[n] for n in graphs.led})
            for n, x in zip(graphs.led, found, strict=True):
                leaves[n] = x
        return unflatten(leaves, program.written.result)
