"""The laws of surroundings: a call reads its inputs wherever they lie in memory, and leaves all else as it was."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tpgen.verification.laws import Outcomes, named, pairs
from tpgen.verification.subject import Named, Subject

# What a whole process shares: how it is read and set, and two values, of which one call finds the one, one the other.
SHARED: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], tuple[Any, Any]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype, (torch.float32, torch.float64)),
    "whether gradients are taken": (torch.is_grad_enabled, torch.set_grad_enabled, (True, False)),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads, (1, 2)),
    "whether algorithms are deterministic": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        (False, True),
    ),
}
# Random numbers that a whole process shares: how their state is read, put back and begun from a seed.
RANDOM: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]] = {
    "the seed of random numbers": (torch.get_rng_state, torch.set_rng_state, torch.manual_seed),
    "the seed of numpy's random numbers": (np.random.get_state, np.random.set_state, np.random.seed),
    "the seed of Python's random numbers": (random.getstate, random.setstate, random.seed),
}
SEEDS = (1, 2)


class Touched(Exception):
    """State outside of a module that a call changed."""


def untouched(subject: Subject) -> Outcomes:
    """Parameters, their gradients, the state of random numbers, and what a process shares, after a call and before."""
    if subject.fresh is None:
        return {"": "the network cannot be copied"}
    module, given = deepcopy(subject.fresh), {**subject.own(subject.given), **subject.fixed}
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    for parameter in module.parameters():
        parameter.grad = None
    found = []
    with _kept():
        for number in (0, 1):
            for _, write, values in SHARED.values():
                write(values[number])
            with suppress(Exception):  # some take no gradients where nobody asks for any
                subject.call(module, given)
            found += [name for name, (read, _, values) in SHARED.items() if read() != values[number]]
    found += _seeded(subject, module)
    found += [f"the gradient of {name}" for name, p in module.named_parameters() if p.grad is not None]
    found += [f"the {what} of {name}" for name, what in _written(subject, module)]
    touched = Touched(f"a call changes {', '.join(dict.fromkeys(found))}")
    outcomes: dict = {"": touched if found else (torch.zeros(1), torch.zeros(1))}
    after = dict(module.named_parameters())
    same = pairs({n: after[n].detach().double() for n in before}, {n: x.double() for n, x in before.items()})
    return outcomes | _asked(subject, module) | {name: pair for name, pair in same.items() if pair[0].numel()}


def _seeded(subject: Subject, module: Any) -> list[str]:
    """Random numbers that are where they are after a call, wherever they began: it set their seed."""
    after: list[list[str]] = []
    with _kept():
        for seed in SEEDS:
            for _, _, begin in RANDOM.values():
                begin(seed)
            with suppress(Exception):
                subject.call(module, _inputs(subject))
            after.append([_said(read()) for read, _, _ in RANDOM.values()])
    return [name for name, one, other in zip(RANDOM, *after, strict=True) if one == other]


def _said(state: Any) -> str:
    """A state of random numbers in full."""
    parts = state if isinstance(state, tuple) else (state,)
    return str([x.tolist() if isinstance(x, (Tensor, np.ndarray)) else x for x in parts])


def _inputs(subject: Subject) -> Named:
    return {name: x.clone() for name, x in {**subject.own(subject.given), **subject.fixed}.items()}


def _written(subject: Subject, module: Any) -> list[tuple[str, str]]:
    """Writes of a call into its inputs: their memory, which may not count them, or gradients."""
    given, expected = _inputs(subject), _inputs(subject)
    before = {name: x._version for name, x in given.items()}
    subject.call(module, given)
    other = [name for name, x in given.items() if x._version != before[name] or not _same_bits(x, expected[name])]
    written = [(name, "memory") for name in other]
    return written + [(name, "gradient") for name, x in given.items() if x.is_leaf and x.grad is not None]


def _same_bits(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.equal(x.detach().nan_to_num(), y.nan_to_num())


def _asked(subject: Subject, module: Any) -> dict[str, str]:
    """Gradients that a call asks for of tensors of its caller's, as some potentials mean to."""
    given = _inputs(subject)
    subject.call(module, given)
    names = [name for name, x in given.items() if x.requires_grad]
    why = "a call sets requires_grad of its caller's tensor, as some potentials mean to"
    return dict.fromkeys(names, why)


@contextmanager
def _kept() -> Iterator[None]:
    """Give state that a process shares back as it was before."""
    before = [(write, read()) for read, write, *_ in (*SHARED.values(), *RANDOM.values())]
    try:
        yield
    finally:
        for write, value in before:
            write(value)


def _spread(x: Tensor) -> Tensor:
    """With a gap after each entry, which holds no number."""
    room = x.new_full((*x.shape, 2), float("nan") if x.is_floating_point() else 0)
    return room[..., 0].copy_(x)


def _turned(x: Tensor) -> Tensor:
    """With the axes in another order."""
    return x.clone() if x.dim() < 2 else x.movedim(-1, 0).contiguous().movedim(0, -1)


def _shifted(x: Tensor) -> Tensor:
    """One entry behind the beginning of its memory."""
    room = x.new_full((x.numel() + 1,), float("nan") if x.is_floating_point() else 0)
    return room[1:].view(x.shape).copy_(x)


MEMORY: dict[str, Callable[[Tensor], Tensor]] = {
    "with gaps": _spread,
    "with axes in another order": _turned,
    "not at the beginning": _shifted,
}


def memory(subject: Subject) -> Outcomes:
    """Inputs that lie otherwise in memory, and the same results."""
    own = {**subject.own(subject.given), **subject.fixed}
    found: dict = {}
    expected = subject.called(subject.module, {name: x.clone() for name, x in own.items()})
    for part, laid in MEMORY.items():
        try:
            got = subject.called(subject.module, {name: laid(x) for name, x in own.items()})
        except RuntimeError as error:  # such as a view: it says so, and is not silently wrong
            found[part] = f"it does not take them: {str(error).strip().splitlines()[0][:120]}"
            continue
        found |= named(part, pairs(got, expected))
    return found
