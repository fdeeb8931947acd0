"""Random draws of a call, in the order of the network."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import SymInt, Tensor

from tpgen.base._torch import pytree
from tpgen.base.errors import DeployError
from tpgen.networks.recording import ComputedInput

_SIZES = ("size", "n")  # arguments that are a shape
DRAWS_UNFOLLOWED = "it takes random numbers in a way that programs do not follow: by a generator of its own, say"


def draws_numbers_of_known_shape(function: Any) -> bool:
    """Whether an operator draws random numbers of a tensor's or an argument's shape.

    >>> aten = torch.ops.aten
    >>> draws_numbers_of_known_shape(aten.bernoulli_.float), draws_numbers_of_known_shape(aten.rand.default)
    (True, True)
    >>> draws_numbers_of_known_shape(aten.multinomial.default), draws_numbers_of_known_shape(aten.relu.default)
    (False, False)
    """
    if torch.Tag.nondeterministic_seeded not in function.tags:
        return False
    tensors, name = _names_of_tensor_arguments(function), function._opname
    return not tensors or (len(tensors) == 1 and (function._schema.is_mutable or name.endswith("_like")))


def _names_of_tensor_arguments(function: Any) -> list[str]:
    return [x.name for x in function._schema.arguments if "Tensor" in str(x.type)]


class RandomDraw:
    """Random operation of a call: operator, arguments, shape."""

    def __init__(self, function: Any, args: Sequence[Any], options: dict[str, Any]) -> None:
        names = [x.name for x in function._schema.arguments]
        self._function, self._named = function, dict(zip(names, args, strict=False)) | options
        like = next((self._named.pop(name) for name in _names_of_tensor_arguments(function)), None)
        self._like = None if like is None else {"dtype": like.dtype, "device": like.device}
        self._size = next((name for name in _SIZES if like is None and name in self._named), "")
        self._shape = like.shape if like is not None else self._named.pop(self._size)
        leaves = pytree.tree_leaves(self._named)
        if self._named.get("generator") is not None or any(isinstance(x, SymInt) for x in leaves):
            raise DeployError(DRAWS_UNFOLLOWED)

    def shape_as_tensor(self) -> Tensor:
        """Empty tensor of shape (0, *shape of the numbers)."""
        sizes = [self._shape] if isinstance(self._shape, int | SymInt) else self._shape
        return torch.empty((0, *sizes), dtype=torch.uint8)

    def draw_numbers(self, shape_tensor: Tensor) -> Tensor:
        """Draw numbers of shape ``shape_tensor.shape[1:]``."""
        shape = shape_tensor.shape[1:]
        if self._like is not None:
            return self._function(torch.empty(shape, **self._like), **self._named)
        return self._function(**{self._size: shape if self._size == "size" else shape[0]}, **self._named)

    def as_computed_input(self) -> ComputedInput:
        """Input whose numbers each call draws."""
        return ComputedInput(lambda source: [self.draw_numbers(source)], lambda numbers: numbers, is_drawn=True)


def set_generator(state: Tensor | None) -> None:
    """Set the state of torch's random generator, if given."""
    if state is not None:
        torch.set_rng_state(state)


@contextmanager
def generator_at(state: Tensor | None) -> Iterator[None]:
    """Run the block from a state of torch's generator, if given; restore the present state."""
    with torch.random.fork_rng(devices=[], enabled=state is not None):
        set_generator(state)
        yield


def python_and_numpy_random_states() -> tuple:
    """States of the random generators of Python and numpy."""
    of_numpy: Any = np.random.get_state()
    return random.getstate(), *(x.tobytes() if isinstance(x, np.ndarray) else x for x in of_numpy)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the random generators of Python and numpy behind the block."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


class GeneratorUseCheck:
    """Checks that only recorded draws use torch's random generator."""

    def __init__(self) -> None:
        self._state = torch.get_rng_state()

    def check_generator_unused(self) -> None:
        """Raise `DeployError` if the state has changed since the last note."""
        if not torch.equal(self._state, torch.get_rng_state()):
            raise DeployError(DRAWS_UNFOLLOWED)

    def note_generator_state(self) -> None:
        """Note the present state."""
        self._state = torch.get_rng_state()
