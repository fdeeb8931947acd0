"""Law of precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tpgen.base._torch import DispatchMode
from tpgen.tools.verification.derivatives import draw_normal_tensors
from tpgen.tools.verification.findings import (
    GotAndExpectedOrReason,
    GotAndExpectedWithRemark,
    NotCompared,
    largest_difference,
    largest_entry,
    tolerance_of,
)
from tpgen.tools.verification.graphs import shortest_distance
from tpgen.tools.verification.laws import GotAndExpectedByPart, pair_results
from tpgen.tools.verification.precision import NarrowDtypeMode
from tpgen.tools.verification.reading import ParsedGraphInputs
from tpgen.tools.verification.subject import ModuleUnderTest, TensorsByName
from tpgen.tools.verification.systems import call_network_detached, make_dense_graph

UNEXPLAINED = 0.2  # of what a network may be wrong by: what is further apart is compared with rounding itself
PLACES, MARGIN = 4, 20.0  # inputs moved by a rounding, and how many times as far as there results may be
WIDE = (torch.float32, torch.float64)
FAR, MOVE = 400.0, 0.01  # by the distance of the nearest points
COARSE_FROM, COARSE_ERROR = 0.01, 5e-5  # relative to the difference, and in the energy's unit
COARSE = "differences of energies are wrong by {:.0%} where points move by {:.1g}: sum large energies in float64"
SMALL = "small beside numbers that it is made of: {dtype} rounds it by {apart:.1e}"
DRAWS_OTHERS = "calls draw random numbers, of which float64 has others"
UNNAMED_CAST = "no call names a narrower dtype: a tensor has it, or a kernel"


class _RoundFloat64ResultsMode(DispatchMode):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.draws = dtype, False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), keywords: Any = None) -> Any:
        found = function(*args, **(keywords or {}))
        self.draws |= torch.Tag.nondeterministic_seeded in function.tags
        for returned, x in zip(function._schema.returns, found if isinstance(found, tuple) else (found,), strict=False):
            is_view = returned.alias_info is not None and not returned.alias_info.is_write
            if isinstance(x, Tensor) and x.dtype == torch.float64 and not is_view:
                x.copy_(x.to(self.dtype))
        return found


class _NarrowDtypeAndAutocastRecorder(NarrowDtypeMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), keywords: Any = None) -> Any:
        for device in {x.device.type for x in args if isinstance(x, Tensor)}:
            if torch.is_autocast_enabled(device):
                self.named["autocast", torch.get_autocast_dtype(device)] = None
        return super().__torch_function__(function, types, args, keywords)


def compare_precision(subject: ModuleUnderTest) -> GotAndExpectedByPart:
    """Compare results with a float64 copy's; rounding of large intermediates is reported only."""
    held = {name: x.to(subject.dtype).double() for name, x in subject.given.items()}
    exact = subject.with_float64_copy()
    with NarrowDtypeMode(widen_to_float64=True):
        expected = exact(held)
    compared = pair_results(subject(held, subject.make_fresh_copy()), expected)
    limit = UNEXPLAINED * subject.slack * tolerance_of(subject.dtype)
    distances = {name: largest_difference(*pair) for name, pair in compared.items()}
    far = {name: apart for name, apart in distances.items() if not apart <= limit * largest_entry(compared[name][1])}
    honest = _measure_result_changes_by_rounding(subject, exact, held, expected) if far else {}
    found: dict[str, GotAndExpectedOrReason] = {**compared}
    for name, apart in far.items():
        rounding = MARGIN * honest.get(name or "out", 0.0)
        told = SMALL.format(dtype=str(subject.dtype).removeprefix("torch."), apart=apart)
        found[name] = (
            told
            if apart <= rounding
            else GotAndExpectedWithRemark(compared[name], _describe_narrow_dtype_casts_in_code(subject, held))
        )
    return (
        found
        | _compare_with_atoms_far_from_origin(subject, exact)
        | _remark_on_inaccurate_energy_differences(subject, exact, held)
    )


def _compare_with_atoms_far_from_origin(
    subject: ModuleUnderTest, float64_subject: ModuleUnderTest
) -> dict[str, GotAndExpectedOrReason]:
    # The same points far from the origin, where rounding may move each by as much as they are rounded themselves.
    parsed, name = subject.parsed, subject.points
    if name is None or not isinstance(parsed, ParsedGraphInputs) or parsed.unclear or subject.dtype not in WIDE:
        return {}
    graph = make_dense_graph(parsed) or parsed.graph
    away = FAR * shortest_distance(parsed.graph)
    far = away * torch.tensor([0.6, -0.48, 0.64], dtype=torch.float64)
    held = float64_subject.parsed.make_arguments_for_graph(replace(graph, points=graph.points + far))
    held = {n: x.to(subject.dtype).double() if x.is_floating_point() else x for n, x in held.items()}
    ulp = torch.finfo(subject.dtype).eps * away
    try:
        with NarrowDtypeMode(widen_to_float64=True):
            expected, *beside = (
                call_network_detached(float64_subject, {**held, name: held[name] + step})
                for step in (0.0, *(ulp * draw_normal_tensors(held, seed=820 + place)[name] for place in range(PLACES)))
            )
        found = pair_results(call_network_detached(subject, held), expected)
    except NotCompared:
        return {}
    told: dict[str, GotAndExpectedOrReason] = {}
    for result, pair in found.items():
        if not all(bool(one[result or "out"].isfinite().all()) for one in (expected, *beside)):
            continue
        allowed = MARGIN * max(largest_difference(one[result or "out"], pair[1]) for one in beside)
        allowed += subject.slack * tolerance_of(subject.dtype) * largest_entry(pair[1])
        is_near = largest_difference(*pair) <= allowed
        told[f"far away{', ' + result if result else ''}"] = (pair[1], pair[1]) if is_near else pair
    return told


def _remark_on_inaccurate_energy_differences(
    subject: ModuleUnderTest, float64_subject: ModuleUnderTest, operands: TensorsByName
) -> dict[str, GotAndExpectedOrReason]:
    # Whether energies of geometries can be told apart.
    name, energy = subject.points, subject.energy
    if name is None or energy is None or subject.dtype not in WIDE:
        return {}
    step = MOVE * (shortest_distance(subject.parsed.graph) if isinstance(subject.parsed, ParsedGraphInputs) else 1.0)
    moved = {
        **operands,
        name: (operands[name] + step * draw_normal_tensors(operands, seed=830)[name]).to(subject.dtype).double(),
    }
    try:
        with NarrowDtypeMode(widen_to_float64=True):
            change = _energy_change(float64_subject, energy, operands, moved)
        own = _energy_change(subject, energy, operands, moved)
    except NotCompared:
        return {}
    error = float((own - change).abs())
    lost = error / max(float(change.abs()), 1e-300)
    if error < COARSE_ERROR or not COARSE_FROM < lost < 1e3:
        return {}
    return {"differences of energies": COARSE.format(lost, step)}


def _energy_change(
    subject: ModuleUnderTest, energy_name: str, operands: TensorsByName, moved_operands: TensorsByName
) -> Tensor:
    before, after = (call_network_detached(subject, given)[energy_name] for given in (operands, moved_operands))
    return (after - before).sum()


def _measure_result_changes_by_rounding(
    subject: ModuleUnderTest, float64_subject: ModuleUnderTest, operands: TensorsByName, exact_results: TensorsByName
) -> dict[str, float]:
    # How far results of the copy are moved by rounding, of inputs and of whatever it computes.
    unit, found = torch.finfo(subject.dtype).eps, dict.fromkeys(exact_results, 0.0)
    for place in range(PLACES):
        draw = draw_normal_tensors(operands, seed=800 + place)
        with NarrowDtypeMode(widen_to_float64=True), _RoundFloat64ResultsMode(subject.dtype) as rounded:
            results = float64_subject({name: x + unit * x * draw[name] for name, x in operands.items()})
        if rounded.draws:
            raise NotCompared(DRAWS_OTHERS)
        found = {
            name: max(most, largest_difference(results[name], exact_results[name])) for name, most in found.items()
        }
    return found


def _describe_narrow_dtype_casts_in_code(subject: ModuleUnderTest, operands: TensorsByName) -> str:
    # What narrows numbers of the network, as far as calls say.
    with _NarrowDtypeAndAutocastRecorder() as casts:
        subject(operands, subject.make_fresh_copy())
    own = torch.finfo(subject.dtype).eps
    narrow = [(name, str(dtype).removeprefix("torch.")) for name, dtype in casts.named if torch.finfo(dtype).eps > own]
    said = [f"{name} to {dtype}" for name, dtype in narrow]
    return f"in its code: {', '.join(said)}" if said else UNNAMED_CAST
