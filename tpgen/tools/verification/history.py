"""The law of history: results do not depend on calls before, and what a caller keeps of these stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._torch import pytree
from tpgen.networks.results import opened_fields
from tpgen.tools.verification.derivatives import draws
from tpgen.tools.verification.findings import NotCompared, Outcome, Pair
from tpgen.tools.verification.graphs import AtomGraph, backwards, crowded, spacing
from tpgen.tools.verification.laws import Outcomes, named, pairs
from tpgen.tools.verification.potentials import stretched
from tpgen.tools.verification.reading import Reading
from tpgen.tools.verification.subject import Named, Subject, cloned, keys
from tpgen.tools.verification.surroundings import UNTRACKED
from tpgen.tools.verification.systems import another, shorter

_CALLS = 12
_ROOM, _PLACES = 2**22, count(1)  # entries, and places in them
MOVE = 1e-2  # of other inputs, relative to the largest entry
OTHER = "other numbers"
OWN_GRADIENTS = "the network takes gradients itself, as of an energy, and so runs under no `no_grad`"
FURTHER = 1.6  # times as long are the edges of points that are further apart
LEAP = 4.0  # of one atom, by the distance of the nearest points
WALK, _STEPS = 0.08, 40  # a step of a walk, by the distance of the nearest points, and how many


def forgets(subject: Subject) -> Outcomes:
    """Compare a network that was called often with a fresh copy: it remembers nothing that changes a result.

    Inputs vary, also in the same memory, and weights are renewed.  Calls leave inputs and kept results as they were.
    """
    first, found = subject.arguments(), dict[str, Outcome]()
    others = _others(subject, first)
    cases: dict[str, Callable[[str], Mapping[str, Outcome]]] = {
        **{part: partial(_often, subject, *given) for part, given in others.items()},
        "without gradients": partial(torch.no_grad()(_often), subject, *others[OTHER]),
        **_with_other_edges(subject, first),
        **_moving(subject, first),
        "new weights": partial(_with_new_weights, subject, first, None),
    }
    if any(module.training for module in subject.module.modules()):
        cases["new weights in evaluation"] = partial(_with_new_weights, subject, first, False)
    untracked: dict[str, Callable[[str], Mapping[str, Outcome]]] = {
        f"{part}, without gradients": torch.no_grad()(cases[part]) for part in cases if part.startswith("new weights")
    }
    untracked["after calls without gradients"] = partial(_tracked_after, subject, first)
    for part, compared in cases.items():
        try:
            found |= compared(part)
        except NotCompared as why:
            found[part] = str(why)
    for part, compared in untracked.items():
        with suppress(NotCompared):  # why is said above
            found |= compared(part)
    return found


def _expected(what: str, result: Callable[[], Named]) -> Named:
    # Results of a fresh copy.  Raises `NotCompared` where it does not take its inputs, or gives no numbers.
    try:
        found = cloned(result())
    except Exception as error:
        own = any(said in str(error) for said in UNTRACKED)
        why = OWN_GRADIENTS if own else f"the network does not take {what}: {type(error).__name__}"
        raise NotCompared(why) from error
    if not all(bool(y.isfinite().all()) for y in found.values()):
        raise NotCompared("a fresh copy gives no numbers")
    return found


def _often(subject: Subject, first: Named, second: Named, part: str) -> dict[str, Outcome]:
    # After many calls, of other inputs in the same memory, and back: as a fresh copy.
    wanted = [_expected("them", partial(subject.called, subject.copied(), _placed(given))) for given in (first, second)]
    found: dict[str, Outcome] = named(f"{part}, what was returned", _returned(subject, first, second))
    used, held = subject.copied(), cloned(first)
    for _ in range(_CALLS):
        last = subject.call(used, held)
    found |= named(f"{part}, {_CALLS} calls", pairs(_numbers(last), wanted[0]))
    found |= named("inputs after calls", {n: (held[n].double(), x.double()) for n, x in first.items()})
    for given, expected, when in ((second, wanted[1], "the same memory"), (first, wanted[0], "and back")):
        with torch.no_grad():
            for name, x in given.items():
                held[name].copy_(x)
        found |= named(f"{part}, {when}", pairs(subject.called(used, held), expected))
        if given is second:
            kept = {
                name: y for name, y in _numbers(last).items() if _memory(last[name]) not in map(_memory, held.values())
            }
            found |= named(f"{part}, a result that was kept", pairs(kept, {name: wanted[0][name] for name in kept}))
    return found


def _placed(given: Named) -> Named:
    # Copies at addresses that no call has seen: a cache by address, which copies of a module share, knows none of them.
    found = {}
    for name, x in given.items():
        behind = 16 * next(_PLACES)
        room = x.new_empty(_ROOM + behind + x.numel())  # large enough to be mapped; most of it is never touched
        found[name] = room[behind : behind + x.numel()].view(x.shape).copy_(x)
    return found


def _returned(subject: Subject, first: Named, second: Named) -> dict[str, Pair]:
    # The numbers in what a call has returned, its tuples and dicts, before another call and after.
    used, seen = subject.copied(), list[Any]()
    with used.register_forward_hook(lambda _module, _given, result: seen.append(result)):
        subject.called(used, cloned(first))
        before = _held(seen)
        subject.called(used, cloned(second))
    after = _held(seen)
    return {name: (after.get(name, x.new_zeros(0)), x) for name, x in before.items()}


def _held(seen: Sequence[Any]) -> Named:
    leaves = pytree.tree_flatten_with_path(opened_fields(seen[0]))[0] if seen else []
    return _numbers({keys(path): x for path, x in leaves if isinstance(x, Tensor)})


def _tracked_after(subject: Subject, first: Named, part: str) -> dict[str, Outcome]:
    # Results and gradients of parameters, after a call without gradients: as a fresh copy.
    wanted = _expected("them", partial(_with_slopes, subject, subject.copied(), first))
    used = subject.copied()
    with torch.no_grad():
        _expected("them", partial(subject.called, used, cloned(first)))
    try:
        found = _with_slopes(subject, used, first)
    except Exception as error:
        return {part: error}
    return {**named(part, pairs(found, wanted))}


def _with_slopes(subject: Subject, module: nn.Module, given: Named) -> Named:
    found = subject.call(module, {n: x.clone().requires_grad_(x.is_floating_point()) for n, x in given.items()})
    weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
    live = {name: y for name, y in found.items() if y.requires_grad}
    slopes: Sequence[Tensor] = [torch.zeros_like(p) for p in weights.values()]
    if live and weights:
        cotangents = draws(live, seed=7)
        scalar = torch.stack([(y * cotangents[name].to(y)).sum() for name, y in live.items()]).sum()
        slopes = torch.autograd.grad(scalar, list(weights.values()), allow_unused=True, materialize_grads=True)
    return _numbers({**found, **{f"gradient of {name}": g for name, g in zip(weights, slopes, strict=True)}})


def _memory(x: Tensor) -> int:
    # Where a tensor lies: a result that lies in its caller's own changes with it.
    return x.untyped_storage().data_ptr()


def _numbers(found: Named) -> Named:
    return {name: y.detach().to("cpu", torch.float64, copy=True) for name, y in found.items()}


def _others(subject: Subject, first: Named) -> dict[str, tuple[Named, Named]]:
    """Inputs of the same shapes, the second after the first.

    Numbers moved a little, points that come from further apart, other integers, and other edges.
    """
    floating = {name: x for name, x in first.items() if x.is_floating_point() and x.numel()}
    draw = draws(floating, seed=21)
    moved = {name: x + (MOVE * x.abs().max() * draw[name]).to(x) for name, x in floating.items()}
    found = {OTHER: (first, {**first, **moved})}
    if subject.points is not None:
        found["points from further apart"] = ({**first, **subject.own(stretched(subject, FURTHER))}, first)
    for part, mixed in (("other indices", _mixed(subject, first)), ("other edges", _crowded(subject, first))):
        found |= {part: (first, {**first, **mixed})} if mixed else {}
    return found


def _crowded(subject: Subject, first: Named) -> Named:
    # As many edges, half of them twice: atoms have other numbers of neighbours.
    reading = subject.reading
    if not isinstance(reading, Reading) or reading.graph.ends is None or reading.unclear:
        return {}
    try:
        found = subject.own(reading.written(crowded(reading.graph)))
    except NotCompared:
        return {}
    same = found.keys() >= first.keys() and all(found[name].shape == x.shape for name, x in first.items())
    return {name: found[name] for name in first} if same else {}


def _mixed(subject: Subject, first: Named) -> Named:
    # Other integers; where edges are known, with their images, and each graph keeps its atoms.
    whole = {name: x for name, x in first.items() if not x.is_floating_point() and x.numel()}
    reading = subject.reading
    if not isinstance(reading, Reading):
        return {name: x.flip(-1) if x.dim() > 1 else x.min() + x.max() - x for name, x in whole.items()}
    mixed = {name: _of_other_atoms(x) for name, x in whole.items() if reading.roles[name] == "atoms"}
    if reading.graph.ends is None or reading.unclear:
        return mixed
    try:
        turned = subject.own(reading.written(backwards(reading.graph)))
    except NotCompared:  # of neighbours in rows without an empty place
        return mixed
    moved = {name: turned[name] for name in first if reading.roles[name] not in ("atoms", "points", "cell")}
    return mixed | moved if all(x.shape == first[name].shape for name, x in moved.items()) else mixed


def _of_other_atoms(x: Tensor) -> Tensor:
    # In another order, and one atom of another kind: of numbers that all differ, as names of atoms do, the order alone.
    found = x.flip(0)
    if x.dim() == 1 and 1 < len(x.unique()) < len(x):
        found[0] = x.max() if found[0] < x.max() else x.min()
    return found


def _moving(subject: Subject, first: Named) -> dict[str, Callable[[str], Mapping[str, Outcome]]]:
    # Of a network that finds its own edges, after calls of points on their way, and of a larger cell: as a fresh copy.
    reading = subject.reading
    if not isinstance(reading, Reading) or reading.graph.ends is not None or reading.unclear:
        return {}
    graph, axis = reading.graph, draws({"": reading.graph.points}, seed=31)[""]
    step = WALK * spacing(graph) * axis / axis.norm(dim=1, keepdim=True)
    ways = {"a slow walk": [replace(graph, points=graph.points + n * step) for n in range(_STEPS)]}
    aside = graph.points.clone()
    away = 1e-3 * axis[0] + aside[0] - aside[graph.batch == graph.batch[0]].mean(0)
    aside[0] += LEAP * spacing(graph) * away / away.norm()
    ways["one atom comes back"] = [replace(graph, points=aside), graph]
    if reading.periodic and graph.cells is not None:
        small = replace(graph, points=graph.points / 2, cells=graph.cells / 2)
        ways["a cell of half the length"] = [graph, small]

    def compared(way: Sequence[AtomGraph], part: str) -> dict[str, Pair]:
        given = [{**first, **subject.own(reading.written(one))} for one in way]
        wanted, used = _expected("it", partial(subject.called, subject.copied(), given[-1])), subject.copied()
        for one in given:
            last = _expected("points on their way", partial(subject.called, used, one))
        return named(part, pairs(last, wanted))

    return {part: partial(compared, way) for part, way in ways.items()}


def _with_other_edges(subject: Subject, first: Named) -> dict[str, Callable[[str], Mapping[str, Outcome]]]:
    # After a call of another graph, and one with fewer edges: as a fresh copy, of each.
    reading = subject.reading
    if not isinstance(reading, Reading) or reading.graph.ends is None or reading.unclear:
        return {}
    used = subject.copied()

    def compared(graph: AtomGraph, part: str) -> dict[str, Pair]:
        given = {**first, **subject.own(reading.written(graph))}
        wanted = _expected("it", partial(subject.called, subject.copied(), given))
        straight = cloned(subject.called(used, first))
        found = named(part, pairs(cloned(subject.called(used, given)), wanted))
        return found | named(f"after {part}", pairs(cloned(subject.called(used, first)), straight))

    graphs = {"another graph": another(reading.graph), "fewer edges": shorter(reading.graph)}
    return {part: partial(compared, graph) for part, graph in graphs.items()}


def _with_new_weights(subject: Subject, first: Named, mode: bool | None, part: str) -> dict[str, Pair]:
    # After a call and a step of its parameters: as a fresh copy with those, as given or in a mode.
    used, fresh = (copy if mode is None else copy.train(mode) for copy in (subject.copied(), subject.copied()))

    def stepped() -> Named:
        subject.called(used, cloned(first))
        for network in (used, fresh):
            _step(network)
        return subject.called(fresh, cloned(first))

    wanted = _expected("them", stepped)
    return named(part, pairs(cloned(subject.called(used, cloned(first))), wanted))


def _step(network: nn.Module) -> None:
    # Change all parameters in their memory, as an optimizer does.
    with torch.no_grad():
        for p in network.parameters():
            if p.is_floating_point() and p.numel():
                p.add_(MOVE * p.abs().max() * torch.linspace(-1.0, 0.5, p.numel()).reshape(p.shape).to(p))
