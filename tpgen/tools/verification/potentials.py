"""Laws of potentials."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from tpgen.tools.verification.derivatives import compare_hessian_symmetry, draw_normal_tensors
from tpgen.tools.verification.findings import GotAndExpected, GotAndExpectedOrReason
from tpgen.tools.verification.graphs import AtomGraph, select_edges, shortest_distance
from tpgen.tools.verification.laws import GotAndExpectedByPart, prefix_part_names
from tpgen.tools.verification.reading import ParsedGraphInputs
from tpgen.tools.verification.subject import ROLES, TRANSFORMATION_RULES, ModuleUnderTest, TensorsByName, last_dict_key

_DIRECTIONS = 4
APPROACH = 1 / 3  # of the shortest edge: how near an atom is brought to another
SHORTEST, LONGEST, NOISE = 1e-4, 1e-2, 1e-8  # of a step, and what rounding may make of the slope
SHORTER = 3.0  # how many times another step is shorter
_WEIGHTS = {1: 3 / 4, 2: -3 / 20, 3: 1 / 60}  # of central differences of sixth order
ASIDE = 5e-2  # of a trajectory's beginning, where forces vanish
DRIFT = 1e-3  # of the energy that a trajectory exchanges: what it may gain or lose
FINER = (1, 4, 16)  # how many times shorter the steps are that tell whether a drift comes of them
FALLS = 0.5  # to what share of itself such a drift falls at least
COLLAPSE, FEW = 10.0, 4  # times the first largest force, and steps that are enough to compare
FALLING = f"forces grow to more than {COLLAPSE:.0f} times those of the first step, as where points fall into each other"
STEPS, REACH = 24, 1e-3  # of a trajectory: steps, and how far the largest force moves a point in the first
SPACE = ("points", "cell", "vectors")
STRAINED = (TRANSFORMATION_RULES["cartesian_points"], TRANSFORMATION_RULES["cartesian_vectors"])
STRETCH, GRID, HALVINGS, PLACES = 2.0, 96, 24, 2  # how far the smooth law stretches, and how closely it looks where
UNITS, OF_SLOPES = 4096, 64  # of the last place: of sums of many edges and layers, and of one difference of energies
LONG, ALIKE = 8.0, 1e-6  # a stretch beyond any cutoff, and the share of the energy of edges that may be left there
NO_CUTOFF = "edges {:.0f} times as long still change the energy: no cutoff ends them, so leave longer ones out"
STRETCHES = (-0.1, 0.1)  # how the energy that edges have is seen, without that of atoms alone
SLOPE = "slope"
# Results that are second derivatives of an energy.
_SYMMETRIC = ("polarizability", "alpha", "quadrupole", "dielectric", "dielectric_tensor")


def compare_forces(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare forces with energy differences, also with two atoms close."""
    exact = subject.with_float64_copy()
    found = {"": _compare_forces_with_energy_differences(exact)}
    if (pair := _find_atom_and_shortest_edge_to_atom(exact)) is not None:
        atom, edge = pair
        found["two atoms close"] = _compare_forces_with_energy_differences(
            replace(exact, given=_move_atom_in_operands(exact, atom, (APPROACH - 1.0) * edge))
        )
    return found


def _compare_forces_with_energy_differences(subject: ModuleUnderTest) -> GotAndExpected:
    name = subject.points or ""
    points = subject.given[name]
    own = subject(subject.given)[subject.forces or ""]
    got, expected = [], []

    def energy_at_step(direction: Tensor, step: float) -> Tensor:
        return _total_energy(subject, subject({**subject.given, name: points + step * direction}))

    for seed in range(_DIRECTIONS):
        direction = draw_normal_tensors({name: points}, seed=300 + seed)[name]
        got.append((own * direction).sum().detach())
        expected.append(-differentiate_at_zero(partial(energy_at_step, direction), got[-1], -got[-1]))
    return torch.stack(got), torch.stack(expected)


def _find_atom_and_shortest_edge_to_atom(subject: ModuleUnderTest) -> tuple[int, Tensor] | None:
    if not isinstance(subject.parsed, ParsedGraphInputs) or len(subject.parsed.graph.points) < 2:
        return None
    graph = subject.parsed.graph
    if graph.ends is None:
        first, second = torch.triu_indices(len(graph.points), len(graph.points), 1)
        edges = graph.points[second] - graph.points[first]
    else:
        other = graph.ends[0] != graph.ends[1]
        second, edges = graph.ends[1][other], graph.vectors[other]
    if not len(edges):
        return None
    shortest = int(edges.norm(dim=-1).argmin())
    return int(second[shortest]), edges[shortest]


def _move_atom_in_operands(subject: ModuleUnderTest, atom: int, displacement: Tensor) -> TensorsByName:
    points = subject.given[subject.points or ""].clone()
    points[atom] += displacement
    return {**subject.given, subject.points or "": points}


def differentiate_at_zero(
    function: Callable[[float], Tensor], derivative_scale: Tensor, claimed_derivative: Tensor | None = None
) -> Tensor:
    """Differentiate a function at 0 by differences; steps shorten while ``claimed_derivative`` differs.

    >>> found = differentiate_at_zero(lambda t: torch.tensor(2.0 + t, dtype=torch.float64).exp(), torch.tensor(7.0))
    >>> round(found.item(), 6) == round(torch.tensor(2.0, dtype=torch.float64).exp().item(), 6)
    True
    """
    rounding = torch.finfo(torch.float64).eps * float(function(0.0).abs())
    step = min(max(rounding / (NOISE * max(float(derivative_scale.abs()), 1e-12)), SHORTEST), LONGEST)
    found = _sixth_order_difference(function, step)
    while (
        claimed_derivative is not None
        and float((found - claimed_derivative).abs()) > NOISE * float(derivative_scale.abs())
        and step > SHORTEST
    ):
        step = max(step / SHORTER, SHORTEST)
        found = min(found, _sixth_order_difference(function, step), key=lambda x: float((x - claimed_derivative).abs()))
    return found


def _sixth_order_difference(function: Callable[[float], Tensor], step: float) -> Tensor:
    return torch.stack([w * (function(n * step) - function(-n * step)) for n, w in _WEIGHTS.items()]).sum() / step


def _total_energy(subject: ModuleUnderTest, results: TensorsByName) -> Tensor:
    return results[subject.energy or ""].sum().detach()


def compare_energy_conservation(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare kinetic energy gained with potential energy lost on a trajectory."""
    exact, before = subject.with_float64_copy(), float("inf")
    for finer in FINER:
        gained, lost, pushed = _extrapolated_kinetic_gains_potential_losses_and_forces(exact, finer)
        # a drift of the steps falls with their length
        drift = float((gained - lost).abs().max())
        if drift <= DRIFT * float(lost.abs().max()):
            return {"": (gained, lost)}
        if drift > FALLS * before:
            break
        before = drift
    # no step is short enough for points that fall into each other: the comparison ends before
    calm = int(((pushed > COLLAPSE * pushed[0]).cumsum(0) == 0).sum())
    found: dict[str, GotAndExpectedOrReason] = {"": (gained[:calm], lost[:calm])} if calm >= FEW else {}
    return found | ({"later": FALLING} if calm < STEPS else {})


def _extrapolated_kinetic_gains_potential_losses_and_forces(
    subject: ModuleUnderTest, step_divisor: int
) -> tuple[Tensor, Tensor, Tensor]:
    (gain, loss, push), (gained, lost, pushed) = (
        _verlet_kinetic_gains_potential_losses_and_forces(subject, 2 * step_divisor),
        _verlet_kinetic_gains_potential_losses_and_forces(subject, step_divisor),
    )
    return (4 * gain - gained) / 3, (4 * loss - lost) / 3, torch.maximum(push, pushed)


def _verlet_kinetic_gains_potential_losses_and_forces(
    subject: ModuleUnderTest, step_divisor: int
) -> tuple[Tensor, Tensor, Tensor]:
    x = subject.given[subject.points or ""].clone()
    energy, force = _compute_energy_and_forces_at_points(subject, x)
    if float(force.abs().max()) <= subject.floors.get(subject.forces or "", 0.0):  # there is no way down from here
        x = x + ASIDE * draw_normal_tensors({"x": x}, seed=401)["x"]
        energy, force = _compute_energy_and_forces_at_points(subject, x)
    pace = (REACH / force.abs().max().clamp(min=1e-12)).sqrt()  # in which the largest force moves a point that far
    v = REACH / pace * draw_normal_tensors({"v": x}, seed=400)["v"]
    kinetic, potential, step = v.square().sum() / 2, energy, pace / step_divisor
    gained, lost, pushed = [], [], []
    for number in range(STEPS * step_divisor):
        v = v + 0.5 * step * force
        x = x + step * v
        energy, force = _compute_energy_and_forces_at_points(subject, x)
        v = v + 0.5 * step * force
        if (number + 1) % step_divisor == 0:
            gained.append(v.square().sum() / 2 - kinetic)
            lost.append(potential - energy)
            pushed.append(force.abs().max())
    return torch.stack(gained), torch.stack(lost), torch.stack(pushed)


def _compute_energy_and_forces_at_points(subject: ModuleUnderTest, points: Tensor) -> tuple[Tensor, Tensor]:
    return compute_energy_and_forces(subject, {**subject.given, subject.points or "": points})


def compute_energy_and_forces(subject: ModuleUnderTest, operands: TensorsByName) -> tuple[Tensor, Tensor]:
    """Compute energy and forces, missing forces by autograd."""
    name = subject.points or ""
    if subject.forces is not None:
        found = subject(operands)
        return _total_energy(subject, found), found[subject.forces].detach()
    x = operands[name].detach().requires_grad_()
    energy = subject({**operands, name: x})[subject.energy or ""].sum()
    (slope,) = torch.autograd.grad(energy, x)
    return energy.detach(), -slope


def _apply_strain_to_operands(subject: ModuleUnderTest, strain: Tensor) -> TensorsByName:
    by = torch.eye(3, dtype=torch.float64) + strain
    roles = subject.parsed.roles if isinstance(subject.parsed, ParsedGraphInputs) else {}
    bent = [n for n, how in subject.turns.items() if how in STRAINED and (how.moves or roles.get(n) in SPACE)]
    return {name: x @ by.T if name in bent else x for name, x in subject.given.items()}


def compare_second_derivatives(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare Hessian products in both orders, and polarizabilities and the like with transposes."""
    tensors = {
        name: (y, y.mT)
        for name, y in subject(subject.given).items()
        if last_dict_key(name).lower() in _SYMMETRIC
        and subject.result_rule(name) is TRANSFORMATION_RULES["cartesian_tensors"]
    }
    return {**compare_hessian_symmetry(subject), **tensors}


def compare_stress(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare stress times volume, and minus the virial, with energy slopes by strain."""
    exact = subject.with_float64_copy()
    found, results = dict[str, GotAndExpectedOrReason](), exact(exact.given)
    names = [name for name in (exact.stress, exact.virial) if name is not None]
    for name in names:
        outcomes = _compare_stress_or_virial_with_strain_slopes(exact, name, results[name].detach())
        found |= prefix_part_names(name if len(names) > 1 else "", outcomes)
    return found


def _compare_stress_or_virial_with_strain_slopes(
    subject: ModuleUnderTest, name: str, tensors: Tensor
) -> GotAndExpectedByPart:
    if tensors.shape[-2:] != (3, 3):
        return {"": f"{name} has shape {tuple(tensors.shape)}, where (3, 3) or one for each graph is compared"}
    each, factors = tensors.reshape(-1, 3, 3), -torch.ones(1, dtype=torch.float64)
    if name == subject.stress:
        cell = subject.given.get(subject.cell or "")
        if cell is None or cell.shape[-1] != 3 or cell.numel() % 9:
            return {"": "there is no cell among the inputs, whose volume the stress is for"}
        factors = torch.linalg.det(cell.reshape(-1, 3, 3)).abs()
    got = (factors.reshape(-1, 1, 1) * each).sum(0)
    return {"": (got, differentiate_energy_by_strain(subject, got)), "symmetric": (each, each.transpose(-1, -2))}


def differentiate_energy_by_strain(subject: ModuleUnderTest, claimed_derivative: Tensor) -> Tensor:
    """Differentiate the energy by strain, to (3, 3); ``claimed_derivative`` sets step sizes."""
    found = torch.zeros(3, 3, dtype=torch.float64)
    for i in range(3):
        for j in range(i + 1):
            along = torch.zeros(3, 3, dtype=torch.float64)
            along[i, j] += 0.5
            along[j, i] += 0.5
            found[i, j] = found[j, i] = differentiate_at_zero(
                partial(_compute_energy_under_strain, subject, along),
                claimed_derivative.abs().max(),
                claimed_derivative[i, j],
            )
    return found


def _compute_energy_under_strain(subject: ModuleUnderTest, direction: Tensor, strain_size: float) -> Tensor:
    return _total_energy(subject, subject(_apply_strain_to_operands(subject, strain_size * direction)))


def check_smoothness(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Look for jumps of energy and forces under stretching and on an atom's path."""
    exact = subject.with_float64_copy()
    stretches = torch.linspace(1.0, STRETCH, GRID, dtype=torch.float64)
    jumps = _find_energy_and_force_jumps_along_path(exact, partial(stretch_operands, exact), stretches)
    found: dict[str, GotAndExpectedOrReason] = {**jumps, **_remark_if_long_edges_change_energy(exact)}
    if (pair := _find_atom_and_shortest_edge_to_atom(exact)) is None:
        return found
    way = torch.linspace(0.0, 1.0, GRID // 2, dtype=torch.float64)
    of_atom = _find_energy_and_force_jumps_along_path(
        exact, partial(_move_atom_in_operands_along_path, exact, *pair), way
    )
    return found | prefix_part_names("one atom", of_atom)


def _remark_if_long_edges_change_energy(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    parsed = subject.parsed
    if not isinstance(parsed, ParsedGraphInputs) or parsed.graph.ends is None:
        return {}
    graph, ends = parsed.graph, parsed.graph.ends
    of_first = ends.eq(0).sum(0) == 1  # an edge from the first atom to an image of this atom keeps its length
    longer = replace(graph, points=LONG * graph.points, cells=None if graph.cells is None else LONG * graph.cells)
    far = graph.points.clone()
    far[0] += LONG * torch.cat([(graph.points - graph.points[0]).norm(dim=-1), graph.vectors.norm(dim=-1)]).max()

    def energy_with_edges(moved_graph: AtomGraph, kept_edges: Tensor) -> Tensor:
        return _total_energy(subject, subject(parsed.make_arguments_for_graph(select_edges(moved_graph, kept_edges))))

    with suppress(Exception):  # it may need edges
        every = torch.ones_like(of_first)
        least = ALIKE * (energy_with_edges(graph, every) - energy_with_edges(longer, every)).abs()
        for moved, left in ((replace(graph, points=far), ~of_first), (longer, ~every)):
            if (energy_with_edges(moved, every) - energy_with_edges(moved, left)).abs() > least:
                return {"long edges": NO_CUTOFF.format(LONG)}
    return {}


def _find_energy_and_force_jumps_along_path(
    subject: ModuleUnderTest, operands_at: Callable[[float], TensorsByName], grid_points: Tensor
) -> dict[str, GotAndExpected]:
    # bisection of the intervals that bend most leaves the jump, near zero for a continuous curve
    def energy_and_forces_at(fraction: float) -> tuple[Tensor, ...]:
        return tuple(x.flatten() for x in compute_energy_and_forces(subject, operands_at(fraction)))

    grid = grid_points.tolist()
    there = [energy_and_forces_at(place) for place in grid]
    found: dict[str, GotAndExpected] = {}
    for n, name in enumerate(("energy", "forces")):
        values = torch.stack([x[n] for x in there])
        found[name] = _compare_largest_jump_with_range(lambda place, n=n: energy_and_forces_at(place)[n], grid, values)  # type: ignore[misc]
    return found


def stretch_operands(subject: ModuleUnderTest, factor: float) -> TensorsByName:
    """Operands with all lengths scaled."""
    return _apply_strain_to_operands(subject, (factor - 1.0) * torch.eye(3, dtype=torch.float64))


def _move_atom_in_operands_along_path(
    subject: ModuleUnderTest, atom: int, edge_from_neighbour: Tensor, path_fraction: float
) -> TensorsByName:
    # on a straight line, from close to its neighbour to another place
    aside = edge_from_neighbour.norm() * torch.tensor([0.48, 0.64, 0.6], dtype=torch.float64)
    return _move_atom_in_operands(
        subject, atom, (1 - path_fraction) * (APPROACH - 1.0) * edge_from_neighbour + path_fraction * aside
    )


def _compare_largest_jump_with_range(
    curve: Callable[[float], Tensor], grid: list[float], values: Tensor
) -> GotAndExpected:
    # the range of values plus the largest jump, beside the range
    bends = values.diff(n=2, dim=0).abs().amax(-1)
    range_ = (values.amax(0) - values.amin(0)).max()
    left = []
    for n in bends.topk(PLACES).indices.tolist():
        for low in (n, n + 1):  # the bend is seen from both sides
            left.append(_find_jump_size_by_bisection(curve, (grid[low], grid[low + 1]), (values[low], values[low + 1])))
    return torch.stack([range_, range_ + torch.stack(left).max()]), torch.stack([range_, range_])


def _find_jump_size_by_bisection(
    curve: Callable[[float], Tensor], interval: tuple[float, float], end_values: tuple[Tensor, Tensor]
) -> Tensor:
    (a, b), (low, high) = interval, end_values
    for _ in range(HALVINGS):
        c = 0.5 * (a + b)
        middle = curve(c)
        if (middle - low).abs().max() > (high - middle).abs().max():
            b, high = c, middle
        else:
            a, low = c, middle
    return (high - low).abs().max()


def estimate_absolute_rounding_errors(subject: ModuleUnderTest, results: TensorsByName) -> dict[str, float]:
    """Estimate each result's absolute rounding error."""
    if subject.energy is None or not isinstance(subject.parsed, ParsedGraphInputs):
        return {}
    graph, energy = subject.parsed.graph, results[subject.energy].detach().sum()
    try:
        energies = [
            _compute_energy_under_strain(subject, torch.eye(3, dtype=torch.float64), stretch) for stretch in STRETCHES
        ]
        bonds = sum(float((each - energy).abs()) for each in energies)
    except Exception:  # a law that needs other lengths says so
        return {}
    # energy rounding, over the edge length for forces, over the volume for a stress, over the step for slopes
    unit = UNITS * torch.finfo(subject.dtype).eps * bonds
    volume = 1.0 if graph.cells is None else float(torch.linalg.det(graph.cells).abs().min())
    scales = {
        subject.forces: 1.0 / max(shortest_distance(graph), 1e-3),
        subject.stress: 1.0 / volume,
        subject.virial: 1.0,
    }
    slopes = OF_SLOPES * torch.finfo(torch.float64).eps * float(energy.abs()) / LONGEST
    others = _estimate_rounding_errors_besides_energy_forces_stress(subject, results)
    return {SLOPE: slopes, **others, **{name: unit * scale for name, scale in scales.items() if name is not None}}


def _estimate_rounding_errors_besides_energy_forces_stress(
    subject: ModuleUnderTest, results: TensorsByName
) -> dict[str, float]:
    # results may vanish by symmetry: their size is taken at moved points
    name = subject.points or ""
    x = subject.given[name]
    try:
        beside = subject({**subject.given, name: x + ASIDE * draw_normal_tensors({name: x}, seed=402)[name]})
    except Exception:  # a law that needs other points says so
        return {}
    unit = OF_SLOPES * torch.finfo(subject.dtype).eps
    known = [getattr(subject, role) for role in ROLES]
    largest = {n: float(y.detach().abs().max()) for n, y in beside.items() if n not in known and y.numel()}
    return {n: unit * y for n, y in largest.items() if n in results and y < float("inf")}
