"""The law of history: a result is one of its inputs, whatever was called before, and however memory is used again."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from tpgen.verification.derivatives import draws
from tpgen.verification.findings import Pair
from tpgen.verification.graphs import backwards
from tpgen.verification.laws import Outcomes, named, pairs
from tpgen.verification.reading import Reading
from tpgen.verification.subject import Named, Subject
from tpgen.verification.systems import another, shorter

_CALLS = 12
MOVE = 1e-2  # of other inputs, relative to the largest entry


def forgets(subject: Subject) -> Outcomes:
    """Compare a network that was called often with a fresh copy: it remembers nothing that changes a result.

    Inputs vary, also in the same memory, and weights are renewed.  Calls leave inputs and kept results as they were.
    """
    if subject.fresh is None:
        return {"": "the network cannot be copied"}
    first = _copies({**subject.own(subject.given), **subject.fixed})
    found: dict = {}
    for part, second in _others(subject, first).items():
        try:
            wanted = [_copies(subject.called(deepcopy(subject.fresh), given)) for given in (first, second)]
        except Exception as error:
            found[part] = f"the network does not take them: {type(error).__name__}"
            continue
        if not all(bool(y.isfinite().all()) for one in wanted for y in one.values()):
            found[part] = "a fresh copy gives no numbers"
            continue
        used, held = deepcopy(subject.fresh), _copies(first)
        for _ in range(_CALLS):
            last = subject.called(used, held)
        found |= named(f"{part}, {_CALLS} calls", pairs(_copies(last), wanted[0]))
        found |= named("inputs after calls", {n: (held[n].double(), x.double()) for n, x in first.items()})
        for given, expected, when in ((second, wanted[1], "the same memory"), (first, wanted[0], "and back")):
            with torch.no_grad():
                for name, x in given.items():
                    held[name].copy_(x)
            found |= named(f"{part}, {when}", pairs(_copies(subject.called(used, held)), expected))
            if given is second:
                found |= named(f"{part}, a result that was kept", pairs(_copies(last), wanted[0]))
    return found | _with_other_edges(subject, first) | _with_new_weights(subject, first)


def _others(subject: Subject, first: Named) -> dict[str, Named]:
    """Other inputs of the same shapes: numbers moved a little, and other integers."""
    draw = draws({name: x for name, x in first.items() if x.is_floating_point()}, seed=21)
    moved = {
        name: x + (MOVE * x.abs().max() * draw[name]).to(x) if name in draw and x.numel() else x
        for name, x in first.items()
    }
    mixed = _mixed(subject, first)
    return {"other numbers": moved, **({"other indices": {**first, **mixed}} if mixed else {})}


def _mixed(subject: Subject, first: Named) -> Named:
    """Other integers; where edges are known, with their images, and each graph keeps its atoms."""
    whole = {name: x for name, x in first.items() if not x.is_floating_point() and x.numel()}
    reading = subject.reading
    if not isinstance(reading, Reading):
        return {name: x.flip(-1) if x.dim() > 1 else x.min() + x.max() - x for name, x in whole.items()}
    mixed = {name: x.flip(0) for name, x in whole.items() if reading.roles[name] == "atoms"}
    if reading.graph.ends is None or reading.unclear:
        return mixed
    turned = subject.own(reading.written(backwards(reading.graph)))
    roles = ("ends", "counts", "vectors")
    return mixed | {name: turned[name] for name in first if reading.roles[name] in roles}


def _with_other_edges(subject: Subject, first: Named) -> dict[str, Pair | str]:
    """After a call of another graph, and one with fewer edges: as a fresh copy, of each."""
    reading = subject.reading
    if not isinstance(reading, Reading) or reading.graph.ends is None or reading.unclear:
        return {}
    found: dict[str, Pair | str] = {}
    fresh, used = subject.fresh, deepcopy(subject.fresh)
    assert fresh is not None
    assert used is not None
    for part, graph in (("another graph", another(reading.graph)), ("fewer edges", shorter(reading.graph))):
        given = {**first, **subject.own(reading.written(graph))}
        try:
            wanted = _copies(subject.called(deepcopy(fresh), given))
        except Exception as error:
            found[part] = f"the network does not take it: {type(error).__name__}"
            continue
        straight = _copies(subject.called(used, first))
        found |= named(part, pairs(_copies(subject.called(used, given)), wanted))
        found |= named(f"after {part}", pairs(_copies(subject.called(used, first)), straight))
    return found


def _with_new_weights(subject: Subject, first: Named) -> dict[str, Pair | str]:
    """After a call and a step of its parameters: as a fresh copy with those, as given and in evaluation."""
    found: dict[str, Pair | str] = {}
    training = any(module.training for module in subject.module.modules())
    for part, mode in {"new weights": None, **({"new weights in evaluation": False} if training else {})}.items():
        used, fresh = deepcopy(subject.fresh), deepcopy(subject.fresh)
        assert used is not None
        assert fresh is not None
        if mode is not None:
            used, fresh = used.train(mode), fresh.train(mode)
        try:
            subject.called(used, _copies(first))
            for network in (used, fresh):
                _step(network)
            wanted = _copies(subject.called(fresh, _copies(first)))
        except Exception as error:
            found[part] = f"the network does not take them: {type(error).__name__}"
            continue
        if not all(bool(y.isfinite().all()) for y in wanted.values()):
            found[part] = "a fresh copy gives no numbers"
            continue
        found |= named(part, pairs(_copies(subject.called(used, _copies(first))), wanted))
    return found


def _step(network: nn.Module) -> None:
    """Change all parameters in their memory, as an optimizer does."""
    with torch.no_grad():
        for p in network.parameters():
            if p.is_floating_point() and p.numel():
                p.add_(MOVE * p.abs().max() * torch.linspace(-1.0, 0.5, p.numel()).reshape(p.shape).to(p))


def _copies(found: Named) -> Named:
    return {name: x.clone() for name, x in found.items()}
