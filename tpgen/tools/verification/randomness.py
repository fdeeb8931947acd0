"""Random number states of process and network."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tpgen.tools.verification.holding import list_entries_and_attributes, list_unregistered_attributes

TORCH, NUMPY, PYTHON = "random numbers", "numpy's random numbers", "Python's random numbers"
# Random numbers that a whole process shares: how their state is read, put back and begun from a seed.
RANDOM: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]] = {
    TORCH: (torch.get_rng_state, torch.set_rng_state, torch.manual_seed),
    NUMPY: (np.random.get_state, np.random.set_state, np.random.seed),
    PYTHON: (random.getstate, random.setstate, random.seed),
}
# States of objects that draw random numbers: how they are read, and put back.
_STATES: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    torch.Generator: (lambda x: x.get_state(), lambda x, state: x.set_state(state)),
    np.random.Generator: (lambda x: x.bit_generator.state, lambda x, state: setattr(x.bit_generator, "state", state)),
    np.random.RandomState: (lambda x: x.get_state(), lambda x, state: x.set_state(state)),
    random.Random: (lambda x: x.getstate(), lambda x, state: x.setstate(state)),
}
_DEEP = 3  # how far within attributes a generator is looked for


def read_random_states_of_process() -> dict[str, str]:
    """Process's random number states as text."""
    return {name: _format_state_as_text(read()) for name, (read, _, _) in RANDOM.items()}


def read_generator_states_of_network(network: nn.Module) -> dict[str, str]:
    """States of random generators in a network or its methods, as text."""
    return {
        name: _format_state_as_text(_functions_to_read_and_write_state(one)[0](one))
        for name, one in _find_random_generators_of_network(network).items()
    }


def is_torch_generator(network: nn.Module, name: str) -> bool:
    """Whether a named random generator is torch's."""
    return name == TORCH or isinstance(_find_random_generators_of_network(network).get(name), torch.Generator)


def find_advanced_random_states(network: nn.Module, call: Callable[[], Any]) -> list[str]:
    """Name the random number states that a call changes."""
    before = read_random_states_of_process() | read_generator_states_of_network(network)
    call()
    after = read_random_states_of_process() | read_generator_states_of_network(network)
    return [name for name, state in after.items() if before.get(name) != state]


def _format_state_as_text(state: Any) -> str:
    if isinstance(state, dict):
        return str({name: _format_state_as_text(x) for name, x in state.items()})
    parts = state if isinstance(state, tuple) else (state,)
    return str([x.tolist() if isinstance(x, (Tensor, np.ndarray)) else x for x in parts])


def _functions_to_read_and_write_state(generator: Any) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]:
    return next(functions for kind, functions in _STATES.items() if isinstance(generator, kind))


def wrap_call_to_restore_random_states(call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wrap a call to restore random number states afterwards."""

    def call_and_restore_random_states(run: Any, operands: Any) -> Any:
        before = [(put_back, read()) for read, put_back, _ in RANDOM.values()]
        for one in _find_random_generators_of_network(run).values() if isinstance(run, nn.Module) else ():
            read, write = _functions_to_read_and_write_state(one)
            before.append((partial(write, one), deepcopy(read(one))))
        try:
            return call(run, operands)
        finally:
            for put_back, state in before:
                put_back(state)

    return call_and_restore_random_states


def _find_random_generators_of_network(network: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, module in network.named_modules():
        found |= dict(_iterate_random_generators_within(path, list_unregistered_attributes(module), _DEEP))
    for cls in {cls for module in network.modules() for cls in type(module).__mro__}:
        if not cls.__module__.startswith("torch."):
            found |= dict(_iterate_random_generators_within(cls.__name__, vars(cls), 1))
            found |= dict(_iterate_random_generators_within("", _globals_of_methods(cls), 1))
    return found


def _globals_of_methods(cls: type) -> dict[str, Any]:
    methods = [f for f in vars(cls).values() if isinstance(f, FunctionType)]
    return {n: f.__globals__[n] for f in methods for n in f.__code__.co_names if n in f.__globals__}


def _iterate_random_generators_within(path: str, attributes: Any, max_depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in attributes.items():
        at = f"{path}.{name}" if path else str(name)
        if isinstance(value, tuple(_STATES)):
            yield at, value
        elif max_depth > 1 and not isinstance(value, (Tensor, nn.Module, type)):
            yield from _iterate_random_generators_within(at, list_entries_and_attributes(value), max_depth - 1)
