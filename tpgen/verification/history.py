"""The law of history: a result is one of its inputs, whatever was called before, and however memory is used again."""

from __future__ import annotations

from copy import deepcopy

import torch

from tpgen.verification.derivatives import draws
from tpgen.verification.laws import Outcomes, named, pairs
from tpgen.verification.subject import Named, Subject

CALLS = 12
MOVE = 1e-2  # of other inputs, relative to the largest entry


def forgets(subject: Subject) -> Outcomes:
    """After many calls, after calls with other inputs of the same shapes, and in the same memory: as a fresh copy.

    Inputs are as they were, and so are results that somebody keeps.
    """
    if subject.fresh is None:
        return {"": "the network cannot be copied"}
    first = _copies({**subject.own(subject.given), **subject.fixed})
    found: dict = {}
    for part, second in _others(first).items():
        try:
            wanted = [_copies(subject.called(deepcopy(subject.fresh), given)) for given in (first, second)]
        except Exception as error:
            found[part] = f"the network does not take them: {type(error).__name__}"
            continue
        used, held = deepcopy(subject.fresh), _copies(first)
        for _ in range(CALLS):
            last = subject.called(used, held)
        found |= named(f"{part}, {CALLS} calls", pairs(_copies(last), wanted[0]))
        found |= named("inputs after calls", {n: (held[n].double(), x.double()) for n, x in first.items()})
        for given, expected, when in ((second, wanted[1], "the same memory"), (first, wanted[0], "and back")):
            with torch.no_grad():
                for name, x in given.items():
                    held[name].copy_(x)
            found |= named(f"{part}, {when}", pairs(_copies(subject.called(used, held)), expected))
            if given is second:
                found |= named(f"{part}, a result that was kept", pairs(_copies(last), wanted[0]))
    return found


def _others(first: Named) -> dict[str, Named]:
    """Other inputs of the same shapes: all numbers moved a little, and integers in another order."""
    draw = draws({name: x for name, x in first.items() if x.is_floating_point()}, seed=21)
    moved = {
        name: x + (MOVE * x.abs().max() * draw[name]).to(x) if name in draw and x.numel() else x
        for name, x in first.items()
    }
    found = {"other numbers": moved}
    whole = {name: x for name, x in first.items() if not x.is_floating_point() and x.numel()}
    mixed = {name: x.flip(-1) if x.dim() > 1 else x.min() + x.max() - x for name, x in whole.items()}
    return {**found, "other indices": {**first, **mixed}} if mixed else found


def _copies(found: Named) -> Named:
    return {name: x.clone() for name, x in found.items()}
