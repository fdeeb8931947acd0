"""Steps of dynamics in ASE and TorchSim with a MACE, stock and converted in turn: rows of docs/engines.md.

    OMP_NUM_THREADS=1 .clients/engines/bin/python -m benchmarks.engines
    OMP_NUM_THREADS=1 .clients/engines/bin/python -m benchmarks.engines --rows ase-64 --seconds 1 --json

Atoms begin at rest, and all their neighbours are found anew in each step, as the engines do.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import tpgen
from benchmarks.networks import Structure, lattice, mace, molecules
from tpgen.base.clock import ROUGH, time_in_turns
from tpgen.base.text import duration, ratio

HIDDEN = "128x0e+128x1o"
STEP = 0.1  # fs: so short that a long measurement is one of the same atoms
ROOM = 30.0  # Å: the box that a molecule stands in

Step = Callable[[], np.ndarray]  # moves all atoms once, and returns the forces on them


@dataclass(frozen=True)
class Row:
    """A row of the page: an engine, and so many systems of so many atoms."""

    engine: str
    atoms: int
    systems: int = 1
    molecular: bool = False

    @property
    def said(self) -> str:
        if self.molecular:
            return f"{self.systems} molecules of {self.atoms}"
        return f"{self.systems} × {self.atoms}" if self.systems > 1 else f"{self.atoms:,}"

    def structures(self) -> list[Any]:
        """Systems as ASE has them: shaken lattices, or molecules."""
        if self.molecular:
            return [_molecule(s) for s in molecules(self.atoms, self.systems, torch.float64)]
        return [crystal(self.atoms, seed) for seed in range(self.systems)]


ROWS: dict[str, Row] = {
    "ase-64": Row("ASE", 64),
    "ase-1000": Row("ASE", 1000),
    "ase-molecules": Row("ASE", 21, 32, molecular=True),
    "torchsim-8x64": Row("TorchSim", 64, 8),
    "torchsim-molecules": Row("TorchSim", 21, 32, molecular=True),
}


@dataclass(frozen=True)
class Measured:
    """Medians of a step in seconds, how far times scatter, and how far forces are from stock's, of the largest."""

    engine: str
    model: str
    atoms: str
    stock: float
    converted: float
    spread: float
    forces: float
    threads: int

    @property
    def row(self) -> str:
        """The row as docs/engines.md has it, and what it says nothing of."""
        faster = ratio(self.stock / self.converted)
        cells = (self.engine, self.model, self.atoms, duration(self.stock), duration(self.converted), faster)
        rough = f", times lie {100 * self.spread:.0f} % apart" if self.spread > ROUGH else ""
        return f"| {' | '.join(cells)} |  forces within {self.forces:.0e}, {self.threads} thread(s){rough}"


# --- structures -------------------------------------------------------------------------------------------------------


def crystal(atoms: int, seed: int = 0) -> Any:
    """A lattice, shaken in its own way."""
    found = _atoms(lattice(atoms, torch.float64), pbc=True)
    found.rattle(0.05, seed=seed)
    return found


def _molecule(s: Structure) -> Any:
    found = _atoms(s, pbc=False)
    found.cell = ROOM * np.eye(3)  # by whose volume TorchSim divides
    found.center()
    return found


def _atoms(s: Structure, pbc: bool) -> Any:
    from ase import Atoms

    numbers = np.array([1, 6, 7, 8])[s.species.numpy()]
    return Atoms(numbers, positions=s.positions.numpy(), cell=s.cell.numpy(), pbc=pbc)


# --- engines ----------------------------------------------------------------------------------------------------------


def in_ase(model: nn.Module, systems: list[Any]) -> Step:
    """A step of each system, one after the other."""
    from ase import units
    from ase.md.verlet import VelocityVerlet
    from mace.calculators import MACECalculator

    for atoms in systems:  # each its own, which keeps what it has computed of these atoms
        atoms.calc = MACECalculator(models=[model], device="cpu", default_dtype="float32")
    dynamics = [VelocityVerlet(atoms, STEP * units.fs) for atoms in systems]

    def step() -> np.ndarray:
        return np.concatenate([one.step() for one in dynamics])

    return step


def in_torchsim(model: nn.Module, systems: list[Any]) -> Step:
    """A step of all systems in one call."""
    import torch_sim as ts
    from ase import units
    from torch_sim.integrators.nve import nve
    from torch_sim.models.mace import MaceModel

    engine = MaceModel(model, device=torch.device("cpu"), dtype=torch.float32)
    begin, move = nve(engine, dt=torch.tensor(STEP * units.fs), kT=torch.tensor(0.0))
    state = begin(ts.initialize_state(systems, torch.device("cpu"), torch.float32))

    def step() -> np.ndarray:
        nonlocal state
        state = move(state)
        return state.forces.numpy()

    return step


ENGINES: dict[str, Callable[[nn.Module, list[Any]], Step]] = {"ASE": in_ase, "TorchSim": in_torchsim}


# --- measurement ------------------------------------------------------------------------------------------------------


def measure(row: Row, hidden: str = HIDDEN, seconds: float = 60.0) -> Measured:
    """Time steps of a row with the stock model and with the converted one, in turn, for so many seconds at least."""
    model = mace(8, torch.float32, hidden).model.float()
    models = {"stock": deepcopy(model), "converted": tpgen.convert(model, program=False)}
    steps = {name: ENGINES[row.engine](one, row.structures()) for name, one in models.items()}
    stock, converted = (step() for step in steps.values())  # kernels are built
    timed = time_in_turns(steps, "cpu", seconds)
    return Measured(
        row.engine,
        f"MACE {hidden}",
        row.said,
        timed["stock"].median,
        timed["converted"].median,
        max(timing.spread for timing in timed.values()),
        float(abs(converted - stock).max() / abs(stock).max()),
        torch.get_num_threads(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS], help="which to measure")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each row, stock and converted together")
    parser.add_argument("--json", action="store_true", help="an object in a line for each row, in the place of rows")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.rows:
        found = measure(ROWS[name], seconds=asked.seconds)
        print(json.dumps(asdict(found)) if asked.json else found.row, flush=True)


if __name__ == "__main__":
    main()
