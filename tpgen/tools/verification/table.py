"""Table of all laws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from tpgen.tools.verification import (
    derivatives,
    history,
    laws,
    masks,
    moments,
    parameters,
    potentials,
    rounding,
    rows,
    runs,
    several,
    surroundings,
    systems,
)
from tpgen.tools.verification.findings import NO_POINTS
from tpgen.tools.verification.laws import Law
from tpgen.tools.verification.subject import ModuleUnderTest


def is_product(subject: ModuleUnderTest) -> bool:
    return subject.kind == "product"


def is_network(subject: ModuleUnderTest) -> bool:
    return subject.kind == "network"


def _has_rows_alone(subject: ModuleUnderTest) -> bool:
    return is_network(subject) and subject.points is None


def _has_rows_without_edges(subject: ModuleUnderTest) -> bool:
    return _has_rows_alone(subject) and isinstance(subject.parsed, str)


def _dispatch(
    has_rows: Callable[[ModuleUnderTest], bool],
    function_of_atoms: Callable[[ModuleUnderTest], Any],
    function_of_rows: Callable[[ModuleUnderTest], Any],
) -> Callable[[ModuleUnderTest], Any]:
    return lambda subject: (function_of_rows if has_rows(subject) else function_of_atoms)(subject)


# Whether a subject has a part, and what is said where not.
_PARTS: dict[str, tuple[Callable[[ModuleUnderTest], Any], str]] = {
    "points": (attrgetter("points"), NO_POINTS),
    **{name: (attrgetter(name), f"no result is known to be the {name}") for name in ("energy", "forces")},
    "stress": (lambda s: s.stress or s.virial, "no result is known to be the stress or virial"),
    "energies of atoms": (systems.list_atomic_energy_results, "no result is known to be the energies of atoms"),
    "edges": (
        lambda s: s.parsed.graph.ends is not None,
        "no integers say which atoms edges join: call them edge_index, or src and dst, or say so by irreps_in",
    ),
    "cell": (lambda s: s.parsed.periodic, "no cell with a volume, and images of edges in it, is among the inputs"),
    "plane": (lambda s: len(s.parsed.periodic) > 1, "no cell that repeats along two vectors is among the inputs"),
    "batch": (
        lambda s: s.parsed.names_with_role("batch") or s.parsed.graph.graph_count > 1,
        "no tensor named batch says which graph an atom is in",
    ),
}


def _make_reason_for_first_missing_part(*parts: str) -> Callable[[ModuleUnderTest], str]:
    # says which part a subject lacks first; "reading" is of its arguments, in which "axes" can be told apart
    return lambda subject: next(filter(None, (_reason_if_part_is_missing(subject, part) for part in parts)), "")


def _reason_if_part_is_missing(subject: ModuleUnderTest, part_name: str) -> str:
    if part_name == "reading":
        return subject.parsed if isinstance(subject.parsed, str) else subject.parsed.unreadable
    if part_name == "axes":
        return subject.parsed.unclear
    has, why = _PARTS[part_name]
    if has(subject):
        return ""
    return (subject.unsaid or why) if part_name in ("energy", "forces") else why


def _make_law_for_graph_networks(
    description: str, compare: Callable[[ModuleUnderTest], Any], *required_parts: str
) -> Law:
    # a law of atoms, cells and edges
    return Law(
        description,
        compare,
        is_network,
        slack=5,
        lacks=_make_reason_for_first_missing_part("reading", *required_parts, "axes"),
    )


def _make_law_of_energy_slopes(
    description: str, compare: Callable[[ModuleUnderTest], Any], *required_parts: str
) -> Law:
    # differences of energies
    return Law(
        description,
        compare,
        is_network,
        limit=5e-8,
        lacks=_make_reason_for_first_missing_part(*required_parts),
        slopes=True,
    )


LAWS: dict[str, Law] = {
    "definition": Law("equal to the slow definition in float64", laws.compare_with_definition, attrgetter("reference")),
    "e3nn": Law("equal to e3nn's product", laws.compare_with_e3nn, is_product),
    "right": Law(
        "`right` as a matrix on input 1 is the product", laws.compare_right_method_with_forward, is_product, slack=2
    ),
    "linear": Law("linear in each operand", laws.compare_linearity, lambda s: s.linear or s.affine, slack=5),
    "degree": Law("of the right degree in each operand", laws.compare_degree, attrgetter("degrees"), slack=5),
    "equivariant": Law(
        "turned inputs give turned results",
        laws.compare_equivariance,
        lambda s: s.turns or is_network(s),  # of a network, that nothing was said is a finding
        slack=5,
    ),
    "translation": Law(
        "nothing changes where all points are shifted",
        laws.compare_translations,
        is_network,
        lacks=_make_reason_for_first_missing_part("points"),
    ),
    "permutation": Law(
        "rows or points in another order give results in it",
        _dispatch(
            _has_rows_without_edges,
            systems.compare_permuted_systems,
            surroundings.wrap_law_to_compare_also_without_gradients(rows.compare_permuted_rows),
        ),
        lambda s: is_network(s) or s.results_of_reordered_rows is not None,
        slack=5,
        lacks=_dispatch(
            _has_rows_without_edges,
            _make_reason_for_first_missing_part("reading"),
            rows.reason_for_incomparable_rows,
        ),
    ),
    "edges": _make_law_for_graph_networks(
        "edges in another order give results in it", masks.compare_edges_and_masks, "edges"
    ),
    "images": _make_law_for_graph_networks(
        "a point's image in another cell is as good", systems.compare_moved_images, "points", "cell"
    ),
    "basis": _make_law_for_graph_networks(
        "the same lattice by other vectors is as good", systems.compare_lattice_bases, "points", "plane"
    ),
    "copies": _make_law_for_graph_networks(
        "two of everything have twice the energy", several.compare_copies_of_system, "points"
    ),
    "batch": _make_law_for_graph_networks("graphs together are as each alone", several.compare_batch, "batch"),
    "finite": Law(
        "numbers without edges, on a line, and where vectors vanish",
        surroundings.wrap_law_to_compare_also_without_gradients(
            _dispatch(
                _has_rows_alone,
                rows.check_finite_results_at_degenerate_points,
                rows.check_finite_results_with_vanishing_rows,
            )
        ),
        is_network,
        limit=0.0,
        lacks=_dispatch(_has_rows_alone, _make_reason_for_first_missing_part("reading", "axes"), lambda s: ""),
    ),
    "sum": Law(
        "energies of atoms add up",
        systems.compare_summed_systems,
        is_network,
        slack=5,
        lacks=_make_reason_for_first_missing_part("reading", "energy", "energies of atoms"),
    ),
    "precision": Law(
        "its own dtype is as near to float64 as rounding",
        rounding.compare_precision,
        is_network,
        rounding.UNEXPLAINED,
        floored=False,
    ),
    "normalisation": Law(
        "mean squares are what was asked for",
        laws.compare_normalisation,
        attrgetter("moments"),
        limit=moments.MOMENT_LIMIT,
    ),
    "first order": Law("gradients", partial(derivatives.compare_derivative, 1), slack=2),
    "second order": Law("gradients of gradients", partial(derivatives.compare_derivative, 2), slack=5),
    "third order": Law("gradients of these", partial(derivatives.compare_derivative, 3), slack=10),
    "Hessian": Law("second derivatives are symmetric", potentials.compare_second_derivatives, slack=5),
    "forces": _make_law_of_energy_slopes(
        "forces are the slope of the energy", potentials.compare_forces, "points", "energy", "forces"
    ),
    "stress": _make_law_of_energy_slopes(
        "stress is the slope by strain over the volume", potentials.compare_stress, "energy", "stress"
    ),
    "smooth": Law(
        "no step of energy or forces where edges grow",
        potentials.check_smoothness,
        is_network,
        limit=1e-5,
        lacks=_make_reason_for_first_missing_part("points", "energy"),
    ),
    "conservation": Law(
        "a trajectory keeps its energy",
        potentials.compare_energy_conservation,
        is_network,
        limit=potentials.DRIFT,
        lacks=_make_reason_for_first_missing_part("points", "energy"),
    ),
    "parameters": Law(
        "results have gradients by what they depend on",
        parameters.compare_parameter_gradients,
        is_network,
        limit=parameters.SLOPE_LIMIT,
    ),
    "compiled": Law("equal under torch.compile", runs.compare_compiled, slack=2),
    "repeated": Law("the same bits at every call", runs.compare_repeated_calls, limit=0.0),
    "history": Law("results do not depend on calls before", history.compare_after_other_calls, is_network, slack=5),
    "no_grad": Law("the same values whether or not gradients are taken", surroundings.compare_gradient_modes),
    "memory": Law(
        "inputs are read wherever they lie",
        surroundings.wrap_law_to_compare_also_without_gradients(surroundings.compare_memory_layouts),
        slack=5,
    ),
    "surroundings": Law(
        "a call leaves all else as it was", surroundings.check_side_effects_of_call, is_network, limit=0.0
    ),
    "threads": Law("the same numbers on any number of threads", runs.compare_threads, lambda s: s.device.type == "cpu"),
    "saved": Law("the same bits after a save", runs.compare_saved_copies, limit=0.0),
}
UNSEEN = {  # what no law of a kind of subject can see
    "network": "\nno law sees whether a network predicts what it should: another table of species, units or reference "
    "energies, a cutoff beyond the lengths of these inputs, more neighbours than these have, branches that they do not "
    "take, a mean over all atoms that may be meant, jumps of higher derivatives, another mode than {mode}, in which it "
    "was given"
}
