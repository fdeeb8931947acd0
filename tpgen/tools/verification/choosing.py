"""Choice of a network call's reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tpgen.networks.trial import is_index
from tpgen.tools.verification import systems
from tpgen.tools.verification.findings import Pair, tolerance_of
from tpgen.tools.verification.indices import EDGES, iterate_kind_assignments, list_possible_index_kinds
from tpgen.tools.verification.reading import BATCHES, PERIODIC, POINTERS, Reading, read_call
from tpgen.tools.verification.subject import Subject, TensorsByName, last_dict_key

SLACK = 10.0  # times what a network may be wrong by
OF_ATOMS, OF_EDGES = 2, 1  # what it counts that a network obeys a reading of these
UNREAD = (
    "{name} may be an index of a kind that is not known: say irreps_in={{{name!r}: 'indices_of_atoms'}}, "
    "'indices_of_edges', or None where it is no index (--turns {name}=none)"
)


def choose_reading(
    subject: Subject, values: TensorsByName, declared_kinds: Mapping[str, str], graph_count: int
) -> Reading | str:
    """Likeliest reading under which permuted atoms and edges permute results, else the likeliest.

    A text says why none exists.
    """
    points = subject.points or ""
    kinds = _index_kind_candidates(values, declared_kinds, len(values[points]) if values[points].dim() else 0)
    chosen: Reading | None = None
    clear: Reading | None = None
    most = -1
    for one in iterate_kind_assignments(kinds):
        reading = read_call(points, values, subject.turns, one, graph_count)
        if isinstance(reading, str) or (all(len(found) == 1 for found in kinds.values()) and not reading.unread_names):
            return reading
        clear = clear or (reading if _reads_all_edge_indices(reading, one, kinds) else None)
        obeyed = _score_permuted_results(subject, reading)
        if obeyed > most:
            chosen, most = reading, obeyed
        if most == OF_ATOMS + OF_EDGES:
            break
    assert chosen is not None
    unread = [name for name in chosen.unread_names if name not in declared_kinds]
    if not unread or most >= OF_ATOMS:
        return chosen
    return clear or replace(chosen, unreadable=UNREAD.format(name=last_dict_key(unread[0])))


def _reads_all_edge_indices(
    reading: Reading, chosen_kinds: Mapping[str, str], candidates: Mapping[str, tuple[str, ...]]
) -> bool:
    # Whether no integers are left unread, and all that may be edges, and reach to the last of these, are read so.
    ends = reading.graph.ends
    if ends is None or reading.unread_names:
        return False
    may_be = [name for name, found in candidates.items() if EDGES in found]
    last = [chosen_kinds[name] == EDGES for name in may_be if int(reading.values[name].max()) + 1 == ends.shape[1]]
    return bool(last) and all(last)


def _index_kind_candidates(
    values: TensorsByName, declared_kinds: Mapping[str, str], atom_count: int
) -> dict[str, tuple[str, ...]]:
    # What each integer tensor may index, the likeliest first.
    reserved = {*BATCHES, POINTERS, PERIODIC}
    free = {name: x for name, x in values.items() if is_index(x) and last_dict_key(name) not in reserved}
    return {name: list_possible_index_kinds(name, x, atom_count) for name, x in free.items()} | {
        name: (kind,) for name, kind in declared_kinds.items()
    }


def _score_permuted_results(subject: Subject, reading: Reading) -> int:
    # How much of a reading a network obeys, by copies from before its first call.
    try:
        trial = replace(subject, reading=reading, module=subject.fresh_copy())
        got, expected = systems.call_with_permuted_atoms(trial)
        atoms = _are_pairs_within_tolerance(subject, {name: (got[name], expected[name]) for name in expected})
    except Exception:  # as of an index beyond the last row
        return 0
    if not atoms:
        return 0
    if reading.graph.ends is None:
        return OF_ATOMS + OF_EDGES
    try:
        edges = _are_pairs_within_tolerance(
            subject,
            systems.compare_edge_orders(replace(trial, module=subject.fresh_copy())),  # type: ignore[arg-type]
        )
    except Exception:
        edges = False
    return OF_ATOMS + OF_EDGES * edges


def _are_pairs_within_tolerance(subject: Subject, comparisons: dict[str, Pair]) -> bool:
    # Whether results are equal, beside the largest of all: forces may vanish.
    scale = max((float(y.detach().abs().max()) for _, y in comparisons.values() if y.numel()), default=0.0)
    limit = SLACK * subject.slack * tolerance_of(subject.dtype) * scale
    return all(x.shape == y.shape and bool(((x - y).abs() <= limit).all()) for x, y in comparisons.values())
