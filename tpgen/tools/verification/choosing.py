"""Choice among parses of a network call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from tpgen.networks.trial import is_floating, is_index
from tpgen.tools.verification import systems
from tpgen.tools.verification.findings import NO_POINTS, GotAndExpected, tolerance_of
from tpgen.tools.verification.indices import ATOMS, EDGES, iterate_kind_assignments, list_possible_index_kinds
from tpgen.tools.verification.reading import (
    BATCHES,
    PERIODIC,
    POINTERS,
    ParsedGraphInputs,
    count_rows,
    parse_graph_inputs,
)
from tpgen.tools.verification.subject import INVARIANT, ModuleUnderTest, TensorsByName, last_dict_key

NO_EDGES = (
    f"{NO_POINTS}, and no integers are known to be ends of edges: call them edge_index, or src and dst, or say "
    "irreps_in={{{name!r}: 'indices_of_atoms'}}"
)
SLACK = 10.0  # times what a network may be wrong by
OF_ATOMS, OF_EDGES = 2, 1  # what it counts that a network obeys a parse of these
UNREAD = (
    "{name} may be an index of a kind that is not known: say irreps_in={{{name!r}: 'indices_of_atoms'}}, "
    "'indices_of_edges', or None where it is no index (--turns {name}=none)"
)


def choose_graph_inputs(
    subject: ModuleUnderTest, arguments: TensorsByName, declared_index_kinds: Mapping[str, str], graph_count: int
) -> ParsedGraphInputs | str:
    """Choose the parse under which permuted atoms and edges permute results; a text says why not."""
    points = subject.points or ""
    x, roles = arguments[points].to(torch.float64), {points: "points"}
    if x.dim() != 2 or x.shape[1] != 3:
        return f"{points} has shape {tuple(x.shape)}, where one row of three for each atom is read"
    kinds = _list_candidate_kinds_of_index_arguments(arguments, declared_index_kinds, len(x))
    chosen: ParsedGraphInputs | None = None
    clear: ParsedGraphInputs | None = None
    most = -1
    for one in iterate_kind_assignments(kinds):
        parsed = parse_graph_inputs(x, roles, arguments, subject.turns, one, graph_count)
        if all(len(found) == 1 for found in kinds.values()) and not parsed.unrecognized_index_names:
            return parsed
        clear = clear or (parsed if _are_all_edge_indices_recognized(parsed, one, kinds) else None)
        obeyed = _score_parse_by_permutation_equivariance(subject, parsed)
        if obeyed > most:
            chosen, most = parsed, obeyed
        if most == OF_ATOMS + OF_EDGES:
            break
    assert chosen is not None
    unread = [name for name in chosen.unrecognized_index_names if name not in declared_index_kinds]
    if not unread or most >= OF_ATOMS:
        return chosen
    return clear or replace(chosen, unreadable=UNREAD.format(name=last_dict_key(unread[0])))


def choose_layer_inputs(
    subject: ModuleUnderTest, arguments: TensorsByName, declared_index_kinds: Mapping[str, str], results: TensorsByName
) -> ParsedGraphInputs | str:
    """Choose the parse of a layer without points; a text says why not."""
    of_results = [count_rows(y, subject.result_rule(name)) for name, y in results.items()]
    why, rows = "", [*of_results]
    rows += [count_rows(x, subject.turns.get(name, INVARIANT)) for name, x in arguments.items() if is_floating(x)]
    for number in dict.fromkeys(n for n in rows if n):
        kinds = _list_candidate_kinds_of_index_arguments(arguments, declared_index_kinds, number)
        places = torch.randn(number, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        for one in iterate_kind_assignments(kinds):
            parsed = parse_graph_inputs(places, {}, arguments, subject.turns, one)
            if {*rows} == {number}:  # else it is that of edges
                why = why or parsed.unclear
            if parsed.edges is None or parsed.unclear or parsed.unrecognized_index_names:
                continue
            loose = any(is_floating(x) and x.dim() > 1 and not parsed.roles[n] for n, x in arguments.items())
            known = {number, parsed.edges.shape[0], parsed.graph.graph_count} & {*of_results}
            said = known and not loose and all(len(found) == 1 for found in kinds.values())
            if said or _score_parse_by_permutation_equivariance(subject, parsed) == OF_ATOMS + OF_EDGES:
                return parsed
    kinds = _list_candidate_kinds_of_index_arguments(
        arguments, declared_index_kinds, max((n or 0 for n in rows), default=0)
    )
    integers = [last_dict_key(name) for name, found in kinds.items() if ATOMS in found]
    return why or (NO_EDGES.format(name=integers[0]) if integers else NO_POINTS)


def _are_all_edge_indices_recognized(
    parsed: ParsedGraphInputs, index_kinds: Mapping[str, str], candidate_kinds: Mapping[str, tuple[str, ...]]
) -> bool:
    # Whether no integers are left unread, and all that may be edges, and reach to the last of these, are read so.
    ends = parsed.graph.ends
    if ends is None or parsed.unrecognized_index_names:
        return False
    may_be = [name for name, found in candidate_kinds.items() if EDGES in found]
    last = [index_kinds[name] == EDGES for name in may_be if int(parsed.values[name].max()) + 1 == ends.shape[1]]
    return bool(last) and all(last)


def _list_candidate_kinds_of_index_arguments(
    arguments: TensorsByName, declared_kinds: Mapping[str, str], atom_count: int
) -> dict[str, tuple[str, ...]]:
    # What each integer tensor may index, the likeliest first.
    reserved = {*BATCHES, POINTERS, PERIODIC}
    free = {name: x for name, x in arguments.items() if is_index(x) and last_dict_key(name) not in reserved}
    return {name: list_possible_index_kinds(name, x, atom_count) for name, x in free.items()} | {
        name: (kind,) for name, kind in declared_kinds.items()
    }


def _score_parse_by_permutation_equivariance(subject: ModuleUnderTest, parsed: ParsedGraphInputs) -> int:
    # How much of a parse a network obeys, by copies from before its first call.
    try:
        trial = replace(subject, parsed=parsed, module=subject.make_fresh_copy())
        got, expected = systems.call_with_permuted_atoms(trial)
        atoms = _are_got_and_expected_within_tolerance(
            subject, {name: (got[name], expected[name]) for name in expected}
        )
    except Exception:  # as of an index beyond the last row
        return 0
    if not atoms:
        return 0
    if parsed.graph.ends is None:
        return OF_ATOMS + OF_EDGES
    try:
        edges = _are_got_and_expected_within_tolerance(
            subject,
            systems.compare_edge_orders(replace(trial, module=subject.make_fresh_copy())),  # type: ignore[arg-type]
        )
    except Exception:
        edges = False
    return OF_ATOMS + OF_EDGES * edges


def _are_got_and_expected_within_tolerance(subject: ModuleUnderTest, comparisons: dict[str, GotAndExpected]) -> bool:
    # Whether results are equal, beside the largest of all: forces may vanish.
    scale = max((float(y.detach().abs().max()) for _, y in comparisons.values() if y.numel()), default=0.0)
    limit = SLACK * subject.slack * tolerance_of(subject.dtype) * scale
    return all(x.shape == y.shape and bool(((x - y).abs() <= limit).all()) for x, y in comparisons.values())
