"""A program with the places of its parameters: run where it holds for the tensors of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tpgen.errors import DeployError, TpgenError
from tpgen.networks.step_build import Run, library_of, shapes_of
from tpgen.networks.step_trace import Evaluate, Signature, Slots, Written, write


@dataclass(frozen=True, eq=False)
class Program:
    """Program of an evaluation, and the tensors that it is for."""

    slots: Slots
    written: Written
    shapes: Sequence[tuple[int | str, ...]]
    like: Sequence[tuple[torch.dtype, torch.device]]
    function: Run

    @staticmethod
    def of(title: str, evaluate: Evaluate, slots: Slots, signature: Signature, tensors: Sequence[Tensor]) -> Program:
        """The program of an evaluation, of which errors speak by its title; ``tensors`` are those of an example."""
        try:
            written = write(evaluate, slots, signature, tensors)
        except TpgenError:
            raise
        except Exception as error:
            why = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise DeployError(
                f"{title} cannot be written as one program: {why}; take what depends on values out of forward, or use "
                "the network as it is"
            ) from error
        given = written.complete([x.detach() for x in (*slots.tensors(), *tensors)])
        assert given is not None, "the program holds for its example"
        function = library_of(written.program.graph, tuple(x.contiguous() for x in given))
        like = [(x.dtype, x.device) for x in given]
        shapes = [tuple(n if type(n) is int else str(n) for n in sizes) for sizes in shapes_of(written.program.graph)]
        return Program(slots, written, shapes, like, function)

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """The results; None where the program does not hold for such tensors."""
        inputs = [*self.slots.tensors(), *tensors]
        made = self._made(inputs, again=False)
        if made is not None and not self.written.right(made):
            made = self._made(inputs, again=True)
        return None if made is None else self.written.results(made)

    def _made(self, inputs: list[Tensor], again: bool) -> list[Tensor] | None:
        given = self.written.complete(inputs, again)
        if given is None or not _hold(self.shapes, self.like, given):
            return None
        return self.function([x.contiguous() for x in given])  # a program does not look at strides


def _hold(shapes: Sequence[tuple[int | str, ...]], like: Sequence[tuple], inputs: Sequence[Tensor]) -> bool:
    """Whether sizes are those that a program is for: equal where they are numbers or the same size, and 2 at least."""
    known: dict[int | str, int] = {}
    for wanted, (dtype, device), x in zip(shapes, like, inputs, strict=True):
        shape = x.shape
        if x.dtype != dtype or x.device != device or len(shape) != len(wanted):
            return False
        for size, n in zip(wanted, () if shape == wanted else shape, strict=False):  # of parameters they are equal
            if type(size) is int:
                if n != size:
                    return False
            elif n < 2 or known.setdefault(size, n) != n:
                return False
    return True
