"""LAMMPS in one process: a crystal cut into ranks, which exchange rows of ghosts as ``pair_style mliap unified`` does.

A rank owns some atoms and sees its neighbours' and its own periodic images as ghosts, behind its own.  Ranks are
threads: each waits for what the others send, and one that sends nothing is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from benchmarks.networks import Structure
from tpgen.tools.cli.app import main

PATIENCE = 240  # seconds: a rank may be compiling its kernels


class Wires:
    """What ranks have sent so far."""

    def __init__(self) -> None:
        self._sent: dict[tuple, Tensor] = {}
        self._changed = Condition()
        self._failed = False

    def send(self, rows: Tensor, *key: object) -> None:
        with self._changed:
            self._sent[key] = rows.detach().clone()
            self._changed.notify_all()

    def receive(self, *key: object) -> Tensor:
        with self._changed:
            self._changed.wait_for(lambda: key in self._sent or self._failed, PATIENCE)
            if key not in self._sent:
                raise TimeoutError(f"nobody sent {key}")
            return self._sent[key]

    def fail(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()


class Rank:
    """What ML-IAP's unified interface hands to a model as ``data``."""

    def __init__(self, number: int, wires: Wires, owned: Tensor, elements: Tensor) -> None:
        self.number, self.owned, self.wires, self._elements = number, owned, wires, elements
        self.ghosts: list[tuple[int, int]] = []  # the rank that owns it, and its number there
        self.holders: list[Rank] = []
        self._of_ghosts: list[int] = []
        self._calls = {"forward": 0, "reverse": 0}
        self.energy: Any = 0.0
        self.eatoms = np.zeros(len(owned))
        self.pairs(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.float64))

    def pairs(self, edges: Tensor, vectors: Tensor) -> None:
        """Neighbours of the atoms that this rank owns: their numbers here, and where they are."""
        self.pair_i, self.pair_j = (e.numpy().astype(np.int32) for e in edges)
        self.rij, self.npairs = vectors.double().numpy(), edges.shape[1]
        self.pair_forces = np.zeros_like(self.rij)

    def ghost(self, owner: int, number: int, atom: int) -> int:
        """A new ghost; its number here."""
        self.ghosts.append((owner, number))
        self._of_ghosts.append(atom)
        return self.ntotal - 1

    @property
    def nlocal(self) -> int:
        return len(self.owned)

    @property
    def ntotal(self) -> int:
        return self.nlocal + len(self.ghosts)

    @property
    def atoms(self) -> list[int]:
        return [*self.owned.tolist(), *self._of_ghosts]

    @property
    def elems(self) -> np.ndarray:
        return self._elements[self.atoms].numpy().astype(np.int32)

    def _exchanged(self, way: str, rows: Tensor, width: int) -> int:
        assert rows.shape[0] == self.ntotal
        assert rows.is_contiguous()
        assert rows.shape[1] == width
        self._calls[way] += 1
        self.wires.send(rows, way, self._calls[way], self.number)
        return self._calls[way]

    def forward_exchange(self, rows: Tensor, out: Tensor, width: int) -> None:
        """Rows of own atoms as they are, those of ghosts from the ranks that own them."""
        call = self._exchanged("forward", rows, width)
        out.copy_(rows)
        for place, (owner, number) in enumerate(self.ghosts, self.nlocal):
            out[place] = self.wires.receive("forward", call, owner)[number]

    def reverse_exchange(self, rows: Tensor, out: Tensor, width: int) -> None:
        """Rows of own atoms, and added to them those of their ghosts, wherever they are."""
        call = self._exchanged("reverse", rows, width)
        out.copy_(rows)
        for holder in self.holders:
            sent = self.wires.receive("reverse", call, holder.number)
            for place, (owner, number) in enumerate(holder.ghosts, holder.nlocal):
                if owner == self.number:
                    out[number] += sent[place]

    def update_pair_forces_gpu(self, pair_forces: Tensor) -> None:
        assert pair_forces.dtype == torch.float64
        self.pair_forces[:] = pair_forces.numpy()


def cut(structure: Structure, owners: Tensor, ranks: int, elements: Tensor) -> list[Rank]:
    """Ranks of a structure, each of which owns the atoms that ``owners`` gives it; ``elements`` number all atoms."""
    wires = Wires()
    found = [Rank(n, wires, torch.nonzero(owners == n).flatten(), elements) for n in range(ranks)]
    numbers = {atom: n for rank in found for n, atom in enumerate(rank.owned.tolist())}
    images = structure.positions[structure.edges[1]] + structure.shifts @ structure.cell  # rounded, as LAMMPS has them
    vectors = images - structure.positions[structure.edges[0]]
    for rank in found:
        mine = torch.nonzero(owners[structure.edges[0]] == rank.number).flatten()
        places: dict[tuple, int] = {(atom, (0, 0, 0)): n for n, atom in enumerate(rank.owned.tolist())}
        for image in _images(structure, mine):
            if image not in places:
                places[image] = rank.ghost(int(owners[image[0]]), numbers[image[0]], image[0])
        first = [numbers[atom] for atom in structure.edges[0][mine].tolist()]
        second = [places[image] for image in _images(structure, mine)]
        rank.pairs(torch.tensor([first, second], dtype=torch.int64).reshape(2, -1), vectors[mine])
        if not rank.nlocal:  # it still sees its neighbours'
            for atom in range(0, len(owners), 3):
                rank.ghost(int(owners[atom]), numbers[atom], atom)
    for rank in found:
        rank.holders = [other for other in found if any(owner == rank.number for owner, _ in other.ghosts)]
    return found


def _images(structure: Structure, edges: Tensor) -> list[tuple[int, tuple[int, ...]]]:
    """Second atoms of edges, and the cells that they stand in."""
    cells = structure.shifts[edges].round().long().tolist()
    return [(atom, tuple(cell)) for atom, cell in zip(structure.edges[1][edges].tolist(), cells, strict=True)]


@dataclass(frozen=True)
class Result:
    """What LAMMPS makes of what ranks computed."""

    energies: Tensor
    forces: Tensor
    virials: Tensor  # of atoms, half of each pair's

    @classmethod
    def of(cls, ranks: Sequence[Rank]) -> Result:
        count = sum(rank.nlocal for rank in ranks)
        energies, forces = torch.zeros(count, dtype=torch.float64), torch.zeros(count, 3, dtype=torch.float64)
        virials = torch.zeros(count, 3, 3, dtype=torch.float64)
        for rank in ranks:
            pairs, atoms = torch.from_numpy(rank.pair_forces), torch.tensor(rank.atoms)
            energies[rank.owned] = torch.from_numpy(rank.eatoms)
            assert abs(float(rank.energy) - rank.eatoms.sum()) <= 1e-5 * (1 + abs(float(rank.energy)))
            products = torch.from_numpy(rank.rij)[:, :, None] * pairs[:, None]
            for index, sign in ((rank.pair_i, 1), (rank.pair_j, -1)):
                ends = atoms[torch.from_numpy(index).long()]
                forces.index_add_(0, ends, pairs, alpha=sign)
                virials.index_add_(0, ends, products, alpha=0.5)
        return cls(energies, forces, virials)


def computed(ranks: Sequence[Rank], models: Sequence[Any]) -> Result:
    """One step on all ranks, each with a model of its own."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        steps = [pool.submit(m.compute_forces, r) for m, r in zip(models, ranks, strict=True)]
        for step in as_completed(steps):  # the first that fails says why
            if step.exception() is not None:
                ranks[0].wires.fail()
            step.result()
    return Result.of(ranks)


def halves(structure: Structure) -> Tensor:
    """Owners 0 and 1 of atoms on either side of a plane."""
    x = structure.positions[:, 0]
    return (x > x.median()).long()


def assert_ranks_agree(
    structure: Structure, elements: Tensor, stock: Callable, fast: Callable, limit: float, rows: list[int]
) -> None:
    """One rank of stock, and converted on one, on two, and on three of which one has no atoms, compute the same.

    ``rows`` gets how many each net of edges has seen, where nets run once for each pair of edges.
    """
    one, two = torch.zeros(len(structure.species), dtype=torch.int64), halves(structure)
    wanted = computed(ranks := cut(structure, one, 1, elements), [stock()])
    assert ranks[0].ghosts
    assert wanted.forces.abs().max() > 0.01
    for owners, count in ((one, 1), (two, 2), (2 * two, 3)):
        ranks = cut(structure, owners, count, elements)
        models = [fast() for _ in ranks]
        for model, rank in zip(models, ranks, strict=True):
            model.build_model_once(rank)  # one after the other: weights come from seeds
        rows.clear()
        found = computed(ranks, models)
        assert count > 1 or ranks[0]._calls == {"forward": 1, "reverse": 1}  # which ask whose the ghosts are
        assert count > 1 or set(rows) <= {ranks[0].npairs // 2}  # with the images of its own atoms, all are pairs
        assert all(rank.npairs // 2 < max(rows) < rank.npairs for rank in ranks if count > 1 and rows and rank.nlocal)
        for name in ("energies", "forces", "virials"):
            a, b = getattr(found, name), getattr(wanted, name)
            assert (a - b).abs().max() <= limit * b.abs().max(), (name, count)


@contextmanager
def interface() -> Iterator[None]:
    """The class of LAMMPS's Python package that models for it inherit from, where that package is not installed."""
    names = ("lammps", "lammps.mliap", "lammps.mliap.mliap_unified_abc")
    modules = {name: ModuleType(name) for name in names}

    class MLIAPUnified:
        def __init__(self, *_: object) -> None:
            pass

    modules[names[-1]].MLIAPUnified = MLIAPUnified  # type: ignore[attr-defined]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def check_without_lammps(monkeypatch: pytest.MonkeyPatch, project: str, *modules: str) -> None:
    """The command line says in one line that a project's ``modules``, which import LAMMPS's package, need it."""
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "lammps", None)
    done = CliRunner().invoke(main, ["lammps", "--project", project, "trained", "fast.pt"])
    assert done.exit_code == 2
    assert done.output.startswith(f"error: {project}'s class for LAMMPS cannot be imported here (LAMMPS ")
    assert done.output.count("\n") == 1
