"""The projects of this environment: a small model of each, and the names of what it takes and gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import pytest
from torch import Tensor

from benchmarks.networks import Case, allegro, mace, nequip, sevenn


def vectors_of_sevenn(batch: dict[str, Tensor]) -> None:
    """SevenNet is given vectors of edges, which are made of positions, edges and shifts."""
    positions, (src, dst) = batch["pos"], batch["edge_index"]
    batch["edge_vec"] = positions[dst] - positions[src] + batch["pbc_shift"] @ batch["cell_lattice_vectors"]


@dataclass(frozen=True)
class Project:
    """A project that tpgen has an adapter for."""

    make: Callable[..., Case]  # a small model: of so many atoms, and a dtype
    outputs: tuple[str, str, str]  # energy, forces and stress, by the names of its results
    positions: str = "pos"
    cell: str = "cell"
    renew: Callable[[dict[str, Tensor]], None] = lambda _: None  # computes what of a batch is made of positions
    finds: tuple[str, ...] = ("pairs",)  # what a program of it looks for in each call


# of interactions, in MACE
BLOCKS = (
    "RealAgnosticInteractionBlock",
    "RealAgnosticResidualInteractionBlock",
    "RealAgnosticDensityInteractionBlock",
    "RealAgnosticDensityResidualInteractionBlock",
    "RealAgnosticAttResidualInteractionBlock",
    "RealAgnosticResidualNonLinearInteractionBlock",
)
OF_NEQUIP = "total_energy", "forces", "stress"
OF_SEVENN = "inferred_total_energy", "inferred_force", "inferred_stress"
KNOWN = {
    "mace": Project(
        partial(mace, hidden="8x0e+8x1o"), ("energy", "forces", "stress"), "positions", finds=("groups", "pairs")
    ),
    "nequip": Project(partial(nequip, features=4, l_max=1, layers=2), OF_NEQUIP, finds=("groups", "pairs")),
    "allegro": Project(partial(allegro, features=4, scalars=8, l_max=1), OF_NEQUIP, finds=()),
    "sevenn": Project(
        partial(sevenn, hidden="8x0e+4x1e", layers=3), OF_SEVENN, "pos", "cell_lattice_vectors", vectors_of_sevenn
    ),
}
PROJECTS = {name: project for name, project in KNOWN.items() if find_spec(name)}
# of what Allegro lacks: nets of lengths alone, whose results are weights
WITH_PAIRS = [name for name in PROJECTS if name != "allegro"]
every_project = pytest.mark.parametrize("project", PROJECTS)
