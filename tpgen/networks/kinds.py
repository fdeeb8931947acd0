"""Kinds of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from tpgen.base._torch import is_functorch_wrapped_tensor
from tpgen.base.errors import DeployError
from tpgen.networks.beside import ProgramBuilder
from tpgen.networks.later import Recompute, with_recomputed_graph
from tpgen.networks.objects import has_attributes, nested_dicts, objects_with_dicts
from tpgen.networks.outcome import LeavesWithGraphs
from tpgen.networks.results import Given, flatten, unflatten
from tpgen.networks.signature import Signature
from tpgen.networks.sizes import tensor_guards
from tpgen.networks.step_program import Program

ENOUGH_CALLS = 10  # that a program is built after
_MORE = 4  # times as many, before the next program is built of calls whose network has changed
DIFFERENTIATED = "its results are differentiated"


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
        self._graphs: LeavesWithGraphs | None = None
        self._alike: Any = None  # a check that parameters require gradients as they did
        self._asks: list[bool] = []

    def example(self) -> tuple[tuple, dict[str, Any], list[Tensor]]:
        """Return an example's arguments, keywords and detached tensors."""
        tensors = [x.detach().requires_grad_(x.requires_grad) for x in self.tensors]
        return *self.signature.arguments(tensors), tensors

    def watch(self, result: Any) -> bool:
        """Refuse programs once a result is differentiated; return whether a floating result requires no gradient."""
        try:
            leaves, _ = flatten(nested_dicts(result) if has_attributes(result) else result)
        except DeployError as error:
            self.refuse(str(error))
            return False
        tensors = [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
        for x in tensors:
            if x.grad_fn is not None:
                x.grad_fn.register_prehook(self._on_differentiation)
        return not all(x.requires_grad for x in tensors)

    def _on_differentiation(self, _gradients: Any) -> None:
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

    def adopt(self, program: Program, graphs: LeavesWithGraphs) -> None:
        """Store a program; `DeployError` unless its result has the network's structure."""
        if program.written.result != graphs.spec:
            raise DeployError("its program returns something else")
        self._asks, self._alike = [x.requires_grad for x in program.slots.tensors()], None
        self.program, self._graphs = program, graphs

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

    def served(self, tensors: list[Tensor], recompute: Callable[[Program, tuple[int, ...]], Recompute]) -> Any:
        """Compute a call's outcome by the program; None if the program does not fit."""
        program, graphs = self.program, self._graphs
        assert program is not None
        assert graphs is not None
        with torch.no_grad():
            if not program.is_unchanged():
                return self.put_off()
            parameters = program.slots.tensors()
            made = program.run_tensors(tensors) if self.holds(parameters) else None
        if made is None:
            return None
        leaves = [tensors[x.place] if type(x) is Given else x for x in program.written.leaves(made)]
        for x in (*(leaves[n] for n in graphs.asking), *(tensors[n] for n in graphs.asked)):
            x.requires_grad_()
        if graphs.led:
            sources = [x for x in (*parameters, *tensors) if x.requires_grad]
            found = with_recomputed_graph([leaves[n] for n in graphs.led], recompute(program, graphs.led), sources)
            for n, x in zip(graphs.led, found, strict=True):
                leaves[n] = x
        return unflatten(leaves, program.written.result)
