"""Findings that a program is given in the place of those it cannot look for, while it is written down.

Pairs of edges and species of rows depend on numbers.  Modules ask the `Recording` for them, and say what they are to be
found from.  Where a call cannot find them, the program does not hold for it.  What was found for the same list of edges
is given again, and the program says whether it is still right: in dynamics, lists stay longer than positions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.base.remember import remembered
from tpgen.kernels.runtime.native.one_hot import find_ones
from tpgen.kernels.runtime.native.pairs import EdgePairs, find_pairs

_ROUNDING = 64  # units in the last place of the longest vector: other pairs differ by whole lengths


@dataclass(frozen=True, eq=False)
class Groups:
    """Species of rows, and groups of one species each: two at least, as sizes are open."""

    species: Tensor  # (rows,): the species of each row
    there: Tensor  # (groups,): the species of each group, all that occur
    group: Tensor  # (rows,): the group of each row


def species_groups(species: Tensor) -> list[Tensor] | None:
    """Species of rows, the distinct ones in ascending order, and the place of each row's among these; read only.

    None for less than two rows, of which a program knows no sizes.

    >>> for x in species_groups(torch.tensor([7, 3, 7])):
    ...     print(x.tolist())
    [7, 3, 7]
    [3, 7]
    [1, 0, 1]
    """
    return list(_groups(species.numpy().tobytes())) if len(species) > 1 else None


@remembered("species of systems, with their rows", entries=64)  # dynamics asks for one again and again
def _groups(numbers: bytes) -> tuple[Tensor, ...]:
    species = torch.frombuffer(bytearray(numbers), dtype=torch.int64)
    there, group = species.unique(return_inverse=True)
    there = there if len(there) > 1 else there.repeat(2)  # the second of them has no rows
    return species, there, group


def pairs_among(edge_index: Tensor, vectors: Tensor) -> list[Tensor] | None:
    """The pairs of edges as a program takes them; None where some edge is in none."""
    found = find_pairs(edge_index, vectors, vectors[:, :0])
    if found is None or found.numbers != found.pairs:
        return None
    return [found.order, found.place, found.number, found.first, found.second]


def unlike(found: EdgePairs, _edge_index: Tensor, vectors: Tensor) -> Tensor:
    """Distance of the vectors of pairs from negatives of each other, less what rounding makes: positive for others."""
    first, second = (vectors.detach().index_select(0, edges) for edges in (found.first, found.second))
    return (first + second).abs().amax() - _ROUNDING * torch.finfo(vectors.dtype).eps * first.abs().amax()


def groups_among(rows: Tensor, *looked_up: Tensor) -> list[Tensor] | None:
    """The species of one-hot rows, or of rows that were ``looked_up``, of a table and species; None for other rows.

    ``rows`` are the species themselves where the program looks nothing else up.
    """
    species: Tensor | None
    if rows.dim() == 1:
        species = rows.long()
    elif not looked_up:
        species = find_ones(rows)
    else:
        table, numbers = looked_up[0], looked_up[1].reshape(-1).long()
        species = numbers if torch.equal(rows, table[numbers]) else None
    return None if species is None else species_groups(species)


def _pairs(order: Tensor, place: Tensor, number: Tensor, first: Tensor, second: Tensor) -> EdgePairs:
    return EdgePairs(order, place, number, first.shape[0], first, second)  # in which each edge has another one


class Finding(NamedTuple):
    """A kind of what depends on numbers: how a call finds its tensors, and what modules get, made of these.

    ``wrong`` is a number that a program computes of these and their sources, positive where they are not those of the
    call: then what was found for the same first source can be given again.  If ``fixed``, parameters alone decide.
    """

    find: Callable[..., list[Tensor] | None]
    made: Callable[..., Any]
    wrong: Callable[..., Tensor] | None = None
    fixed: bool = False


FINDINGS = {"pairs": Finding(pairs_among, _pairs, unlike), "groups": Finding(groups_among, Groups)}


class Recording:
    """A program that is written down: findings that it is ``given``, and the sources that these come from.

    Modules name sources of `FINDINGS`, and operations those of their own, which are among the ``findings`` then.
    """

    def __init__(self, given: Mapping[str, Sequence[Tensor]], findings: Mapping[str, Finding] | None = None) -> None:
        self.traced = findings is not None  # else it is an example's call, which says what there is to find
        self.findings = dict(findings or FINDINGS)
        self.given = {name: self.findings[name].made(*tensors) for name, tensors in given.items()}
        self.sources: dict[str, tuple[Tensor, ...]] = {}  # a program has one of each kind, the first

    def groups(self, *source: Tensor) -> Groups | None:
        """Groups of one-hot rows that the program is given; None where it is given none, or those of other rows."""
        if not source[0].is_cpu:
            return None
        known = self.sources.setdefault("groups", source)
        same = len(known) == len(source) and all(map(operator.is_, known, source))
        return self.given.get("groups") if same else None


_recording: ContextVar[Recording | None] = ContextVar("program that is recorded", default=None)


@contextmanager
def recording(program: Recording) -> Iterator[Recording]:
    """Let modules ask a program for findings, and say what these come from."""
    before = _recording.set(program)
    try:
        yield program
    finally:
        _recording.reset(before)


def recorded_program() -> Recording | None:
    """The program that is recorded here, if there is one."""
    return None if torch.compiler.is_compiling() else _recording.get()
