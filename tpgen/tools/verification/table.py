"""Table of all laws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from tpgen.tools.verification.laws import Law
from tpgen.tools.verification.subject import Subject
from tpgen.tools.verification.systems import needs


def _has_fields(*names: str) -> Callable[[Subject], bool]:
    return lambda subject: all(getattr(subject, name) for name in names)


def _is_product(subject: Subject) -> bool:
    return subject.kind == "product"


def is_network(subject: Subject) -> bool:
    return subject.kind == "network"


def _choose_by_points(
    with_points: Callable[[Subject], Any], without_points: Callable[[Subject], Any]
) -> Callable[[Subject], Any]:
    return lambda subject: (
        without_points(subject) if is_network(subject) and subject.points is None else with_points(subject)
    )


def _missing_field_reason(*names: str) -> Callable[[Subject], str]:
    said = {"points": "no input is said to be points", "cell": "there is no cell among the inputs"}

    def lacks(subject: Subject) -> str:
        missing = next((name for name in names if getattr(subject, name) is None), None)
        if missing in ("energy", "forces") and subject.unsaid:
            return subject.unsaid
        return "" if missing is None else said.get(missing, f"no result is known to be the {missing}")

    return lacks


def _why_no_sum(subject: Subject) -> str:
    found = needs()(subject) or _missing_field_reason("energy")(subject)
    return found or ("" if systems.node_energies(subject) else "no result is known to be the energies of atoms")


_POTENTIAL = _missing_field_reason("points", "energy")


def _graph_law(about: str, compare: Callable[[Subject], Any], *parts: str) -> Law:
    # a law of atoms, cells and edges that needs parts of a call's arguments, and to tell their axes apart
    return Law(about, compare, is_network, slack=5, lacks=needs(*parts, "axes"))


def _slope_law(about: str, compare: Callable[[Subject], Any], *names: str) -> Law:
    # differences of energies; needs the points or results in ``names``
    return Law(about, compare, is_network, limit=5e-8, lacks=_missing_field_reason(*names), slopes=True)


LAWS: dict[str, Law] = {
    "definition": Law(
        "equal to the slow definition in float64", laws.compare_with_definition, _has_fields("reference")
    ),
    "e3nn": Law("equal to e3nn's product", laws.compare_with_e3nn, _is_product),
    "right": Law("`right` as a matrix on input 1 is the product", laws.compare_right, _is_product, slack=2),
    "linear": Law("linear in each operand", laws.compare_linearity, lambda s: bool(s.linear or s.affine), slack=5),
    "degree": Law("of the right degree in each operand", laws.compare_degree, _has_fields("degrees"), slack=5),
    "equivariant": Law(
        "turned inputs give turned results",
        laws.compare_equivariance,
        lambda s: bool(s.turns) or is_network(s),  # of a network, that nothing was said is a finding
        slack=5,
    ),
    "translation": Law(
        "nothing changes where all points are shifted",
        laws.compare_translations,
        is_network,
        lacks=_missing_field_reason("points"),
    ),
    "permutation": Law(
        "rows or points in another order give results in it",
        _choose_by_points(systems.compare_permuted_systems, surroundings.also_untracked(rows.compare_permuted_rows)),
        lambda s: is_network(s) or s.results_of_reordered_rows is not None,
        slack=5,
        lacks=lambda s: _choose_by_points(needs(), rows.why_no_rows)(s) if is_network(s) else "",
    ),
    "edges": _graph_law("edges in another order give results in it", masks.compare_edges_and_masks, "edges"),
    "images": _graph_law("a point's image in another cell is as good", systems.compare_moved_images, "cell"),
    "basis": _graph_law("the same lattice by other vectors is as good", systems.compare_lattice_bases, "plane"),
    "copies": _graph_law("two of everything have twice the energy", several.compare_copies_of_system),
    "batch": _graph_law("graphs together are as each alone", several.compare_batch, "batch"),
    "finite": Law(
        "numbers without edges, on a line, and where vectors vanish",
        surroundings.also_untracked(_choose_by_points(rows.check_finite_points, rows.check_finite_rows)),
        is_network,
        limit=0.0,
        lacks=lambda s: needs("axes")(s) if s.points else "",
    ),
    "sum": Law("energies of atoms add up", systems.compare_summed_systems, is_network, slack=5, lacks=_why_no_sum),
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
        _has_fields("moments"),
        limit=moments.MOMENT_LIMIT,
    ),
    "first order": Law("gradients", partial(derivatives.compare_derivative, 1), slack=2),
    "second order": Law("gradients of gradients", partial(derivatives.compare_derivative, 2), slack=5),
    "third order": Law("gradients of these", partial(derivatives.compare_derivative, 3), slack=10),
    "Hessian": Law("second derivatives are symmetric", potentials.compare_second_derivatives, slack=5),
    "forces": _slope_law("forces are the slope of the energy", potentials.compare_forces, "points", "energy", "forces"),
    "stress": _slope_law(
        "stress is the slope by strain over the volume", potentials.compare_stress, "energy", "stress"
    ),
    "smooth": Law(
        "no step of energy or forces where edges grow",
        potentials.check_smoothness,
        is_network,
        limit=1e-5,
        lacks=_POTENTIAL,
    ),
    "conservation": Law(
        "a trajectory keeps its energy",
        potentials.compare_conservation,
        is_network,
        limit=potentials.DRIFT,
        lacks=_POTENTIAL,
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
        "inputs are read wherever they lie", surroundings.also_untracked(surroundings.compare_memory_layouts), slack=5
    ),
    "surroundings": Law("a call leaves all else as it was", surroundings.check_untouched, is_network, limit=0.0),
    "threads": Law("the same numbers on any number of threads", runs.compare_threads, lambda s: s.device.type == "cpu"),
    "saved": Law("the same bits after a save", runs.compare_saved_copies, limit=0.0),
}
UNSEEN = {  # what no law of a kind of subject can see
    "network": "\nno law sees whether a network predicts what it should: another table of species, units or reference "
    "energies, a cutoff beyond the lengths of these inputs, more neighbours than these have, branches that they do not "
    "take, a mean over all atoms that may be meant, jumps of higher derivatives, another mode than {mode}, in which it "
    "was given"
}
