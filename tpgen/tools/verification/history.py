"""Law of history: earlier calls change no result."""

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
from tpgen.tools.verification.derivatives import draw_normal_tensors
from tpgen.tools.verification.findings import NotCompared, Outcome, Pair
from tpgen.tools.verification.graphs import AtomGraph, keep_half_of_edges_twice, reverse_edges, shortest_distance
from tpgen.tools.verification.laws import Outcomes, pair_results, prefix_part_names
from tpgen.tools.verification.potentials import stretch_operands
from tpgen.tools.verification.reading import Reading
from tpgen.tools.verification.subject import (
    Subject,
    TensorsByName,
    clone_tensors,
    copy_detached_in_float64,
    name_leaf,
)
from tpgen.tools.verification.surroundings import UNTRACKED
from tpgen.tools.verification.systems import (
    call_on_graph,
    keep_shorter_edges,
    require_reading,
    strain_and_shrink_graph,
)

_CALLS = 12
_ROOM, _PLACES = 2**22, count(1)  # entries, and places in them
MOVE = 1e-2  # of other inputs, relative to the largest entry
OTHER = "other numbers"
OWN_GRADIENTS = "the network takes gradients itself, as of an energy, and so runs under no `no_grad`"
FURTHER = 1.6  # times as long are the edges of points that are further apart
LEAP = 4.0  # of one atom, by the distance of the nearest points
WALK, _STEPS = 0.08, 40  # a step of a walk, by the distance of the nearest points, and how many
_SKINS = (0.11, 0.19, 0.32, 0.54, 0.92)  # of lists of neighbours, by the reach, each 1.7 times as thick
_INSIDE = (0.97, 0.9, 0.75)  # where the atom arrives, by the reach
_LONGEST, _HALVINGS = 64.0, 9  # of the reach, by the distance of the nearest points, and of its bounds
_SAME = 1e-11  # results of an atom beyond the reach
_WAY = (0.48, 0.64, 0.6)


def compare_after_other_calls(subject: Subject) -> Outcomes:
    """Compare a network, after other calls, with a fresh copy."""
    first, found = subject.arguments(), dict[str, Outcome]()
    others = _inputs_of_two_calls_by_part(subject, first)
    cases: dict[str, Callable[[str], Mapping[str, Outcome]]] = {
        **{part: partial(_compare_after_many_calls, subject, *given) for part, given in others.items()},
        "without gradients": partial(torch.no_grad()(_compare_after_many_calls), subject, *others[OTHER]),
        **_other_graph_cases(subject, first),
        **_trajectory_cases(subject, first),
        "new weights": partial(_compare_after_parameter_step, subject, first, None),
    }
    if any(module.training for module in subject.module.modules()):
        cases["new weights in evaluation"] = partial(_compare_after_parameter_step, subject, first, False)
    untracked: dict[str, Callable[[str], Mapping[str, Outcome]]] = {
        f"{part}, without gradients": torch.no_grad()(cases[part]) for part in cases if part.startswith("new weights")
    }
    untracked["after calls without gradients"] = partial(_compare_after_untracked_call, subject, first)
    for part, compared in cases.items():
        try:
            found |= compared(part)
        except NotCompared as why:
            found[part] = str(why)
    for part, compared in untracked.items():
        with suppress(NotCompared):  # why is said above
            found |= compared(part)
    return found


def _fresh_results(description: str, call: Callable[[], TensorsByName]) -> TensorsByName:
    # Results of a fresh copy.  Raises `NotCompared` where it does not take its inputs, or gives no numbers.
    try:
        found = call()
    except Exception as error:
        own = any(said in str(error) for said in UNTRACKED)
        why = OWN_GRADIENTS if own else f"the network does not take {description}: {type(error).__name__}"
        raise NotCompared(why) from error
    if not all(bool(y.isfinite().all()) for y in found.values()):
        raise NotCompared("a fresh copy gives no numbers")
    return found


def _compare_after_many_calls(
    subject: Subject, inputs: TensorsByName, other_inputs: TensorsByName, part: str
) -> dict[str, Outcome]:
    # After many calls, of other inputs in the same memory, and back: as a fresh copy.
    wanted = [
        _fresh_results("them", partial(subject.detached_results, subject.fresh_copy(), _copies_at_new_addresses(given)))
        for given in (inputs, other_inputs)
    ]
    found: dict[str, Outcome] = prefix_part_names(
        f"{part}, what was returned", _compare_returned_values_after_next_call(subject, inputs, other_inputs)
    )
    used, held = subject.fresh_copy(), clone_tensors(inputs)
    for _ in range(_CALLS):
        last = subject.call(used, held)
    found |= prefix_part_names(f"{part}, {_CALLS} calls", pair_results(copy_detached_in_float64(last), wanted[0]))
    found |= prefix_part_names("inputs after calls", {n: (held[n].double(), x.double()) for n, x in inputs.items()})
    for given, expected, when in ((other_inputs, wanted[1], "the same memory"), (inputs, wanted[0], "and back")):
        with torch.no_grad():
            for name, x in given.items():
                held[name].copy_(x)
        found |= prefix_part_names(f"{part}, {when}", pair_results(subject.detached_results(used, held), expected))
        if given is other_inputs:
            own = {_storage_address(x) for x in held.values()}
            kept = {name: y for name, y in last.items() if _storage_address(y) not in own}
            expected = {name: wanted[0][name] for name in kept}
            found |= prefix_part_names(
                f"{part}, a result that was kept", pair_results(copy_detached_in_float64(kept), expected)
            )
    return found


def _copies_at_new_addresses(inputs: TensorsByName) -> TensorsByName:
    # Copies at addresses that no call has seen: a cache by address, which copies of a module share, knows none of them.
    found = {}
    for name, x in inputs.items():
        behind = 16 * next(_PLACES)
        room = x.new_empty(_ROOM + behind + x.numel())  # large enough to be mapped; most of it is never touched
        found[name] = room[behind : behind + x.numel()].view(x.shape).copy_(x)
    return found


def _compare_returned_values_after_next_call(
    subject: Subject, inputs: TensorsByName, other_inputs: TensorsByName
) -> dict[str, Pair]:
    # The numbers in what a call has returned, its tuples and dicts, before another call and after.
    used, seen = subject.fresh_copy(), list[Any]()
    with used.register_forward_hook(lambda _module, _given, result: seen.append(result)):
        subject.detached_results(used, clone_tensors(inputs))
        before = _tensors_of_return(seen)
        subject.detached_results(used, clone_tensors(other_inputs))
    after = _tensors_of_return(seen)
    return {name: (after.get(name, x.new_zeros(0)), x) for name, x in before.items()}


def _tensors_of_return(returned: Sequence[Any]) -> TensorsByName:
    leaves = pytree.tree_flatten_with_path(opened_fields(returned[0]))[0] if returned else []
    return copy_detached_in_float64({name_leaf(path): x for path, x in leaves if isinstance(x, Tensor)})


def _compare_after_untracked_call(subject: Subject, inputs: TensorsByName, part: str) -> dict[str, Outcome]:
    # Results and gradients of parameters, after a call without gradients: as a fresh copy.
    wanted = _fresh_results("them", partial(_results_and_parameter_gradients, subject, subject.fresh_copy(), inputs))
    used = subject.fresh_copy()
    with torch.no_grad():
        _fresh_results("them", partial(subject.detached_results, used, clone_tensors(inputs)))
    try:
        found = _results_and_parameter_gradients(subject, used, inputs)
    except Exception as error:
        return {part: error}
    return {**prefix_part_names(part, pair_results(found, wanted))}


def _results_and_parameter_gradients(subject: Subject, module: nn.Module, inputs: TensorsByName) -> TensorsByName:
    found = subject.call(module, {n: x.clone().requires_grad_(x.is_floating_point()) for n, x in inputs.items()})
    weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
    live = {name: y for name, y in found.items() if y.requires_grad}
    slopes: Sequence[Tensor] = [torch.zeros_like(p) for p in weights.values()]
    if live and weights:
        cotangents = draw_normal_tensors(live, seed=7)
        scalar = torch.stack([(y * cotangents[name].to(y)).sum() for name, y in live.items()]).sum()
        slopes = torch.autograd.grad(scalar, list(weights.values()), allow_unused=True, materialize_grads=True)
    named = {f"gradient of {name}": g for name, g in zip(weights, slopes, strict=True)}
    return copy_detached_in_float64({**found, **named})


def _storage_address(x: Tensor) -> int:
    # Where a tensor lies: a result that lies in its caller's own changes with it.
    return x.untyped_storage().data_ptr()


def _inputs_of_two_calls_by_part(
    subject: Subject, inputs: TensorsByName
) -> dict[str, tuple[TensorsByName, TensorsByName]]:
    # for each part, inputs of the first and second call: moved numbers, stretched points, other integers, other edges
    floating = {name: x for name, x in inputs.items() if x.is_floating_point() and x.numel()}
    draw = draw_normal_tensors(floating, seed=21)
    moved = {name: x + (MOVE * x.abs().max() * draw[name]).to(x) for name, x in floating.items()}
    found = {OTHER: (inputs, {**inputs, **moved})}
    if subject.points is not None:
        stretched = subject.module_operands(stretch_operands(subject, FURTHER))
        found["points from further apart"] = {**inputs, **stretched}, inputs
    for part, mixed in (
        ("other indices", _with_other_integers(subject, inputs)),
        ("other edges", _doubled_edge_arguments(subject, inputs)),
    ):
        found |= {part: (inputs, {**inputs, **mixed})} if mixed else {}
    return found


def _doubled_edge_arguments(subject: Subject, inputs: TensorsByName) -> TensorsByName:
    # As many edges, half of them twice: atoms have other numbers of neighbours.
    reading = subject.reading
    if not isinstance(reading, Reading) or reading.graph.ends is None or reading.unclear:
        return {}
    try:
        found = subject.module_operands(reading.arguments_for(keep_half_of_edges_twice(reading.graph)))
    except NotCompared:
        return {}
    same = found.keys() >= inputs.keys() and all(found[name].shape == x.shape for name, x in inputs.items())
    return {name: found[name] for name in inputs} if same else {}


def _with_other_integers(subject: Subject, inputs: TensorsByName) -> TensorsByName:
    # Other integers; where edges are known, with their images, and each graph keeps its atoms.
    whole = {name: x for name, x in inputs.items() if not x.is_floating_point() and x.numel()}
    reading = subject.reading
    if not isinstance(reading, Reading):
        return {name: x.flip(-1) if x.dim() > 1 else x.min() + x.max() - x for name, x in whole.items()}
    mixed = {name: _with_atoms_in_other_order(x) for name, x in whole.items() if reading.roles[name] == "atoms"}
    if reading.graph.ends is None or reading.unclear:
        return mixed
    try:
        turned = subject.module_operands(reading.arguments_for(reverse_edges(reading.graph)))
    except NotCompared:  # of neighbours in rows without an empty place
        return mixed
    moved = {name: turned[name] for name in inputs if reading.roles[name] not in ("atoms", "points", "cell")}
    return mixed | moved if all(x.shape == inputs[name].shape for name, x in moved.items()) else mixed


def _with_atoms_in_other_order(x: Tensor) -> Tensor:
    # In another order, and one atom of another kind: of numbers that all differ, as names of atoms do, the order alone.
    found = x.flip(0)
    if x.dim() == 1 and 1 < len(x.unique()) < len(x):
        found[0] = x.max() if found[0] < x.max() else x.min()
    return found


def _trajectory_cases(subject: Subject, inputs: TensorsByName) -> dict[str, Callable[[str], Mapping[str, Outcome]]]:
    # Of a network that finds its own edges, after calls of points on their way, and of a larger cell: as a fresh copy.
    reading = subject.reading
    if not isinstance(reading, Reading) or reading.graph.ends is not None or reading.unclear:
        return {}
    graph, axis = reading.graph, draw_normal_tensors({"": reading.graph.points}, seed=31)[""]
    step = WALK * shortest_distance(graph) * axis / axis.norm(dim=1, keepdim=True)
    ways = {"a slow walk": [replace(graph, points=graph.points + n * step) for n in range(_STEPS)]}
    aside = graph.points.clone()
    away = 1e-3 * axis[0] + aside[0] - aside[graph.batch == graph.batch[0]].mean(0)
    aside[0] += LEAP * shortest_distance(graph) * away / away.norm()
    ways["one atom comes back"] = [replace(graph, points=aside), graph]
    if reading.periodic and graph.cells is not None:
        small = replace(graph, points=graph.points / 2, cells=graph.cells / 2)
        ways["a cell of half the length"] = [graph, small]

    def compare_trajectory(visited_graphs: Sequence[AtomGraph], part: str) -> dict[str, Pair]:
        given = [{**inputs, **subject.module_operands(reading.arguments_for(one))} for one in visited_graphs]
        wanted = _fresh_results("it", partial(subject.detached_results, subject.fresh_copy(), given[-1]))
        used = subject.fresh_copy()
        for one in given:
            last = _fresh_results("points on their way", partial(subject.detached_results, used, one))
        return prefix_part_names(part, pair_results(last, wanted))

    found = {part: partial(compare_trajectory, way) for part, way in ways.items()}
    return {**found, "one atom draws near": partial(_compare_approach_of_last_atom, subject, inputs)}


def _compare_approach_of_last_atom(subject: Subject, inputs: TensorsByName, part: str) -> dict[str, Pair]:
    # After a call with the last atom beyond the reach of others, by less or more than a skin, and then within.
    def results(network: nn.Module, graph: AtomGraph) -> TensorsByName:
        given = {**inputs, **subject.module_operands(require_reading(subject).arguments_for(graph))}
        return _fresh_results("an atom beyond others", partial(subject.detached_results, network, given))

    departures, arrivals = move_last_atom_beyond_and_within_reach(subject)
    wanted, got = [results(subject.fresh_copy(), graph) for graph in arrivals], []
    for begin in departures:
        used = subject.fresh_copy()
        results(used, begin)
        got += [results(used, graph) for graph in arrivals]
    found, expected = (
        {name: torch.stack([one[name] for one in calls]) for name in wanted[0]}
        for calls in (got, wanted * len(departures))
    )
    return prefix_part_names(part, pair_results(found, expected))


def move_last_atom_beyond_and_within_reach(subject: Subject) -> tuple[list[AtomGraph], list[AtomGraph]]:
    """Graphs with the last atom beyond the reach of others, and graphs with it within."""
    reading = require_reading(subject)
    graph, way = reading.graph, torch.tensor(_WAY, dtype=torch.float64)
    if int((graph.batch == graph.batch[-1]).sum()) < 2:
        raise NotCompared("one atom alone has no neighbours")
    if reading.periodic:  # images are near wherever the atom is
        step = shortest_distance(graph) * way
        return [_with_last_atom(graph, graph.points[-1] + skin * step) for skin in _SKINS], [graph]
    others = graph.points[(graph.batch == graph.batch[-1]).nonzero().flatten()[:-1]]
    edge = others[(others @ way).argmax()]  # beyond this atom, none is nearer
    near, far = _bounds_of_last_atoms_reach(subject, edge, way)
    starts = [_with_last_atom(graph, edge + (far + skin * near) * way) for skin in _SKINS]
    return starts, [_with_last_atom(graph, edge + inside * near * way) for inside in _INSIDE]


def _with_last_atom(graph: AtomGraph, position: Tensor) -> AtomGraph:
    return replace(graph, points=torch.cat([graph.points[:-1], position[None]]))


def _bounds_of_last_atoms_reach(subject: Subject, edge: Tensor, direction: Tensor) -> tuple[float, float]:
    # distances between which the last atom comes to know of others, by copies that remember nothing
    reading = require_reading(subject)

    def results_at(distance: float) -> Tensor:
        graph, exact = _with_last_atom(reading.graph, edge + distance * direction), subject.in_float64()
        found = call_on_graph(exact, graph)
        numbers = [y for name, y in found.items() if subject.result_frame(name).axes == 0] or list(found.values())
        return torch.cat([y.flatten() for y in numbers])

    near, far = shortest_distance(reading.graph), _LONGEST * shortest_distance(reading.graph)
    apart = results_at(far)
    for _ in range(_HALVINGS):
        middle = (near * far) ** 0.5
        beyond = torch.allclose(results_at(middle), apart, rtol=_SAME, atol=_SAME)
        near, far = (near, middle) if beyond else (middle, far)
    return near, far


def _other_graph_cases(subject: Subject, inputs: TensorsByName) -> dict[str, Callable[[str], Mapping[str, Outcome]]]:
    # After a call of another graph, and one with fewer edges: as a fresh copy, of each.
    reading = subject.reading
    if not isinstance(reading, Reading) or reading.graph.ends is None or reading.unclear:
        return {}
    used = subject.fresh_copy()

    def compare_graph(graph: AtomGraph, part: str) -> dict[str, Pair]:
        given = {**inputs, **subject.module_operands(reading.arguments_for(graph))}
        wanted = _fresh_results("it", partial(subject.detached_results, subject.fresh_copy(), given))
        straight = subject.detached_results(used, inputs)
        found = prefix_part_names(part, pair_results(subject.detached_results(used, given), wanted))
        again = pair_results(subject.detached_results(used, inputs), straight)
        return found | prefix_part_names(f"after {part}", again)

    graphs = {"another graph": strain_and_shrink_graph(reading.graph), "fewer edges": keep_shorter_edges(reading.graph)}
    return {part: partial(compare_graph, graph) for part, graph in graphs.items()}


def _compare_after_parameter_step(
    subject: Subject, inputs: TensorsByName, mode: bool | None, part: str
) -> dict[str, Pair]:
    # After a call and a step of its parameters: as a fresh copy with those, as given or in a mode.
    used, fresh = (copy if mode is None else copy.train(mode) for copy in (subject.fresh_copy(), subject.fresh_copy()))

    def stepped_results() -> TensorsByName:
        subject.detached_results(used, clone_tensors(inputs))
        for network in (used, fresh):
            _step_parameters(network)
        return subject.detached_results(fresh, clone_tensors(inputs))

    wanted = _fresh_results("them", stepped_results)
    return prefix_part_names(part, pair_results(subject.detached_results(used, clone_tensors(inputs)), wanted))


def _step_parameters(network: nn.Module) -> None:
    # Change all parameters in their memory, as an optimizer does.
    with torch.no_grad():
        for p in network.parameters():
            if p.is_floating_point() and p.numel():
                p.add_(MOVE * p.abs().max() * torch.linspace(-1.0, 0.5, p.numel()).reshape(p.shape).to(p))
