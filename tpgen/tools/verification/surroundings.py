"""The laws of calls: results follow from inputs, wherever these lie and whatever was called before; all else stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.tools.verification.derivatives import draws
from tpgen.tools.verification.findings import NotCompared, Outcome, Pair
from tpgen.tools.verification.graphs import AtomGraph, backwards
from tpgen.tools.verification.laws import Outcomes, named, pairs
from tpgen.tools.verification.randomness import RANDOM, held_states, is_of_torch, shared_states
from tpgen.tools.verification.reading import Reading
from tpgen.tools.verification.subject import Named, Subject, cloned
from tpgen.tools.verification.systems import another, shorter

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
SEEDS = (1, 2)
_CALLS = 12
DRAWN = "a call in training goes on with random numbers of torch's, as dropout does"
MOVE = 1e-2  # of other inputs, relative to the largest entry


class Touched(Exception):
    """State outside of a module that a call changed."""


def untouched(subject: Subject) -> Outcomes:
    """Parameters, their gradients, the state of random numbers, and what a process shares, after a call and before."""
    module, given = subject.copied(), subject.arguments()
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
    seeded, drawn = _drawn(subject, module)
    meant = [name for name in drawn if module.training and is_of_torch(module, name)]
    found += [f"the seed of {name}" for name in seeded]
    found += [f"the state of {name}" for name in drawn if name not in meant]
    found += [f"the gradient of {name}" for name, p in module.named_parameters() if p.grad is not None]
    found += [f"the {what} of {name}" for name, what in _written(subject, module)]
    touched = Touched(f"a call changes {', '.join(dict.fromkeys(found))}")
    outcomes: dict = {"": touched if found else (torch.zeros(1), torch.zeros(1))}
    outcomes |= dict.fromkeys(meant, DRAWN)
    after = dict(module.named_parameters())
    same = pairs({n: after[n].detach().double() for n in before}, {n: x.double() for n, x in before.items()})
    return outcomes | _asked(subject, module) | {name: pair for name, pair in same.items() if pair[0].numel()}


def _drawn(subject: Subject, module: Any) -> tuple[list[str], list[str]]:
    """Random numbers whose seed a call sets, and those with which it goes on.

    A seed was set where their state after a call does not depend on where they began.
    """
    began, after, held = [], [], []
    with _kept():
        for seed in SEEDS:
            for _, _, begin in RANDOM.values():
                begin(seed)
            began.append(shared_states())
            with suppress(Exception):
                subject.call(module, subject.arguments())
            after.append(shared_states())
            held.append(held_states(module))
    of_process = [name for name in RANDOM if after[0][name] != began[0][name]]
    seeded = [name for name in of_process if after[0][name] == after[1][name]]
    further = [name for name, state in held[0].items() if held[1].get(name) != state]
    return seeded, [name for name in of_process if name not in seeded] + further


def _written(subject: Subject, module: Any) -> list[tuple[str, str]]:
    """Writes of a call into its inputs: their memory, which may not count them, or gradients."""
    given, expected = subject.arguments(), subject.arguments()
    before = {name: x._version for name, x in given.items()}
    subject.call(module, given)
    other = [name for name, x in given.items() if x._version != before[name] or not _same_bits(x, expected[name])]
    written = [(name, "memory") for name in other]
    return written + [(name, "gradient") for name, x in given.items() if x.is_leaf and x.grad is not None]


def _same_bits(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.equal(x.detach().nan_to_num(), y.nan_to_num())


def _asked(subject: Subject, module: Any) -> dict[str, str]:
    """Gradients that a call asks for of tensors of its caller's, as some potentials mean to."""
    given = subject.arguments()
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
    found: dict = {}
    expected = subject.called(subject.module, subject.arguments())
    for part, laid in MEMORY.items():
        try:
            got = subject.called(subject.module, {name: laid(x) for name, x in subject.arguments().items()})
        except RuntimeError as error:  # such as a view: it says so, and is not silently wrong
            found[part] = f"it does not take them: {str(error).strip().splitlines()[0][:120]}"
            continue
        found |= named(part, pairs(got, expected))
    return found


def forgets(subject: Subject) -> Outcomes:
    """Compare a network that was called often with a fresh copy: it remembers nothing that changes a result.

    Inputs vary, also in the same memory, and weights are renewed.  Calls leave inputs and kept results as they were.
    """
    first, found = subject.arguments(), dict[str, Outcome]()
    cases: dict[str, Callable[[str], Mapping[str, Outcome]]] = {
        **{part: partial(_often, subject, first, second) for part, second in _others(subject, first).items()},
        **_with_other_edges(subject, first),
        "new weights": partial(_with_new_weights, subject, first, None),
    }
    if any(module.training for module in subject.module.modules()):
        cases["new weights in evaluation"] = partial(_with_new_weights, subject, first, False)
    for part, compared in cases.items():
        try:
            found |= compared(part)
        except NotCompared as why:
            found[part] = str(why)
    return found


def _expected(what: str, result: Callable[[], Named]) -> Named:
    """Results of a fresh copy.  Raises `NotCompared` where it does not take its inputs, or gives no numbers."""
    try:
        found = cloned(result())
    except Exception as error:
        raise NotCompared(f"the network does not take {what}: {type(error).__name__}") from error
    if not all(bool(y.isfinite().all()) for y in found.values()):
        raise NotCompared("a fresh copy gives no numbers")
    return found


def _often(subject: Subject, first: Named, second: Named, part: str) -> dict[str, Outcome]:
    """After many calls, of other inputs in the same memory, and back: as a fresh copy."""
    wanted = [_expected("them", partial(subject.called, subject.copied(), given)) for given in (first, second)]
    found: dict[str, Outcome] = {}
    used, held = subject.copied(), cloned(first)
    for _ in range(_CALLS):
        last = subject.called(used, held)
    found |= named(f"{part}, {_CALLS} calls", pairs(cloned(last), wanted[0]))
    found |= named("inputs after calls", {n: (held[n].double(), x.double()) for n, x in first.items()})
    for given, expected, when in ((second, wanted[1], "the same memory"), (first, wanted[0], "and back")):
        with torch.no_grad():
            for name, x in given.items():
                held[name].copy_(x)
        found |= named(f"{part}, {when}", pairs(cloned(subject.called(used, held)), expected))
        if given is second:
            found |= named(f"{part}, a result that was kept", pairs(cloned(last), wanted[0]))
    return found


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
    try:
        turned = subject.own(reading.written(backwards(reading.graph)))
    except NotCompared:  # of neighbours in rows without an empty place
        return mixed
    moved = {name: turned[name] for name in first if reading.roles[name] not in ("atoms", "points", "cell")}
    return mixed | moved if all(x.shape == first[name].shape for name, x in moved.items()) else mixed


def _with_other_edges(subject: Subject, first: Named) -> dict[str, Callable[[str], Mapping[str, Outcome]]]:
    """After a call of another graph, and one with fewer edges: as a fresh copy, of each."""
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
    """After a call and a step of its parameters: as a fresh copy with those, as given or in a mode."""
    used, fresh = (copy if mode is None else copy.train(mode) for copy in (subject.copied(), subject.copied()))

    def stepped() -> Named:
        subject.called(used, cloned(first))
        for network in (used, fresh):
            _step(network)
        return subject.called(fresh, cloned(first))

    wanted = _expected("them", stepped)
    return named(part, pairs(cloned(subject.called(used, cloned(first))), wanted))


def _step(network: nn.Module) -> None:
    """Change all parameters in their memory, as an optimizer does."""
    with torch.no_grad():
        for p in network.parameters():
            if p.is_floating_point() and p.numel():
                p.add_(MOVE * p.abs().max() * torch.linspace(-1.0, 0.5, p.numel()).reshape(p.shape).to(p))
