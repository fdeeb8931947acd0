"""A network as one program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from logging import getLogger
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base.errors import InputError
from tpgen.networks.bypass import bypassing_programs
from tpgen.networks.results import values
from tpgen.networks.signature import ParameterSlots, Signature
from tpgen.networks.step_program import WRITING, BuiltOnce, Program, is_recorded


def compile_step(network: nn.Module, *args: Any, outputs: Sequence[str] | None = None, **options: Any) -> Step:
    """Compile a network's evaluation, derivatives such as forces included, into one program.

    ``args`` and ``options`` are an example, by default the first call.  The step takes the network's arguments, of any
    sizes, and returns detached results; of a dict only ``outputs``.  Parameters stay the network's, later changes
    included.

    Other constants or dict keys raise `InputError`.  The network computes calls beyond the program.

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


class Step(BuiltOnce, nn.Module):
    """Runs a network by one program; forwards attributes to the network."""

    _logged = False

    def __init__(self, network: nn.Module, outputs: Sequence[str] | None) -> None:
        vars(self).update(_network=network, _outputs=None if outputs is None else tuple(outputs))

    def __getattr__(self, name: str) -> Any:
        if "_network" not in vars(self) or name.startswith("__"):  # of a copy that is being made; how to copy it
            raise AttributeError(name)
        found = getattr(self._network, name)
        return (
            self._wrap_to_return_step_for_network(found)
            if inspect.ismethod(found) and found.__self__ is self._network
            else found
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            vars(self)[name] = value
        else:
            setattr(self._network, name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN:
            del vars(self)[name]
        else:
            delattr(self._network, name)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __dir__(self) -> list[str]:
        return sorted({*dir(type(self)), *dir(self._network)})

    def __repr__(self) -> str:
        return f"Step of {self._network!r}"

    def build(self, *args: Any, **options: Any) -> None:
        """Build the program for calls like an example."""
        signature, tensors = Signature.split_call(args, options)
        slots = ParameterSlots(self._network, gradients=False)
        self._program = Program.build_from_example(
            type(self._network).__name__, self._evaluate_network_outputs, slots, signature, tensors
        )

    def __call__(self, *args: Any, **options: Any) -> Any:
        signature, tensors = Signature.split_call(args, options)
        recorded, found = is_recorded(tensors), None
        if not (recorded and self._program is None):
            with torch.no_grad():
                found = self._build_or_reuse_program(*args, **options).run(signature, tensors, recorded)
        if found is not None:
            return found
        self._log_first_unserved_call(signature, tensors, recorded)
        with WRITING.lock, torch.enable_grad():  # else stand-ins of another thread are in the places of parameters
            found = self._evaluate_network_outputs(*args, **options)
        return found if recorded else values(found, [*tensors, *self._slot_tensors()])

    def forward(self, *args: Any, **options: Any) -> Any:
        """Call the step."""
        return self(*args, **options)

    def _log_first_unserved_call(self, signature: Signature, tensors: list[Tensor], recorded: bool) -> None:
        if self._program is None or recorded or self._logged:
            return
        self._logged = True
        why = self._program.why_not(signature.in_order(tensors, self._program.signature)[1])
        name = type(self._network).__name__
        _log.info("%s computes a call itself, which its program does not serve%s", name, why and f": it is for {why}")

    def _slot_tensors(self) -> list[Tensor]:
        return [] if self._program is None else self._program.slots.tensors()

    def _evaluate_network_outputs(self, *args: Any, **options: Any) -> Any:
        with bypassing_programs():
            found = self._network(*args, **options)
        if self._outputs is None:
            return found
        missing = [name for name in self._outputs if name not in found]
        if missing:
            raise InputError(f"outputs: the network returns no {missing[0]!r}, it returns {', '.join(found)}")
        return {name: found[name] for name in self._outputs}

    def _wrap_to_return_step_for_network(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call_and_return_step(*args: Any, **options: Any) -> Any:
            found = method(*args, **options)
            return self if found is self._network else found

        return call_and_return_step


_log = getLogger("tpgen")
_OWN = {"_network", "_outputs", "_program", "_evaluate_network_outputs", "_logged"}
_TABLES = tuple(vars(nn.Module()))  # parameters, modules, hooks, the mode: those of the network


def _network_property(name: str) -> property:
    return property(lambda step: step.__getattr__(name))


# what every module has, for which Python does not ask `__getattr__`
for _name, _value in (*vars(nn.Module).items(), *((name, None) for name in _TABLES)):
    if _name not in vars(Step) and not (_name.startswith("__") or hasattr(BuiltOnce, _name)):
        setattr(Step, _name, _network_property(_name))
