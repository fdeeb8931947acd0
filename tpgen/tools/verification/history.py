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
from tpgen.tools.verification.findings import GotAndExpected, GotAndExpectedOrReason, NotCompared
from tpgen.tools.verification.graphs import AtomGraph, keep_half_of_edges_twice, reverse_edges, shortest_distance
from tpgen.tools.verification.laws import GotAndExpectedByPart, pair_results, prefix_part_names
from tpgen.tools.verification.potentials import stretch_operands
from tpgen.tools.verification.reading import ParsedGraphInputs
from tpgen.tools.verification.subject import (
    ModuleUnderTest,
    TensorsByName,
    clone_tensors,
    copy_detached_in_float64,
    format_leaf_path,
)
from tpgen.tools.verification.surroundings import UNTRACKED
from tpgen.tools.verification.systems import (
    call_on_graph,
    keep_shorter_edges,
    require_parsed_graph_inputs,
    strain_and_shrink_graph,
)

_CompareFunction = Callable[[str], Mapping[str, GotAndExpectedOrReason]]  # by the name of the part
_CALLS = 12
_ROOM, _PLACES = 2**22, count(1)  # entries, and places in them
MOVE, STEP = 1e-2, 0.1  # of other inputs, and of other parameters, relative to the largest entry
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


def compare_after_other_calls(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare a network's results after other calls with a fresh copy's."""
    first, found = subject.copy_call_arguments(), dict[str, GotAndExpectedOrReason]()
    others = _make_inputs_of_first_and_second_call_by_case(subject, first)
    cases: dict[str, _CompareFunction] = {
        **{part: partial(_compare_many_calls_with_fresh_copy, subject, *given) for part, given in others.items()},
        "without gradients": partial(torch.no_grad()(_compare_many_calls_with_fresh_copy), subject, *others[OTHER]),
        **_make_functions_that_compare_after_other_graphs(subject, first),
        **_make_comparisons_after_moves(subject, first),
        "new weights": partial(_compare_after_parameter_step, subject, first, None),
    }
    if any(module.training for module in subject.module.modules()):
        cases["new weights in evaluation"] = partial(_compare_after_parameter_step, subject, first, False)
    untracked: dict[str, _CompareFunction] = {
        f"{part}, without gradients": torch.no_grad()(cases[part]) for part in cases if part.startswith("new weights")
    }
    untracked["after calls without gradients"] = partial(_compare_gradients_after_no_grad_call, subject, first)
    for part, compared in cases.items():
        try:
            found |= compared(part)
        except NotCompared as why:
            found[part] = str(why)
    for part, compared in untracked.items():
        with suppress(NotCompared):  # why is said above
            found |= compared(part)
    return found


def _require_finite_results(input_description: str, call: Callable[[], TensorsByName]) -> TensorsByName:
    # Results of a fresh copy.  Raises `NotCompared` where it does not take its inputs, or gives no numbers.
    try:
        found = call()
    except Exception as error:
        own = any(said in str(error) for said in UNTRACKED)
        why = OWN_GRADIENTS if own else f"the network does not take {input_description}: {type(error).__name__}"
        raise NotCompared(why) from error
    if not all(bool(y.isfinite().all()) for y in found.values()):
        raise NotCompared("a fresh copy gives no numbers")
    return found


def _compare_many_calls_with_fresh_copy(
    subject: ModuleUnderTest, inputs: TensorsByName, other_inputs: TensorsByName, part_name: str
) -> dict[str, GotAndExpectedOrReason]:
    # After many calls, of other inputs in the same memory, and back: as a fresh copy.
    wanted = [
        _require_finite_results(
            "them", partial(subject.detached_results, subject.make_fresh_copy(), _copy_to_unused_addresses(given))
        )
        for given in (inputs, other_inputs)
    ]
    found: dict[str, GotAndExpectedOrReason] = prefix_part_names(
        f"{part_name}, what was returned", _compare_returned_tensors_after_next_call(subject, inputs, other_inputs)
    )
    used, held = subject.make_fresh_copy(), clone_tensors(inputs)
    for _ in range(_CALLS):
        last = subject.call(used, held)
    found |= prefix_part_names(f"{part_name}, {_CALLS} calls", pair_results(copy_detached_in_float64(last), wanted[0]))
    found |= prefix_part_names("inputs after calls", {n: (held[n].double(), x.double()) for n, x in inputs.items()})
    for given, expected, when in ((other_inputs, wanted[1], "the same memory"), (inputs, wanted[0], "and back")):
        with torch.no_grad():
            for name, x in given.items():
                held[name].copy_(x)
        found |= prefix_part_names(f"{part_name}, {when}", pair_results(subject.detached_results(used, held), expected))
        if given is other_inputs:
            own = {_storage_address(x) for x in held.values()}
            kept = {name: y for name, y in last.items() if _storage_address(y) not in own}
            expected = {name: wanted[0][name] for name in kept}
            found |= prefix_part_names(
                f"{part_name}, a result that was kept", pair_results(copy_detached_in_float64(kept), expected)
            )
    return found


def _copy_to_unused_addresses(inputs: TensorsByName) -> TensorsByName:
    # Copies at addresses that no call has seen: a cache by address, which copies of a module share, knows none of them.
    found = {}
    for name, x in inputs.items():
        behind = 16 * next(_PLACES)
        room = x.new_empty(_ROOM + behind + x.numel())  # large enough to be mapped; most of it is never touched
        found[name] = room[behind : behind + x.numel()].view(x.shape).copy_(x)
    return found


def _compare_returned_tensors_after_next_call(
    subject: ModuleUnderTest, inputs: TensorsByName, other_inputs: TensorsByName
) -> dict[str, GotAndExpected]:
    # The numbers in what a call has returned, its tuples and dicts, before another call and after.
    used, seen = subject.make_fresh_copy(), list[Any]()
    with used.register_forward_hook(lambda _module, _given, result: seen.append(result)):
        subject.detached_results(used, clone_tensors(inputs))
        before = _collect_tensors_of_returned_value(seen)
        subject.detached_results(used, clone_tensors(other_inputs))
    after = _collect_tensors_of_returned_value(seen)
    return {name: (after.get(name, x.new_zeros(0)), x) for name, x in before.items()}


def _collect_tensors_of_returned_value(returned: Sequence[Any]) -> TensorsByName:
    leaves = pytree.tree_flatten_with_path(opened_fields(returned[0]))[0] if returned else []
    return copy_detached_in_float64({format_leaf_path(path): x for path, x in leaves if isinstance(x, Tensor)})


def _compare_gradients_after_no_grad_call(
    subject: ModuleUnderTest, inputs: TensorsByName, part_name: str
) -> dict[str, GotAndExpectedOrReason]:
    # Results and gradients of parameters, after a call without gradients: as a fresh copy.
    wanted = _require_finite_results(
        "them", partial(_compute_results_and_parameter_gradients, subject, subject.make_fresh_copy(), inputs)
    )
    used = subject.make_fresh_copy()
    with torch.no_grad():
        _require_finite_results("them", partial(subject.detached_results, used, clone_tensors(inputs)))
    try:
        found = _compute_results_and_parameter_gradients(subject, used, inputs)
    except Exception as error:
        return {part_name: error}
    return {**prefix_part_names(part_name, pair_results(found, wanted))}


def _compute_results_and_parameter_gradients(
    subject: ModuleUnderTest, module: nn.Module, inputs: TensorsByName
) -> TensorsByName:
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


def _make_inputs_of_first_and_second_call_by_case(
    subject: ModuleUnderTest, inputs: TensorsByName
) -> dict[str, tuple[TensorsByName, TensorsByName]]:
    # for each part, inputs of the first and second call: moved numbers, stretched points, other integers, other edges
    floating = {name: x for name, x in inputs.items() if x.is_floating_point() and x.numel()}
    draw = draw_normal_tensors(floating, seed=21)
    moved = {name: x + (MOVE * x.abs().max() * draw[name]).to(x) for name, x in floating.items()}
    found = {OTHER: (inputs, {**inputs, **moved})}
    if subject.points is not None:
        stretched = subject.move_operands_to_module(stretch_operands(subject, FURTHER))
        found["points from further apart"] = {**inputs, **stretched}, inputs
    for part, mixed in (
        ("other indices", _make_changed_integer_arguments(subject, inputs)),
        ("other edges", _make_arguments_with_half_of_edges_twice(subject, inputs)),
    ):
        found |= {part: (inputs, {**inputs, **mixed})} if mixed else {}
    return found


def _make_arguments_with_half_of_edges_twice(subject: ModuleUnderTest, inputs: TensorsByName) -> TensorsByName:
    # As many edges, half of them twice: atoms have other numbers of neighbours.
    parsed = subject.parsed
    if not isinstance(parsed, ParsedGraphInputs) or parsed.graph.ends is None or parsed.unclear:
        return {}
    try:
        found = subject.move_operands_to_module(parsed.make_arguments_for_graph(keep_half_of_edges_twice(parsed.graph)))
    except NotCompared:
        return {}
    same = found.keys() >= inputs.keys() and all(found[name].shape == x.shape for name, x in inputs.items())
    return {name: found[name] for name in inputs} if same else {}


def _make_changed_integer_arguments(subject: ModuleUnderTest, inputs: TensorsByName) -> TensorsByName:
    # Other integers; where edges are known, with their images, and each graph keeps its atoms.
    whole = {name: x for name, x in inputs.items() if not x.is_floating_point() and x.numel()}
    parsed = subject.parsed
    if not isinstance(parsed, ParsedGraphInputs):
        return {name: x.flip(-1) if x.dim() > 1 else x.min() + x.max() - x for name, x in whole.items()}
    mixed = {name: _reverse_atom_labels_and_change_one(x) for name, x in whole.items() if parsed.roles[name] == "atoms"}
    if parsed.graph.ends is None or parsed.unclear:
        return mixed
    try:
        turned = subject.move_operands_to_module(parsed.make_arguments_for_graph(reverse_edges(parsed.graph)))
    except NotCompared:  # of neighbours in rows without an empty place
        return mixed
    moved = {name: turned[name] for name in inputs if parsed.roles[name] not in ("atoms", "points", "cell")}
    return mixed | moved if all(x.shape == inputs[name].shape for name, x in moved.items()) else mixed


def _reverse_atom_labels_and_change_one(atom_labels: Tensor) -> Tensor:
    # In another order, and one atom of another kind: of numbers that all differ, as names of atoms do, the order alone.
    found = atom_labels.flip(0)
    if atom_labels.dim() == 1 and 1 < len(atom_labels.unique()) < len(atom_labels):
        found[0] = atom_labels.max() if found[0] < atom_labels.max() else atom_labels.min()
    return found


def _make_comparisons_after_moves(subject: ModuleUnderTest, inputs: TensorsByName) -> dict[str, _CompareFunction]:
    # Of a network that finds its own edges, after calls of points on their way, and of a larger cell: as a fresh copy.
    parsed = subject.parsed
    if not isinstance(parsed, ParsedGraphInputs) or parsed.graph.ends is not None or parsed.unclear:
        return {}
    graph, axis = parsed.graph, draw_normal_tensors({"": parsed.graph.points}, seed=31)[""]
    step = WALK * shortest_distance(graph) * axis / axis.norm(dim=1, keepdim=True)
    ways = {"a slow walk": [replace(graph, points=graph.points + n * step) for n in range(_STEPS)]}
    aside = graph.points.clone()
    away = 1e-3 * axis[0] + aside[0] - aside[graph.batch == graph.batch[0]].mean(0)
    aside[0] += LEAP * shortest_distance(graph) * away / away.norm()
    ways["one atom comes back"] = [replace(graph, points=aside), graph]
    if parsed.periodic and graph.cells is not None:
        small = replace(graph, points=graph.points / 2, cells=graph.cells / 2)
        ways["a cell of half the length"] = [graph, small]

    def compare_last_call_with_fresh_copy(graphs: Sequence[AtomGraph], part_name: str) -> dict[str, GotAndExpected]:
        given = [{**inputs, **subject.move_operands_to_module(parsed.make_arguments_for_graph(one))} for one in graphs]
        wanted = _require_finite_results("it", partial(subject.detached_results, subject.make_fresh_copy(), given[-1]))
        used = subject.make_fresh_copy()
        for one in given:
            last = _require_finite_results("points on their way", partial(subject.detached_results, used, one))
        return prefix_part_names(part_name, pair_results(last, wanted))

    found = {part: partial(compare_last_call_with_fresh_copy, way) for part, way in ways.items()}
    return {**found, "one atom draws near": partial(_compare_approaching_last_atom_with_fresh_copy, subject, inputs)}


def _compare_approaching_last_atom_with_fresh_copy(
    subject: ModuleUnderTest, inputs: TensorsByName, part_name: str
) -> dict[str, GotAndExpected]:
    # After a call with the last atom beyond the reach of others, by less or more than a skin, and then within.
    def call_network_on_graph(network: nn.Module, graph: AtomGraph) -> TensorsByName:
        given = {
            **inputs,
            **subject.move_operands_to_module(require_parsed_graph_inputs(subject).make_arguments_for_graph(graph)),
        }
        return _require_finite_results("an atom beyond others", partial(subject.detached_results, network, given))

    departures, arrivals = make_graphs_with_last_atom_beyond_and_within_cutoff(subject)
    wanted, got = [call_network_on_graph(subject.make_fresh_copy(), graph) for graph in arrivals], []
    for begin in departures:
        used = subject.make_fresh_copy()
        call_network_on_graph(used, begin)
        got += [call_network_on_graph(used, graph) for graph in arrivals]
    found, expected = (
        {name: torch.stack([one[name] for one in calls]) for name in wanted[0]}
        for calls in (got, wanted * len(departures))
    )
    return prefix_part_names(part_name, pair_results(found, expected))


def make_graphs_with_last_atom_beyond_and_within_cutoff(
    subject: ModuleUnderTest,
) -> tuple[list[AtomGraph], list[AtomGraph]]:
    """Graphs with the last atom beyond, and graphs with it within, the cutoff distance."""
    parsed = require_parsed_graph_inputs(subject)
    graph, way = parsed.graph, torch.tensor(_WAY, dtype=torch.float64)
    if int((graph.batch == graph.batch[-1]).sum()) < 2:
        raise NotCompared("one atom alone has no neighbours")
    if parsed.periodic:  # images are near wherever the atom is
        step = shortest_distance(graph) * way
        return [_move_last_atom(graph, graph.points[-1] + skin * step) for skin in _SKINS], [graph]
    others = graph.points[(graph.batch == graph.batch[-1]).nonzero().flatten()[:-1]]
    edge = others[(others @ way).argmax()]  # beyond this atom, none is nearer
    near, far = _bisect_cutoff_distance_of_last_atom(subject, edge, way)
    starts = [_move_last_atom(graph, edge + (far + skin * near) * way) for skin in _SKINS]
    return starts, [_move_last_atom(graph, edge + inside * near * way) for inside in _INSIDE]


def _move_last_atom(graph: AtomGraph, position: Tensor) -> AtomGraph:
    return replace(graph, points=torch.cat([graph.points[:-1], position[None]]))


def _bisect_cutoff_distance_of_last_atom(
    subject: ModuleUnderTest, origin: Tensor, direction: Tensor
) -> tuple[float, float]:
    # distances between which the last atom comes to know of others, by copies that remember nothing
    parsed = require_parsed_graph_inputs(subject)

    def results_with_last_atom_at(distance: float) -> Tensor:
        graph, exact = (_move_last_atom(parsed.graph, origin + distance * direction), subject.with_float64_copy())
        found = call_on_graph(exact, graph)
        numbers = [y for name, y in found.items() if subject.result_rule(name).axes == 0] or list(found.values())
        return torch.cat([y.flatten() for y in numbers])

    near, far = shortest_distance(parsed.graph), _LONGEST * shortest_distance(parsed.graph)
    apart = results_with_last_atom_at(far)
    for _ in range(_HALVINGS):
        middle = (near * far) ** 0.5
        beyond = torch.allclose(results_with_last_atom_at(middle), apart, rtol=_SAME, atol=_SAME)
        near, far = (near, middle) if beyond else (middle, far)
    return near, far


def _make_functions_that_compare_after_other_graphs(
    subject: ModuleUnderTest, inputs: TensorsByName
) -> dict[str, _CompareFunction]:
    # After a call of another graph, and one with fewer edges: as a fresh copy, of each.
    parsed = subject.parsed
    if not isinstance(parsed, ParsedGraphInputs) or parsed.graph.ends is None or parsed.unclear:
        return {}
    used = subject.make_fresh_copy()

    def compare_used_network_with_fresh_copy(graph: AtomGraph, part_name: str) -> dict[str, GotAndExpected]:
        given = {**inputs, **subject.move_operands_to_module(parsed.make_arguments_for_graph(graph))}
        wanted = _require_finite_results("it", partial(subject.detached_results, subject.make_fresh_copy(), given))
        straight = subject.detached_results(used, inputs)
        found = prefix_part_names(part_name, pair_results(subject.detached_results(used, given), wanted))
        again = pair_results(subject.detached_results(used, inputs), straight)
        return found | prefix_part_names(f"after {part_name}", again)

    graphs = {"another graph": strain_and_shrink_graph(parsed.graph), "fewer edges": keep_shorter_edges(parsed.graph)}
    return {part: partial(compare_used_network_with_fresh_copy, graph) for part, graph in graphs.items()}


def _compare_after_parameter_step(
    subject: ModuleUnderTest, inputs: TensorsByName, training: bool | None, part_name: str
) -> dict[str, GotAndExpected]:
    # After a call and a step of its parameters: as a fresh copy with those, as given or in a mode.
    used, fresh = (
        copy if training is None else copy.train(training)
        for copy in (subject.make_fresh_copy(), subject.make_fresh_copy())
    )

    def compute_fresh_results_after_parameter_step() -> TensorsByName:
        subject.detached_results(used, clone_tensors(inputs))
        for network in (used, fresh):
            _perturb_parameters_in_place(network)
        return subject.detached_results(fresh, clone_tensors(inputs))

    wanted = _require_finite_results("them", compute_fresh_results_after_parameter_step)
    return prefix_part_names(part_name, pair_results(subject.detached_results(used, clone_tensors(inputs)), wanted))


def _perturb_parameters_in_place(network: nn.Module) -> None:
    # Change all parameters in their memory, as an optimizer does.
    with torch.no_grad():
        for p in network.parameters():
            if p.is_floating_point() and p.numel():
                p.add_(STEP * p.abs().max() * torch.linspace(-1.0, 0.5, p.numel()).reshape(p.shape).to(p))
