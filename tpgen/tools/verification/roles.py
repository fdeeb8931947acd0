"""Roles of results: energy, forces, stress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from typing import Any

import torch
from torch import Tensor

from tpgen.base.errors import InputError
from tpgen.tools.verification.derivatives import draw_normal_tensors
from tpgen.tools.verification.potentials import differentiate_energy_by_strain
from tpgen.tools.verification.reading import ParsedGraphInputs
from tpgen.tools.verification.subject import ModuleUnderTest, TensorsByName, last_dict_key

ENERGY, FORCES, STRESS, VIRIAL = "energy", "forces", "stress", "virial"
TURNS: dict[str, str | None] = {  # how results of these roles turn
    ENERGY: None,
    FORCES: "cartesian_vectors",
    STRESS: "cartesian_tensors",
    VIRIAL: "cartesian_tensors",
}
_NAMES: dict[str, tuple[str, ...]] = {
    ENERGY: ("energy", "total_energy", "potential_energy"),
    FORCES: ("forces", "force"),
    STRESS: ("stress",),
    VIRIAL: ("virials", "virial"),
}
WAYS, STEP = 8, 1e-4  # directions that differences of energies are taken along, and how far
SAME, ALIKE = 1e-6, 0.8  # of forces and slopes: what a cosine lacks to one of the same, and that of what may be meant
UNNAMED = "["  # begins what a result of a tuple is called
ASK = (
    "{energy} and {forces} may be an energy and forces that are not its slope: say "
    "irreps_out={{{energy!r}: 'energy', {forces!r}: 'forces'}}, or {{{energy!r}: 'energy'}} where there are no forces"
)


def split_irreps_out_and_roles(irreps_out: Any, result_names: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """Split ``irreps_out`` into irreps, and result names by role (energy, forces, stress).

    Raises `InputError` for repeated roles.
    """
    if not isinstance(irreps_out, (Mapping, list, tuple, str)):
        return irreps_out, {}
    listed = [irreps_out] if isinstance(irreps_out, str) else irreps_out
    items = list(listed.items()) if isinstance(listed, Mapping) else list(zip(result_names, listed, strict=False))
    roles = {word: name for name, word in items if isinstance(word, str) and word in TURNS}
    if not roles:
        return irreps_out, {}
    words = [word for _, word in items if word in TURNS and isinstance(word, str)]
    if twice := [word for word in roles if words.count(word) > 1]:
        raise InputError(f"irreps_out: one result is the {twice[0]}, got {words.count(twice[0])}")
    turns = [TURNS[word] if isinstance(word, str) and word in TURNS else word for _, word in items]
    known = {last_dict_key(name): name for name in result_names} | {name: name for name in result_names}
    found = dict(zip((name for name, _ in items), turns, strict=True)) if isinstance(listed, Mapping) else turns
    return found, {word: known.get(name, name) for word, name in roles.items()}


def set_energy_forces_and_stress_by_name(
    subject: ModuleUnderTest, results: TensorsByName, roles: Mapping[str, str]
) -> ModuleUnderTest:
    """Set names of the energy, forces and stress by roles or usual names."""
    by_name = {role: next((n for n in names if n in results), None) for role, names in _NAMES.items()}
    found = dict(roles) if roles else {role: name for role, name in by_name.items() if name is not None}
    alone = next(iter(results))
    eliminated = ENERGY not in found and subject.points is not None and results[alone].numel() == 1 == len(results)
    if eliminated:
        found[ENERGY] = alone  # the one number that a network returns can only be an energy where there are points
    other = eliminated and alone != "out" and not last_dict_key(alone).startswith(UNNAMED)
    forces, stress, virial = (found.get(role) for role in (FORCES, STRESS, VIRIAL))
    return replace(subject, energy=found.get(ENERGY), forces=forces, stress=stress, virial=virial, by_elimination=other)


def set_energy_and_forces_by_differences(subject: ModuleUnderTest, results: TensorsByName) -> ModuleUnderTest:
    """Set names of forces and energy by energy differences."""
    if subject.points is None or subject.forces is not None or subject.given[subject.points].dim() != 2:
        return subject
    x = subject.given[subject.points]
    fields = [name for name, y in results.items() if y.shape == x.shape and subject.result_rule(name).axes == 1]
    energies = [name for name, y in results.items() if subject.energy in (None, name) and _may_be_energy(y, len(x))]
    energies = [name for name in energies if subject.result_rule(name).axes == 0]
    if not fields or not energies:
        return subject
    try:
        exact = subject.with_float64_copy()
        slopes, works = _sample_energy_slopes_and_field_components(exact, energies, fields)
    except Exception:  # it does not run in float64, or not beside these points
        return subject
    cosines = {(e, f): _absolute_cosine(slopes[e], works[f]) for f in fields for e in energies}
    best = max(cosines.values())
    alike = [pair for pair, cosine in cosines.items() if cosine >= best - SAME]
    energy, forces = min(alike, key=lambda pair: results[pair[0]].numel())  # or those of atoms, of which it is the sum
    if best >= 1.0 - SAME:
        return replace(subject, energy=energy, forces=forces)
    doubtful = best >= ALIKE and last_dict_key(forces).startswith(UNNAMED)
    return replace(subject, unsaid=ASK.format(energy=energy, forces=forces)) if doubtful else subject


def _may_be_energy(result: Tensor, atom_count: int) -> bool:
    return 0 < result.numel() <= atom_count and result.numel() == (len(result) if result.dim() else 1)


def _sample_energy_slopes_and_field_components(
    subject: ModuleUnderTest, energy_names: list[str], field_names: list[str]
) -> tuple[TensorsByName, TensorsByName]:
    # Slopes of energies along directions, and the components of fields along them.
    name = subject.points or ""
    x = subject.given[name]
    at = subject(subject.given)
    slopes: dict[str, list[Tensor]] = {e: [] for e in energy_names}
    works: dict[str, list[Tensor]] = {f: [] for f in field_names}
    for seed in range(WAYS):
        along = draw_normal_tensors({name: x}, seed=700 + seed)[name]
        up, down = (subject({**subject.given, name: x + sign * STEP * along}) for sign in (1.0, -1.0))
        for e, found in slopes.items():
            found.append((up[e].sum() - down[e].sum()).detach())
        for f, found in works.items():
            found.append((at[f] * along).sum().detach())
    return tuple({n: torch.stack(ys) for n, ys in found.items()} for found in (slopes, works))  # type: ignore[return-value]


def _absolute_cosine(one: Tensor, other: Tensor) -> float:
    # The cosine of the angle between lines.
    return float((one @ other).abs() / (one.norm() * other.norm()).clamp(min=1e-300))


def set_stress_by_strain_derivatives(subject: ModuleUnderTest, results: TensorsByName) -> ModuleUnderTest:
    """Set the name of the stress or virial by strain derivatives."""
    tensors = [
        name
        for name, y in results.items()
        if last_dict_key(name).startswith(UNNAMED) and y.shape[-2:] == (3, 3) and subject.result_rule(name).axes == 2
    ]
    if (
        subject.stress is not None
        or subject.virial is not None
        or subject.energy is None
        or not tensors
        or not isinstance(subject.parsed, ParsedGraphInputs)
    ):
        return subject
    cells = subject.parsed.graph.cells
    try:
        exact = subject.with_float64_copy()
        at = exact(exact.given)
        sums = {name: at[name].detach().reshape(-1, 3, 3).sum(0) for name in tensors}
        slopes = {name: differentiate_energy_by_strain(exact, y) for name, y in sums.items()}
    except Exception:  # it does not run in float64, or not in a space that is strained
        return subject
    for name, y in sums.items():
        if _absolute_cosine(slopes[name].flatten(), y.flatten()) >= 1.0 - SAME:
            volume = 1.0 if cells is None else float(torch.linalg.det(cells).abs().mean())
            ratio = float(y.norm() / slopes[name].norm())
            virial = cells is None or abs(log(ratio)) < abs(log(ratio * volume))
            return replace(subject, virial=name) if virial else replace(subject, stress=name)
    return subject
