"""Networks under test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._torch import pytree
from tpgen.base.errors import InputError, a_kind, check_known, unknown
from tpgen.networks.copies import copy_of
from tpgen.networks.results import closed_fields, opened_fields
from tpgen.networks.trial import is_floating, is_index
from tpgen.tools.verification.choosing import choose_graph_inputs, choose_layer_inputs
from tpgen.tools.verification.indices import EDGE_INDEX, INDEX_WORDS
from tpgen.tools.verification.padding import detect_padded_molecules
from tpgen.tools.verification.potentials import estimate_absolute_rounding_errors
from tpgen.tools.verification.precision import NarrowDtypeMode, copy_in_float64
from tpgen.tools.verification.randomness import find_advanced_random_states, wrap_call_to_restore_random_states
from tpgen.tools.verification.reading import CELLS, ParsedGraphInputs, is_argument_of_cell_counts
from tpgen.tools.verification.roles import (
    UNNAMED,
    set_energy_and_forces_by_differences,
    set_energy_forces_and_stress_by_name,
    set_stress_by_strain_derivatives,
    split_irreps_out_and_roles,
)
from tpgen.tools.verification.subject import (
    INVARIANT,
    ROLES,
    TRANSFORMATION_RULES,
    CallableModule,
    ModuleUnderTest,
    TensorsByName,
    TransformationRule,
    format_leaf_path,
    last_dict_key,
    make_transformation_rule,
)
from tpgen.tools.verification.systems import call_with_permuted_atoms

_MAYBE_POINTS = ("coordinates", "coords", "xyz")  # where the last axis is of three
# What tensors of these names are in potentials of this field; `irreps_in` and `irreps_out` go before.
KNOWN: dict[str, str | None] = {
    **dict.fromkeys(("positions", "pos", *_MAYBE_POINTS), "cartesian_points"),
    **dict.fromkeys(("cell", "shifts", "edge_cell_shift_vectors"), "cartesian_vectors"),
    **dict.fromkeys(("forces", "dipole"), "1o"),
    **dict.fromkeys(("stress", "virials", "virial"), "cartesian_tensors"),
    **dict.fromkeys(("energy", "total_energy", "potential_energy", "interaction_energy"), None),
    **dict.fromkeys(("node_energy", "atomic_energy", "contributions"), None),
}


def build_tested_network(
    network: nn.Module, inputs: Sequence[Any], irreps_in: Any = None, irreps_out: Any = None
) -> ModuleUnderTest:
    """Wrap a network and a call's arguments for laws.

    ``irreps_in`` and ``irreps_out`` say how arguments and results transform; usual names complete both.  Raises
    `InputError` without floating tensors.
    """
    if not isinstance(inputs, (tuple, list)):
        raise InputError(f"inputs: give the arguments of a call as a tuple, got {a_kind(inputs)}")
    names, leaves, spec = _flatten_arguments_to_names_leaves_and_spec(network, copy_tensors_in_arguments(inputs))
    tensors = {name: x for name, x in zip(names, leaves, strict=True) if isinstance(x, Tensor)}
    call: Any = partial(_call_with_replaced_tensors, names, leaves, spec)
    call_arguments: Any = partial(_rebuild_call_arguments, names, leaves, spec)
    if (padded := detect_padded_molecules(tensors)) is not None:
        tensors, call = padded.rows, padded.wrap_call_for_atom_rows(call)
        call_arguments = padded.wrap_arguments_for_atom_rows(call_arguments)
    floating = {name: x for name, x in tensors.items() if is_floating(x)}
    if not floating:
        raise InputError("inputs: a network is verified with floating tensors as inputs, and there is none")
    like = next((p for p in network.parameters() if p.is_floating_point()), next(iter(floating.values())))

    fresh = _copy_if_possible(network)
    given = {name: x.to("cpu", torch.float64) for name, x in floating.items()}
    base = ModuleUnderTest(
        kind="network",
        title=type(network).__name__,
        module=network,
        call=call,
        call_arguments=call_arguments,
        given=given,
        dtype=like.dtype,
        device=like.device,
        slack=20.0,
        exact=lambda: copy_in_float64(network if fresh is None else fresh),
        fresh=fresh,
    )
    if find_advanced_random_states(network, lambda: base(given)):
        base = replace(base, call=wrap_call_to_restore_random_states(base.call), drawing=base.call)
    straight = base(given)
    values = {**{name: x.cpu() for name, x in tensors.items()}, **given}
    irreps_in, indices = _split_irreps_in_and_index_kinds(irreps_in, tensors)
    irreps_out, roles = split_irreps_out_and_roles(irreps_out, list(straight))
    turns, results = _make_transformation_rules_of_inputs_and_results(values, given, straight, irreps_in, irreps_out)
    counted = {**values, **_select_python_integers_as_tensors(names, leaves)}
    points = next((name for name, found in turns.items() if found.moves), None)
    fields: dict[str, Any] = {
        "turns": turns,
        "results": results,
        "points": points,
        "cell": next((name for name in given if last_dict_key(name) in CELLS), None),
        "fixed": {name: x for name, x in tensors.items() if is_index(x)},
        "undeclared": not turns,
        "results_of_reordered_rows": call_with_permuted_atoms,
        "outcomes": tuple(straight),
        **_try_float64_copy_and_make_subject_fields(base),
    }
    named = set_energy_forces_and_stress_by_name(replace(base, **fields), straight, roles)
    named = named if roles else set_energy_and_forces_by_differences(named, straight)
    parsed = (
        choose_layer_inputs(named, counted, indices, straight)
        if points is None
        else choose_graph_inputs(named, counted, indices, _count_graph_energies(named, straight))
    )
    made = _set_parsed_graph_inputs(named, parsed)
    made = made if roles else set_stress_by_strain_derivatives(made, straight)
    if irreps_out is None:
        _require_roles_of_guessed_results(made, straight)
    said = [
        _describe_transformations_and_roles(made),
        *([] if padded is None else [f"{', '.join(padded.fills)}: padded molecules"]),
    ]
    return replace(made, settings="; ".join(said), floors=estimate_absolute_rounding_errors(made, straight))


def _set_parsed_graph_inputs(subject: ModuleUnderTest, parsed: ParsedGraphInputs | str) -> ModuleUnderTest:
    # The module with its arguments parsed; floating tensors of whole numbers are no operands.
    whole = parsed.integer_valued_float_names if isinstance(parsed, ParsedGraphInputs) else []
    given = {name: x for name, x in subject.given.items() if name not in whole}
    own = subject.move_operands_to_module({name: subject.given[name] for name in whole})
    return replace(subject, parsed=parsed, given=given, fixed={**subject.fixed, **own})


def _count_graph_energies(subject: ModuleUnderTest, results: TensorsByName) -> int:
    # Number of energies of graphs.
    number = 0 if subject.energy is None else results[subject.energy].numel()
    return 0 if number == len(subject.given[subject.points or ""]) > 1 else number


def _split_irreps_in_and_index_kinds(irreps_in: Any, tensors: TensorsByName) -> tuple[Any, dict[str, str]]:
    # What was said of floating tensors, and what integers index, of which the same mapping may speak.
    if not isinstance(irreps_in, Mapping):
        return irreps_in, {}
    integers = {name: name for name, x in tensors.items() if is_index(x)}
    known = {last_dict_key(name): name for name in integers} | integers
    found = {}
    for name, word in irreps_in.items():
        if name in known:
            check_known("index", [str(word)], [str(word) for word in INDEX_WORDS], InputError)
            found[known[name]] = INDEX_WORDS[word]
    return {name: word for name, word in irreps_in.items() if name not in known}, found


def _select_python_integers_as_tensors(argument_names: Sequence[str], argument_values: Sequence[Any]) -> TensorsByName:
    # Python's whole numbers among arguments, as tensors: they may count atoms or edges.
    whole = {name: x for name, x in zip(argument_names, argument_values, strict=True) if type(x) is int}
    return {name: torch.tensor(x) for name, x in whole.items()}


def copy_tensors_in_arguments(arguments: Any) -> Any:
    return closed_fields(
        pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, opened_fields(arguments))
    )


def _call_with_replaced_tensors(
    leaf_names: list[str], leaves: list[Any], tree_spec: Any, run: CallableModule, replacements: TensorsByName
) -> TensorsByName:
    # Results of a call with some of its arguments by name, and the others as they were given.
    return _collect_floating_tensors_by_name(run(*_rebuild_call_arguments(leaf_names, leaves, tree_spec, replacements)))


def _rebuild_call_arguments(
    leaf_names: list[str], leaves: list[Any], tree_spec: Any, replacements: TensorsByName
) -> Any:
    given = [
        _convert_to_type_of_argument(replacements[n], x) if n in replacements else copy_tensors_in_arguments(x)
        for n, x in zip(leaf_names, leaves, strict=True)
    ]
    return closed_fields(pytree.tree_unflatten(given, tree_spec))


def _convert_to_type_of_argument(value: Tensor, argument: Any) -> Any:
    return int(value) if type(argument) is int else value


def _make_transformation_rules_of_inputs_and_results(
    arguments: TensorsByName,
    floating_inputs: TensorsByName,
    result_tensors: TensorsByName,
    irreps_in: Any,
    irreps_out: Any,
) -> tuple[dict[str, TransformationRule], dict[str, TransformationRule]]:
    # Turns of inputs and results, as was said or is known of them.
    known = {
        name: how
        for name, how in _known_irreps_by_name(floating_inputs).items()
        if not is_argument_of_cell_counts(name, arguments)
    }
    turns = _make_transformation_rules(irreps_in, known, floating_inputs, "irreps_in")
    known_results = _known_irreps_by_name(result_tensors)
    if irreps_out is None:
        known_results = _guess_irreps_of_tuple(result_tensors, floating_inputs, turns) | known_results
    results = _make_transformation_rules(irreps_out, known_results, result_tensors, "irreps_out")
    _check_shapes_fit_transformation_rules(turns, floating_inputs)
    _check_shapes_fit_transformation_rules(results, result_tensors)
    _require_result_rules_if_inputs_rotate(result_tensors, turns, results)
    return turns, results


def _guess_irreps_of_tuple(
    results: TensorsByName, inputs: TensorsByName, input_rules: Mapping[str, TransformationRule]
) -> dict[str, str | None]:
    # Results without names that may be energies, forces and stress, as differences of energies will tell.
    places = {tuple(inputs[name].shape) for name, rule in input_rules.items() if rule.moves}
    found: dict[str, str | None] = {}
    for name, y in results.items():
        if places and last_dict_key(name).startswith(UNNAMED):
            if tuple(y.shape) in places:
                found[name] = "cartesian_vectors"
            elif y.shape[-2:] == (3, 3):
                found[name] = "cartesian_tensors"
            elif y.dim() < 2:
                found[name] = None
    return found


def _require_roles_of_guessed_results(subject: ModuleUnderTest, results: TensorsByName) -> None:
    # Raise `InputError` where a result without a name is no energy, forces, stress or virial.
    guessed = _guess_irreps_of_tuple(results, subject.given, subject.turns)
    known = {getattr(subject, role) for role in ROLES}
    if guessed and not subject.unsaid:
        rules = {name: rule for name, rule in subject.results.items() if name not in guessed or name in known}
        _require_result_rules_if_inputs_rotate(results, subject.turns, rules)


def _try_float64_copy_and_make_subject_fields(subject: ModuleUnderTest) -> dict[str, Any]:
    # How a network runs in float64: as it is, with float64 where its code names other dtypes, or why not at all.
    why, wide = "", subject.dtype == torch.float64
    for narrow in (False,) if wide else (False, True):
        casts = NarrowDtypeMode()
        try:
            exact = replace(subject, narrow=narrow).with_float64_copy()
            with nullcontext() if wide else casts:
                exact(exact.given)
            if narrow or not casts.named:
                return {"narrow": narrow}
        except Exception as error:
            said = (str(error).strip().splitlines() or [""])[0][:120]
            why = f"a copy in float64 does not run: {said}"
    return {"inexact": why}


def _copy_if_possible(network: nn.Module) -> nn.Module | None:
    try:
        return copy_of(network)
    except Exception:  # one that cannot be copied is verified without
        return None


def _flatten_arguments_to_names_leaves_and_spec(
    network: nn.Module, inputs: Sequence[Any]
) -> tuple[list[str], list[Any], Any]:
    # The leaves of the arguments by name: that of the argument, or the key in a dict.
    found, spec = pytree.tree_flatten_with_path(opened_fields(list(inputs)))
    arguments = _list_forward_argument_names(network, len(inputs))
    names = [arguments[path[0].idx] + format_leaf_path(path[1:]) for path, _ in found]  # ``data['positions']``
    return names, [leaf for _, leaf in found], spec


def _list_forward_argument_names(network: nn.Module, argument_count: int) -> list[str]:
    # The names of the arguments; of a ``forward(*given)``, those of the class whose `forward` it overrides.
    own = (vars(cls)["forward"] for cls in type(network).__mro__ if "forward" in vars(cls))
    forwards = [network.forward, *(forward.__get__(network) for forward in own)]
    named = next(filter(None, map(_list_positional_parameter_names, forwards)), [])
    return (named + [f"input{n}" for n in range(len(named), argument_count)])[:argument_count]


def _list_positional_parameter_names(forward: Callable) -> list[str]:
    try:
        return [p.name for p in inspect.signature(forward).parameters.values() if p.kind < 2]
    except (TypeError, ValueError):
        return []


def _collect_floating_tensors_by_name(returned: Any) -> TensorsByName:
    leaves = pytree.tree_flatten_with_path(opened_fields(returned))[0]
    named = {last_dict_key(format_leaf_path(path)) or "out": leaf for path, leaf in leaves if is_floating(leaf)}
    if not named:
        raise InputError(
            "the network returns no floating tensors: it must return a tensor, or tuples, lists, dicts and dataclasses "
            "of some"
        )
    return named


def _known_irreps_by_name(tensors: TensorsByName) -> dict[str, str | None]:
    known = {name: last_dict_key(name) for name in tensors if last_dict_key(name) in KNOWN}
    return {
        name: KNOWN[key] for name, key in known.items() if key not in _MAYBE_POINTS or tensors[name].shape[-1:] == (3,)
    }


def _check_shapes_fit_transformation_rules(rules: Mapping[str, TransformationRule], tensors: TensorsByName) -> None:
    # Raise `InputError` for a tensor whose shape does not turn so.
    for name, how in rules.items():
        try:
            how.turn(tensors[name], torch.eye(3, dtype=torch.float64))
        except InputError as error:
            raise InputError(f"{name}: {error}") from error


def _make_transformation_rules(
    declared_irreps: Any, known_irreps: dict[str, str | None], tensors: TensorsByName, option_name: str
) -> dict[str, TransformationRule]:
    # The rule of each name: from a mapping, from a list in the order of the names, or what is known of them.
    names = list(tensors)
    if declared_irreps is None:
        return {name: make_transformation_rule(found) for name, found in known_irreps.items()}
    if not isinstance(declared_irreps, Mapping):
        listed = (
            [declared_irreps]
            if isinstance(declared_irreps, str) or not isinstance(declared_irreps, (list, tuple))
            else list(declared_irreps)
        )
        if len(listed) != len(names):
            raise InputError(
                f"{option_name}: give one for each of the floating tensors {', '.join(names)} (None for what does not "
                f"turn), or a mapping from their names; got {len(listed)}"
            )
        return {name: make_transformation_rule(found) for name, found in zip(names, listed, strict=True)}
    by_short = {last_dict_key(name): name for name in names} | {name: name for name in names}
    for name in declared_irreps:
        if name not in by_short:
            raise InputError(f"{option_name}: {unknown('tensor', name, by_short)}")
    chosen = {by_short[name]: found for name, found in declared_irreps.items()}
    return {name: make_transformation_rule(found) for name, found in {**known_irreps, **chosen}.items()}


def _require_result_rules_if_inputs_rotate(
    results: TensorsByName,
    input_rules: Mapping[str, TransformationRule],
    result_rules: Mapping[str, TransformationRule],
) -> None:
    # Raise `InputError` where inputs turn, and of a result nobody said how: a single number can only stay.
    if all(how is INVARIANT for how in input_rules.values()):
        return
    missing = [name for name, y in results.items() if name not in result_rules and y.numel() > 1]
    if missing:
        raise InputError(
            f"irreps_out: say how {', '.join(map(repr, missing))} turns, as inputs do: "
            f"irreps_out={{{missing[0]!r}: '1o'}}, None for what stays (--turns out:{missing[0]}=1o), or by the words "
            "'energy', 'forces', 'stress' and 'virial'"
        )


def _describe_transformations_and_roles(subject: ModuleUnderTest) -> str:
    # Turns of inputs and results, which inputs count cells, and what integers index.
    turns = (*subject.turns.items(), *subject.results.items())
    said = [f"{name}: {found.said}" for name, found in turns if found is not INVARIANT]
    said += [
        f"{name}: {role}"
        for role, name in _map_role_to_result_name(subject).items()
        if last_dict_key(name) not in KNOWN
    ]
    if isinstance(subject.parsed, ParsedGraphInputs):
        said += [f"{name}: counts of cells" for name in subject.parsed.names_with_role("counts")]
        said += _describe_index_arguments(subject.parsed)
    return (
        "; ".join(said)
        or f"nothing is said to turn: name irreps_in and irreps_out, such as {next(iter(TRANSFORMATION_RULES))!r}"
    )


def _map_role_to_result_name(subject: ModuleUnderTest) -> dict[str, str]:
    # Results by what they are in a potential.
    roles = {role: getattr(subject, role) for role in ROLES}
    several = len(subject.outcomes) > 1  # one alone needs no name
    return {role: name for role, name in roles.items() if name is not None and several}


def _describe_index_arguments(parsed: ParsedGraphInputs) -> list[str]:
    # What integers index, but for `edge_index`, which everybody knows.
    ends = ", ".join(name for name in parsed.edge_end_names if last_dict_key(name) != EDGE_INDEX)
    kinds = {name: parsed.roles[name].split()[0] for name in parsed.index_names}
    return [f"{ends}: ends of edges"] * bool(ends) + [f"{name}: indices of {kind}" for name, kind in kinds.items()]
