"""Computed inputs of programs, such as edge pairs and species of rows."""

# In a trace, modules name sources to the active `Recording`; each call computes anew, or reuses a confirmed value.

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import SymInt, Tensor

from tpgen.base._torch import pytree
from tpgen.base.remember import remembered
from tpgen.kernels.runtime.native.one_hot import find_one_hot_columns
from tpgen.kernels.runtime.native.pairs import EdgePairs, find_pairs

LEAST_SIZE = 2  # from which on sizes of inputs are open
_ROUNDING = 64  # units in the last place of the longest vector: other pairs differ by whole lengths


@dataclass(frozen=True, eq=False)
class Groups:
    """Species of rows, and row groups of equal species, at least two."""

    species: Tensor  # (rows,): the species of each row
    species_of_group: Tensor  # (groups,): the species of each group, all that occur
    group: Tensor  # (rows,): the group of each row


def group_rows_by_species(species: Tensor) -> list[Tensor] | None:
    """Species of rows, distinct species, and each row's index into these, read-only; None below two rows.

    >>> for x in group_rows_by_species(torch.tensor([7, 3, 7])):
    ...     print(x.tolist())
    [7, 3, 7]
    [3, 7]
    [1, 0, 1]
    """
    return list(_group_rows_by_species_bytes(species.numpy().tobytes())) if len(species) > 1 else None


@remembered("species of systems, with their rows", entries=64)  # dynamics asks for one again and again
def _group_rows_by_species_bytes(numbers: bytes) -> tuple[Tensor, ...]:
    species = torch.frombuffer(bytearray(numbers), dtype=torch.int64)
    there, group = species.unique(return_inverse=True)
    there = there if len(there) > 1 else there.repeat(2)  # the second of them has no rows
    return species, there, group


def _compute_edge_pair_tensors(edge_index: Tensor, vectors: Tensor) -> list[Tensor] | None:
    found = find_pairs(edge_index, vectors, vectors[:, :0])
    if found is None or found.numbers != found.pairs:
        return None
    return [found.order, found.place, found.number, found.first, found.second]


def opposite_vectors_mismatch(pairs: EdgePairs, _edge_index: Tensor, vectors: Tensor) -> Tensor:
    """Deviation of paired vectors from opposites beyond rounding; positive for a mismatch."""
    first, second = (vectors.detach().index_select(0, edges) for edges in (pairs.first, pairs.second))
    return (first + second).abs().amax() - _ROUNDING * torch.finfo(vectors.dtype).eps * first.abs().amax()


def find_species_groups(rows: Tensor, *table_and_species: Tensor) -> list[Tensor] | None:
    """Group rows by species: integers, one-hot, or rows of a table by species; None for other rows."""
    species: Tensor | None
    if rows.is_cuda:
        found = find_species_groups(*(x.cpu() for x in (rows, *table_and_species)))
        return None if found is None else [x.to(rows.device) for x in found]
    if rows.dim() == 1:
        species = rows.long()
    elif not table_and_species:
        species = find_one_hot_columns(rows)
    else:
        table, numbers = table_and_species[0], table_and_species[1].reshape(-1).long()
        species = numbers if torch.equal(rows, table[numbers]) else None
    return None if species is None else group_rows_by_species(species)


def _make_edge_pairs_from_tensors(
    order: Tensor, place: Tensor, number: Tensor, first: Tensor, second: Tensor
) -> EdgePairs:
    return EdgePairs(order, place, number, first.shape[0], first, second)  # in which each edge has another one


class ComputedInput(NamedTuple):
    """Program input that each call computes eagerly, and the object built of these tensors.

    ``mismatch(object, *sources)`` is positive for a wrong reuse.  ``fixed`` inputs depend on parameters alone;
    ``is_drawn`` ones are random.
    """

    compute: Callable[..., list[Tensor] | None]
    build_object: Callable[..., Any]
    mismatch: Callable[..., Tensor] | None = None
    fixed: bool = False
    line: str = ""  # of the user's code
    is_drawn: bool = False


FINDINGS = {
    "pairs": ComputedInput(_compute_edge_pair_tensors, _make_edge_pairs_from_tensors, opposite_vectors_mismatch),
    "groups": ComputedInput(find_species_groups, Groups),
}


def is_size(x: Any) -> bool:
    """Whether an argument is a number that a trace may hold as an open size."""
    return isinstance(x, SymInt) or (type(x) is int and x >= 0)


def encode_size(size: Any) -> Tensor:
    """Empty tensor with this number of rows."""
    return torch.empty((size, 0), dtype=torch.uint8)


def encode_count(count: int) -> Tensor:
    """Tensor of `LEAST_SIZE` more rows than a count."""
    return torch.zeros((), dtype=torch.uint8).expand(count + LEAST_SIZE)


class Recording:
    """A program's computed inputs in a trace, and the tensors that modules name as sources.

    ``computed_inputs`` are those of a trace by name; None in the example call that discovers these.
    """

    def __init__(
        self, input_tensors: Mapping[str, Sequence[Tensor]], computed_inputs: Mapping[str, ComputedInput] | None = None
    ) -> None:
        self.traced = computed_inputs is not None  # else it is an example's call, which says what there is to find
        self.findings = dict(computed_inputs or FINDINGS)
        self.given = {name: self.findings[name].build_object(*tensors) for name, tensors in input_tensors.items()}
        self.sources: dict[str, tuple[Tensor, ...]] = {}  # a program has one of each kind, the first
        self._count: Counter[str] = Counter()

    def groups(self, *source: Tensor, on_gpu: bool = False) -> Groups | None:
        """The species groups given for a source; None without any, or on a GPU unless ``on_gpu``."""
        if not (source[0].is_cpu or on_gpu):
            return None
        known = self.sources.setdefault("groups", source)
        same = len(known) == len(source) and all(map(operator.is_, known, source))
        return self.given.get("groups") if same else None

    def get_or_compute(
        self,
        name: str,
        compute: Callable[..., Any],
        sources: Sequence[Tensor],
        make_input: Callable[[Any], ComputedInput],
    ) -> Any:
        """Program input of a name's next use; without one, compute and record."""
        self._count[name] += 1
        name = f"{name}, {self._count[name]}"
        if name in self.given:
            self.sources[name] = _clone_tensors_in(sources)
            return _clone_tensors_in(self.given[name])
        made = compute(*sources)
        if made is not None and not self.traced:
            self.sources[name], self.findings[name] = _clone_tensors_in(sources), make_input(made)
        return made


def _clone_tensors_in(values: Any) -> Any:
    # the network may write into its own
    return pytree.tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, values)


_recording: ContextVar[Recording | None] = ContextVar("program that is recorded", default=None)


@contextmanager
def recording(recorded: Recording) -> Iterator[Recording]:
    """Make ``recorded`` the active recording inside the block."""
    before = _recording.set(recorded)
    try:
        yield recorded
    finally:
        _recording.reset(before)


def recorded_program() -> Recording | None:
    """Active recording, or None."""
    return None if torch.compiler.is_compiling() else _recording.get()
