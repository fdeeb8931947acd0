"""Atoms of ranks, each once: rows that stand for images, and what is exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from benchmarks.networks import lattice
from tests.clients.ranks import Rank, Wires, cut
from tpgen.networks.conversion.projects.lammps import DeduplicatedAtoms, find_atom_owners

STRUCTURE = lattice(64, torch.float64)
ATOMS = len(STRUCTURE.species)


def at_once(function: Callable, *items: Sequence) -> list:
    with ThreadPoolExecutor(len(items[0])) as pool:
        return list(pool.map(function, *items))


def once_each(ranks: list[Rank]) -> list[DeduplicatedAtoms]:
    return [DeduplicatedAtoms(r, found) for r, found in zip(ranks, at_once(find_atom_owners, ranks), strict=True)]


def cut_into(count: int) -> list[Rank]:
    """Ranks of a crystal, in slabs; the fourth has no atoms."""
    order = STRUCTURE.positions[:, 0].argsort().argsort()
    return cut(STRUCTURE, order * min(count, 3) // ATOMS, count, STRUCTURE.species)


def numbers_of(rank: Rank, atoms: DeduplicatedAtoms) -> list[int]:
    """Number in the crystal of the atom of each row."""
    return [rank.atoms[n] for n in atoms._owners.atoms.tolist()]


def test_one_rank_has_no_ghosts_and_exchanges_nothing() -> None:
    (rank,) = cut_into(1)
    (atoms,) = once_each([rank])
    before = dict(rank._calls)
    assert rank.ntotal > atoms.ntotal == atoms.nlocal == ATOMS
    edges = torch.stack([torch.as_tensor(rank.pair_i).long(), atoms.pair_j])
    assert sorted(edges.T.tolist()) == sorted(STRUCTURE.edges.T.tolist())
    rows = torch.randn(ATOMS, 3)
    for exchange in (atoms.forward_exchange, atoms.reverse_exchange):
        out = torch.empty_like(rows)
        exchange(rows, out, 3)
        assert torch.equal(out, rows)
    assert rank._calls == before


@pytest.mark.parametrize("count", [1, 2, 4])
def test_an_atom_is_there_once_on_each_rank(count: int) -> None:
    for rank, atoms in zip(ranks := cut_into(count), once_each(ranks), strict=True):
        numbers = numbers_of(rank, atoms)
        assert len(set(numbers)) == len(numbers) == atoms.ntotal
        assert set(numbers) == set(rank.atoms)
        assert numbers[: rank.nlocal] == rank.owned.tolist()
        assert [numbers[n] for n in atoms.pair_j.tolist()] == [rank.atoms[n] for n in rank.pair_j.tolist()]
        assert atoms.elems.tolist() == STRUCTURE.species[numbers].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 4, 5])
@pytest.mark.parametrize("count", [2, 4])
def test_rows_go_to_images_and_their_gradients_back(count: int, width: int, dtype: torch.dtype) -> None:
    ranks = cut_into(count)
    every = once_each(ranks)
    whole = torch.randn(ATOMS, width, dtype=dtype)
    whole[0], whole[-1] = float("inf"), float("nan")
    total = torch.zeros(ATOMS, width, dtype=torch.float64)

    def forward(rank: Rank, atoms: DeduplicatedAtoms) -> None:
        rows = torch.full((atoms.ntotal, width), 7.0, dtype=dtype)
        rows[: atoms.nlocal] = whole[rank.owned]
        atoms.forward_exchange(rows, out := torch.empty_like(rows), width)
        assert torch.equal(out.nan_to_num(9), whole[numbers_of(rank, atoms)].nan_to_num(9))

    def reverse(rank: Rank, atoms: DeduplicatedAtoms, rows: Tensor) -> Tensor:
        atoms.reverse_exchange(rows, out := torch.empty_like(rows), width)
        return out[: atoms.nlocal]

    at_once(forward, ranks, every)
    sent = [torch.randn(atoms.ntotal, width, dtype=dtype) for atoms in every]
    for rank, atoms, rows in zip(ranks, every, sent, strict=True):
        total.index_add_(0, torch.tensor(numbers_of(rank, atoms)), rows.double())
    for rank, found in zip(ranks, at_once(reverse, ranks, every, sent), strict=True):
        torch.testing.assert_close(found, total[rank.owned].to(dtype))


@pytest.mark.parametrize("sees", [False, True])
def test_a_rank_whose_atoms_another_one_sees_takes_part_though_it_sees_none(sees: bool) -> None:
    wires, elements = Wires(), torch.zeros(4, dtype=torch.int64)
    first, second = (Rank(n, wires, torch.tensor([2 * n, 2 * n + 1]), elements) for n in (0, 1))
    first.ghost(0, 1, 1)  # an image of its own
    if sees:
        first.ghost(1, 0, 2)
        second.holders = [first]
    first.holders = [first]
    assert [atoms._owners.shares for atoms in once_each([first, second])] == [sees, sees]


def test_what_a_model_hands_back_is_lammps_s() -> None:
    (rank,) = cut_into(1)
    (atoms,) = once_each([rank])
    atoms.energy = 3.0
    forces = torch.ones(rank.npairs, 3, dtype=torch.float64)
    atoms.update_pair_forces_gpu(forces)
    torch.as_tensor(atoms.eatoms).fill_(2.0)
    assert (rank.energy, rank.eatoms.tolist()) == (3.0, [2.0] * ATOMS)
    assert (rank.pair_forces == 1.0).all()
