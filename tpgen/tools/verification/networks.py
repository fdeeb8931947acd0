"""Subjects of networks."""

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
from tpgen.tools.verification.choosing import choose_reading
from tpgen.tools.verification.indices import EDGE_INDEX, INDEX_WORDS
from tpgen.tools.verification.padding import read_padded_molecules
from tpgen.tools.verification.potentials import estimate_rounding_floors
from tpgen.tools.verification.precision import Casts, copy_in_float64
from tpgen.tools.verification.randomness import find_advanced_random_states, restore_randomness_after
from tpgen.tools.verification.reading import CELLS, Reading, are_cell_counts
from tpgen.tools.verification.roles import detect_forces, detect_stress, set_roles_by_name, split_roles
from tpgen.tools.verification.subject import (
    FRAMES,
    STILL,
    Frame,
    Run,
    Subject,
    TensorsByName,
    last_dict_key,
    make_frame,
    name_leaf,
)
from tpgen.tools.verification.systems import call_with_permuted_atoms

# What tensors of these names are in potentials of this field; `irreps_in` and `irreps_out` go before.
KNOWN: dict[str, str | None] = {
    **dict.fromkeys(("positions", "pos"), "cartesian_points"),
    **dict.fromkeys(("cell", "shifts", "edge_cell_shift_vectors"), "cartesian_vectors"),
    **dict.fromkeys(("forces", "dipole"), "1o"),
    **dict.fromkeys(("stress", "virials", "virial"), "cartesian_tensors"),
    **dict.fromkeys(("energy", "total_energy", "potential_energy", "interaction_energy"), None),
    **dict.fromkeys(("node_energy", "atomic_energy", "contributions"), None),
}
NO_POINTS = "no input is said to be points"


def build_network_subject(
    network: nn.Module, inputs: Sequence[Any], irreps_in: Any = None, irreps_out: Any = None
) -> Subject:
    """Build the subject of a network from a call's arguments.

    ``irreps_in`` and ``irreps_out`` say how arguments and results turn; `KNOWN` completes both.  Raises `InputError`
    without floating tensors.
    """
    if not isinstance(inputs, (tuple, list)):
        raise InputError(f"inputs: give the arguments of a call as a tuple, got {a_kind(inputs)}")
    names, leaves, spec = _flatten_arguments(network, copy_tensors_in(inputs))
    tensors = {name: x for name, x in zip(names, leaves, strict=True) if isinstance(x, Tensor)}
    call: Any = partial(_call_with_replaced_tensors, names, leaves, spec)
    call_arguments: Any = partial(_call_arguments, names, leaves, spec)
    if (padded := read_padded_molecules(tensors)) is not None:
        tensors, call, call_arguments = padded.rows, padded.flattening(call), padded.padding(call_arguments)
    floating = {name: x for name, x in tensors.items() if is_floating(x)}
    if not floating:
        raise InputError("inputs: a network is verified with floating tensors as inputs, and there is none")
    like = next((p for p in network.parameters() if p.is_floating_point()), next(iter(floating.values())))

    fresh = _copy_if_possible(network)
    given = {name: x.to("cpu", torch.float64) for name, x in floating.items()}
    base = Subject(
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
        base = replace(base, call=restore_randomness_after(base.call), drawing=base.call)
    straight = base(given)
    values = {**{name: x.cpu() for name, x in tensors.items()}, **given}
    irreps_in, indices = _split_off_words_on_indices(irreps_in, tensors)
    irreps_out, roles = split_roles(irreps_out, list(straight))
    turns, results = _input_and_result_frames(values, given, straight, irreps_in, irreps_out)
    counted = {**values, **_python_integers(names, leaves)}
    points = next((name for name, found in turns.items() if found.moves), None)
    fields: dict[str, Any] = {
        "turns": turns,
        "results": results,
        "points": points,
        "cell": next((name for name in given if last_dict_key(name) in CELLS), None),
        "fixed": {name: x for name, x in tensors.items() if is_index(x)},
        "undeclared": not turns,
        "results_of_reordered_rows": None if points is None else call_with_permuted_atoms,
        "outcomes": tuple(straight),
        **_float64_subject_fields(base),
    }
    named = set_roles_by_name(replace(base, **fields), straight, roles)
    named = named if roles else detect_forces(named, straight)
    reading = (
        NO_POINTS if points is None else choose_reading(named, counted, indices, _graph_energy_count(named, straight))
    )
    made = _set_reading(named, reading)
    made = made if roles else detect_stress(made, straight)
    said = [
        _describe_turns_and_roles(made),
        *([] if padded is None else [f"{', '.join(padded.fills)}: padded molecules"]),
    ]
    return replace(made, settings="; ".join(said), floors=estimate_rounding_floors(made, straight))


def _set_reading(subject: Subject, reading: Reading | str) -> Subject:
    # The subject with a reading of its arguments; floating tensors of whole numbers are no operands.
    whole = reading.whole_number_names if isinstance(reading, Reading) else []
    given = {name: x for name, x in subject.given.items() if name not in whole}
    own = subject.module_operands({name: subject.given[name] for name in whole})
    return replace(subject, reading=reading, given=given, fixed={**subject.fixed, **own})


def _graph_energy_count(subject: Subject, results: TensorsByName) -> int:
    # Number of energies of graphs.
    number = 0 if subject.energy is None else results[subject.energy].numel()
    return 0 if number == len(subject.given[subject.points or ""]) > 1 else number


def _split_off_words_on_indices(irreps_in: Any, tensors: TensorsByName) -> tuple[Any, dict[str, str]]:
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


def _python_integers(names: Sequence[str], leaves: Sequence[Any]) -> TensorsByName:
    # Python's whole numbers among arguments, as tensors: they may count atoms or edges.
    whole = {name: x for name, x in zip(names, leaves, strict=True) if type(x) is int}
    return {name: torch.tensor(x) for name, x in whole.items()}


def copy_tensors_in(inputs: Any) -> Any:
    """Copy the tensors in a call's arguments."""
    return closed_fields(
        pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, opened_fields(inputs))
    )


def _call_with_replaced_tensors(
    names: list[str], values: list[Any], spec: Any, run: Run, replacements: TensorsByName
) -> TensorsByName:
    # Results of a call with some of its arguments by name, and the others as they were given.
    return _floating_results(run(*_call_arguments(names, values, spec, replacements)))


def _call_arguments(names: list[str], values: list[Any], spec: Any, replacements: TensorsByName) -> Any:
    given = [
        _with_type_of_argument(replacements[n], x) if n in replacements else copy_tensors_in(x)
        for n, x in zip(names, values, strict=True)
    ]
    return closed_fields(pytree.tree_unflatten(given, spec))


def _with_type_of_argument(value: Tensor, argument: Any) -> Any:
    return int(value) if type(argument) is int else value


def _input_and_result_frames(
    values: TensorsByName, given: TensorsByName, result_tensors: TensorsByName, irreps_in: Any, irreps_out: Any
) -> tuple[dict[str, Frame], dict[str, Frame]]:
    # Turns of inputs and results, as was said or is known of them.
    known = {name: how for name, how in _turns_by_known_name(given).items() if not are_cell_counts(name, values)}
    turns = _frames_declared_or_known_by_name(irreps_in, known, given, "irreps_in")
    results = _frames_declared_or_known_by_name(
        irreps_out, _turns_by_known_name(result_tensors), result_tensors, "irreps_out"
    )
    _check_shapes_fit_frames(turns, given)
    _check_shapes_fit_frames(results, result_tensors)
    _require_frames_of_results_if_inputs_turn(result_tensors, turns, results)
    return turns, results


def _float64_subject_fields(subject: Subject) -> dict[str, Any]:
    # How a network runs in float64: as it is, with float64 where its code names other dtypes, or why not at all.
    why, wide = "", subject.dtype == torch.float64
    for narrow in (False,) if wide else (False, True):
        casts = Casts()
        try:
            exact = replace(subject, narrow=narrow).in_float64()
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


def _flatten_arguments(network: nn.Module, inputs: Sequence[Any]) -> tuple[list[str], list[Any], Any]:
    # The leaves of the arguments by name: that of the argument, or the key in a dict.
    found, spec = pytree.tree_flatten_with_path(opened_fields(list(inputs)))
    arguments = _argument_names(network, len(inputs))
    names = [arguments[path[0].idx] + name_leaf(path[1:]) for path, _ in found]  # ``data['positions']``
    return names, [leaf for _, leaf in found], spec


def _argument_names(network: nn.Module, number: int) -> list[str]:
    # The names of the arguments; of a ``forward(*given)``, those of the class whose `forward` it overrides.
    own = (vars(cls)["forward"] for cls in type(network).__mro__ if "forward" in vars(cls))
    forwards = [network.forward, *(forward.__get__(network) for forward in own)]
    named = next(filter(None, map(_positional_names, forwards)), [])
    return (named + [f"input{n}" for n in range(len(named), number)])[:number]


def _positional_names(forward: Callable) -> list[str]:
    try:
        return [p.name for p in inspect.signature(forward).parameters.values() if p.kind < 2]
    except (TypeError, ValueError):
        return []


def _floating_results(returned: Any) -> TensorsByName:
    leaves = pytree.tree_flatten_with_path(opened_fields(returned))[0]
    named = {last_dict_key(name_leaf(path)) or "out": leaf for path, leaf in leaves if is_floating(leaf)}
    if not named:
        raise InputError(
            "the network returns no floating tensors: it must return a tensor, or tuples, lists, dicts and dataclasses "
            "of some"
        )
    return named


def _turns_by_known_name(tensors: TensorsByName) -> dict[str, str | None]:
    return {name: KNOWN[last_dict_key(name)] for name in tensors if last_dict_key(name) in KNOWN}


def _check_shapes_fit_frames(frames: Mapping[str, Frame], tensors: TensorsByName) -> None:
    # Raise `InputError` for a tensor whose shape does not turn so.
    for name, how in frames.items():
        try:
            how.turn(tensors[name], torch.eye(3, dtype=torch.float64))
        except InputError as error:
            raise InputError(f"{name}: {error}") from error


def _frames_declared_or_known_by_name(
    declared: Any, known_turns: dict[str, str | None], tensors: TensorsByName, argument: str
) -> dict[str, Frame]:
    # The frame of each name: from a mapping, from a list in the order of the names, or what is known of them.
    names = list(tensors)
    if declared is None:
        return {name: make_frame(found) for name, found in known_turns.items()}
    if not isinstance(declared, Mapping):
        listed = [declared] if isinstance(declared, str) or not isinstance(declared, (list, tuple)) else list(declared)
        if len(listed) != len(names):
            raise InputError(
                f"{argument}: give one for each of the floating tensors {', '.join(names)} (None for what does not "
                f"turn), or a mapping from their names; got {len(listed)}"
            )
        return {name: make_frame(found) for name, found in zip(names, listed, strict=True)}
    by_short = {last_dict_key(name): name for name in names} | {name: name for name in names}
    for name in declared:
        if name not in by_short:
            raise InputError(f"{argument}: {unknown('tensor', name, by_short)}")
    chosen = {by_short[name]: found for name, found in declared.items()}
    return {name: make_frame(found) for name, found in {**known_turns, **chosen}.items()}


def _require_frames_of_results_if_inputs_turn(
    tensors: TensorsByName, input_frames: Mapping[str, Frame], result_frames: Mapping[str, Frame]
) -> None:
    # Raise `InputError` where inputs turn, and of a result nobody said how: a single number can only stay.
    if all(how is STILL for how in input_frames.values()):
        return
    missing = [name for name, y in tensors.items() if name not in result_frames and y.numel() > 1]
    if missing:
        raise InputError(
            f"irreps_out: say how {', '.join(map(repr, missing))} turns, as inputs do: "
            f"irreps_out={{{missing[0]!r}: '1o'}}, None for what stays (--turns out:{missing[0]}=1o), or by the words "
            "'energy', 'forces', 'stress' and 'virial'"
        )


def _describe_turns_and_roles(subject: Subject) -> str:
    # Turns of inputs and results, which inputs count cells, and what integers index.
    turns = (*subject.turns.items(), *subject.results.items())
    said = [f"{name}: {found.said}" for name, found in turns if found is not STILL]
    said += [f"{name}: {role}" for role, name in _results_by_role(subject).items() if last_dict_key(name) not in KNOWN]
    if isinstance(subject.reading, Reading):
        said += [f"{name}: counts of cells" for name in subject.reading.names_with_role("counts")]
        said += _describe_read_indices(subject.reading)
    return "; ".join(said) or f"nothing is said to turn: name irreps_in and irreps_out, such as {next(iter(FRAMES))!r}"


def _results_by_role(subject: Subject) -> dict[str, str]:
    # Results by what they are in a potential.
    stress = "virial" if subject.is_virial else "stress"
    roles = {"energy": subject.energy, "forces": subject.forces, stress: subject.stress}
    several = len(subject.outcomes) > 1  # one alone needs no name
    return {role: name for role, name in roles.items() if name is not None and several}


def _describe_read_indices(reading: Reading) -> list[str]:
    # What integers index, but for `edge_index`, which everybody knows.
    ends = ", ".join(name for name in reading.edge_end_names if last_dict_key(name) != EDGE_INDEX)
    kinds = {name: reading.roles[name].split()[0] for name in reading.index_names}
    return [f"{ends}: ends of edges"] * bool(ends) + [f"{name}: indices of {kind}" for name, kind in kinds.items()]
