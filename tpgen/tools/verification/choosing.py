"""Choice among parses of a network call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tpgen.networks.trial import is_index
from tpgen.tools.verification import systems
from tpgen.tools.verification.findings import GotAndExpected, tolerance_of
from tpgen.tools.verification.indices import EDGES, iterate_kind_assignments, list_possible_index_kinds
from tpgen.tools.verification.reading import BATCHES, PERIODIC, POINTERS, ParsedGraphInputs, parse_graph_inputs
from tpgen.tools.verification.subject import ModuleUnderTest, TensorsByName, last_dict_key

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
    kinds = _list_candidate_kinds_of_index_arguments(
        arguments, declared_index_kinds, len(arguments[points]) if arguments[points].dim() else 0
    )
    chosen: ParsedGraphInputs | None = None
    clear: ParsedGraphInputs | None = None
    most = -1
    for one in iterate_kind_assignments(kinds):
        parsed = parse_graph_inputs(points, arguments, subject.turns, one, graph_count)
        if isinstance(parsed, str) or (
            all(len(found) == 1 for found in kinds.values()) and not parsed.unrecognized_index_names
        ):
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
