"""A program with the places of its parameters: run where it holds for the tensors of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from tpgen.errors import DeployError, TpgenError
from tpgen.networks.signature import ParameterSlots, Signature
from tpgen.networks.sizes import HeldSizes
from tpgen.networks.step_build import RunLibrary, library_of
from tpgen.networks.step_trace import Evaluate, Written, write

WRITING = RLock()  # while a network is written down, other tensors stand in the places of its own


@dataclass(frozen=True, eq=False)
class Program:
    """Program of an evaluation, and the tensors that it is for."""

    title: str
    evaluate: Evaluate
    signature: Signature
    slots: ParameterSlots
    written: Written
    before: HeldSizes  # of parameters and tensors
    behind: HeldSizes  # of tensors and findings
    function: RunLibrary
    others: dict[tuple, Program | None] = field(default_factory=dict)  # where other inputs require gradients

    @staticmethod
    def of(
        title: str, evaluate: Evaluate, slots: ParameterSlots, signature: Signature, tensors: Sequence[Tensor]
    ) -> Program:
        """The program of an evaluation, of which errors speak by its title; ``tensors`` are those of an example."""
        try:
            with WRITING, torch.autocast("cpu", enabled=False):
                written = write(evaluate, slots, signature, tensors)
        except TpgenError:
            raise
        except Exception as error:
            why = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise DeployError(
                f"{title} cannot be written as one program: {why}; take what depends on values out of forward, or use "
                "the network as it is"
            ) from error
        parameters = slots.tensors()
        inputs = written.complete([x.detach().contiguous() for x in (*parameters, *tensors)])
        assert inputs is not None, "the program holds for its example"
        with torch.autocast("cpu", enabled=False):
            function, sizes = library_of(written.program, written.sizes, inputs)
        before, behind = sizes.part(0, len(parameters) + len(tensors)), sizes.part(len(parameters), None)
        return Program(title, evaluate, signature, slots, written, before, behind, function)

    def stands(self) -> bool:
        """Whether the network is still what was written down, but for numbers in its parameters and buffers."""
        with WRITING:
            return self.written.reads.stand() and self.slots.stand()

    def run(self, signature: Signature, tensors: Sequence[Tensor]) -> Any:
        """The results; None where the program does not hold for such tensors."""
        signature.need(self.signature)
        with WRITING:
            inputs = [*self.slots.tensors(), *tensors]
        if torch.is_autocast_enabled("cpu") or not self.before.hold(inputs):
            return None
        if signature.beside != self.signature.beside:
            other = self._other(signature, tensors)
            return None if other is None else other.run(signature, tensors)
        made = self._made(inputs, len(tensors), again=False)
        if made is not None and not self.written.right(made):
            made = self._made(inputs, len(tensors), again=True)
        return None if made is None else self.written.results(made)

    def _other(self, signature: Signature, tensors: Sequence[Tensor]) -> Program | None:
        """The program of calls whose inputs require other gradients, as those that a network itself has asked for.

        A network can decide by that, so it is traced again; where it does not, the library is the same one.
        """
        if not signature.asks_otherwise(self.signature):
            return None
        with WRITING:
            found = self.others.get(signature.beside)
            if signature.beside not in self.others or not (found is None or found.stands()):
                try:
                    found = Program.of(self.title, self.evaluate, self.slots, signature, tensors)
                except DeployError:
                    found = None
                self.others[signature.beside] = found
            return found

    def _made(self, inputs: list[Tensor], count: int, again: bool) -> list[Tensor] | None:
        complete = self.written.complete(inputs, again)
        if complete is None or not self.behind.hold(complete[len(inputs) - count :]):
            return None
        given = self.written.program.given(complete)
        return self.function([x.contiguous() for x in given])  # a program does not look at strides
