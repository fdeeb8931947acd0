"""A whole network as one program: what small systems need, for which calls of operations take longer than they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tpgen.errors import InputError
from tpgen.networks.signature import ParameterSlots, Signature
from tpgen.networks.step_program import WRITING, BuiltOnce, Program


def compile_step(network: nn.Module, *args: Any, outputs: Sequence[str] | None = None, **options: Any) -> Step:
    """The evaluation of a network, with the derivatives that it takes itself, as one program.

    ``args`` and ``options`` are those of an example of a call; without any, the first call is the example.  What is
    returned is called like the network, with tensors of any sizes, and returns what it returns, as values; of a dict
    the ``outputs`` alone, where they are named.  Parameters are the network's: what an optimiser or `load_state_dict`
    writes is used from then on.

    A call with other constants, or other names in a dict, is an `InputError`; one that no program holds for, as with a
    size below 2, is computed by the network itself.  Raises `DeployError` where the network decides by values.

    >>> class Energy(nn.Module):
    ...     def forward(self, data):
    ...         x = data["x"].requires_grad_()
    ...         energy = (x**2).sum()
    ...         return {"energy": energy, "forces": -torch.autograd.grad(energy, x)[0]}
    >>> step = compile_step(Energy(), outputs=["forces"])
    >>> step({"x": torch.ones(5)})  # doctest: +SKIP
    {'forces': tensor([-2., -2., -2., -2., -2.])}
    """
    step = Step(network, outputs)
    if args or options:
        step.build(*args, **options)
    return step


class Step(BuiltOnce):
    """A network whose calls are one program, which the first of them builds; attributes are those of the network."""

    def __init__(self, network: nn.Module, outputs: Sequence[str] | None) -> None:
        self._network, self._outputs = network, None if outputs is None else tuple(outputs)

    def __getattr__(self, name: str) -> Any:
        if "_network" not in vars(self):  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._network, name)

    def train(self, mode: bool = True) -> Step:
        """Set the mode of the network; returns the step, as a module returns itself."""
        self._network.train(mode)
        return self

    def eval(self) -> Step:
        """Set the network to evaluation."""
        return self.train(False)

    def build(self, *args: Any, **options: Any) -> None:
        """Build the program of calls like an example, in the place of the one that is there."""
        signature, tensors = Signature.of(args, options)
        slots = ParameterSlots(self._network, gradients=False)
        self._program = Program.of(type(self._network).__name__, self._evaluate, slots, signature, tensors)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """As the network."""
        signature, tensors = Signature.of(args, options)
        with torch.no_grad():
            found = self._current(*args, **options).run(signature, tensors)
        if found is not None:
            return found
        with WRITING.lock, torch.enable_grad():  # else stand-ins of another thread are in the places of parameters
            return self._evaluate(*args, **options)

    def _evaluate(self, *args: Any, **options: Any) -> Any:
        found = self._network(*args, **options)
        if self._outputs is None:
            return found
        missing = [name for name in self._outputs if name not in found]
        if missing:
            raise InputError(f"outputs: the network returns no {missing[0]!r}, it returns {', '.join(found)}")
        return {name: found[name] for name in self._outputs}
