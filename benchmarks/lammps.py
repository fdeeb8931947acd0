"""Converted networks in LAMMPS itself, on one rank or several, beside stock.

    LMP=path/to/lmp .clients/mace/bin/python -m benchmarks.lammps mace --atoms 1000

LAMMPS must be built with ML-IAP, PYTHON and KOKKOS, for this Python, and its own Python package must be importable.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.networks import Structure, lattice, mace, sevenn

PACKAGES = ("ML-IAP", "PYTHON", "KOKKOS")

INPUT = """\
units metal
atom_style atomic
atom_modify map yes
newton on
read_data data.lmp
fix buffers all property/atom d2_buffers 600 ghost yes
pair_style mliap unified ${model} 0
pair_coeff * * H C N O
neighbor 1.0 bin
neigh_modify every 1 delay 0 check yes
timestep 0.0005
velocity all create 300.0 12345 loop geom
fix moves all nve
thermo_style custom step pe press
thermo_modify format float %.15g norm no
dump forces all custom 1000000 forces.dump id fx fy fz
dump_modify forces sort id format float %.17g
run ${steps}
"""


def lammps() -> str | None:
    """The program of a LAMMPS that can call models in Python: that of the variable LMP, or one called ``lmp``."""
    found = os.environ.get("LMP") or which("lmp")
    if not found:
        return None
    words = subprocess.run([found, "-h"], capture_output=True, text=True).stdout.split()
    return found if set(PACKAGES) <= set(words) else None


# --- models -----------------------------------------------------------------------------------------------------------


def write_mace(folder: Path, dtype: torch.dtype, size: dict[str, Any]) -> None:
    from mace.calculators.lammps_mliap_mace import LAMMPS_MLIAP_MACE

    from tpgen.conversion.projects.lammps import write_for_lammps

    model = mace(8, dtype, **size).model
    torch.save(model, folder / "my.model")
    write_for_lammps(folder / "my.model", folder / "fast.pt", "mace")
    model.lammps_mliap = True  # type: ignore[assignment]
    with mock.patch.dict(os.environ, MACE_ALLOW_CPU="true"):  # which is read here
        torch.save(LAMMPS_MLIAP_MACE(deepcopy(model)), folder / "stock.pt")


def write_nequip(folder: Path, dtype: torch.dtype, size: dict[str, Any]) -> None:
    from benchmarks.lammps_nequip import Fast, Stock

    (folder / "my.ckpt").write_bytes(b"a model of seeds, which is built in LAMMPS")
    for made, name in ((Stock, "stock.pt"), (Fast, "fast.pt")):
        torch.save(made(folder / "my.ckpt", dtype, size), folder / name)


class Checkpoint(SimpleNamespace):
    """In the place of a SevenNet's checkpoint that is read: builds the same model each time."""

    def build_model(self, **_: Any) -> Any:
        return sevenn(8, torch.float32, **self.size).model


def write_sevenn(folder: Path, dtype: torch.dtype, size: dict[str, Any]) -> None:
    import sevenn._keys as keys
    from sevenn import mliap

    from tpgen.conversion.projects.sevennet_lammps import for_lammps

    if dtype != torch.float32:
        raise ValueError("SevenNet computes in float32")
    config = {keys.CUTOFF: 5.0, keys.CHEMICAL_SPECIES: ["H", "C", "N", "O"]}
    (folder / "my.pth").write_bytes(b"a model of seeds, which is built in LAMMPS")
    with mock.patch.object(mliap, "load_checkpoint", return_value=Checkpoint(config=config, size=size)):
        torch.save(mliap.SevenNetMLIAPWrapper(str(folder / "my.pth")), folder / "stock.pt")
        torch.save(for_lammps(folder / "my.pth"), folder / "fast.pt")


WRITERS: dict[str, Callable[[Path, torch.dtype, dict[str, Any]], None]] = {
    "mace": write_mace,
    "nequip": write_nequip,
    "sevenn": write_sevenn,
}


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Energy and forces before the first step, in eV and eV/Å, and the seconds of a step."""

    energy: float
    forces: Tensor
    seconds: float


def write(folder: Path, project: str, structure: Structure, dtype: torch.dtype, **size: Any) -> None:
    """Write models, structure and input of runs into a folder."""
    (folder / "in.mliap").write_text(INPUT)
    sides = structure.cell.diag().tolist()
    atoms = zip(structure.species.tolist(), (structure.positions % structure.cell.diag()).tolist(), strict=True)
    (folder / "data.lmp").write_text(
        f"a lattice\n\n{len(structure.species)} atoms\n4 atom types\n\n"
        + "".join(f"0 {side:.17g} {x}lo {x}hi\n" for side, x in zip(sides, "xyz", strict=True))
        + "\nMasses\n\n1 1.008\n2 12.011\n3 14.007\n4 15.999\n\nAtoms\n\n"
        + "".join(f"{n} {kind + 1} {x:.17g} {y:.17g} {z:.17g}\n" for n, (kind, (x, y, z)) in enumerate(atoms, 1))
    )
    WRITERS[project](folder, dtype, size)


def run(folder: Path, model: str, ranks: int, steps: int) -> Run:
    """Run dynamics of so many steps with a model of this folder."""
    program = lammps()
    assert program is not None
    paths = [str(Path.cwd()), *sys.path]
    command = [
        "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "core", "-np", str(ranks),
        program, "-k", "on", "t", "1", "-sf", "kk", "-pk", "kokkos", "newton", "on", "neigh", "half",
        "-in", "in.mliap", "-log", "none", "-v", "model", model, "-v", "steps", str(steps),
    ]  # fmt: skip
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(p for p in paths if p), "OMP_NUM_THREADS": "1",
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
    }  # fmt: skip
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"LAMMPS failed: {(done.stdout + done.stderr)[-4000:]}")
    energy = re.search(r"Step\s+PotEng\s+Press\s*\n\s*0\s+(\S+)", done.stdout)
    seconds = re.search(r"Loop time of (\S+)", done.stdout)
    assert energy, done.stdout[-4000:]
    assert seconds
    first = (folder / "forces.dump").read_text().split("ITEM: ATOMS id fx fy fz\n")[1].split("ITEM:")[0]
    forces = torch.tensor([[float(x) for x in row.split()[1:]] for row in first.splitlines()], dtype=torch.float64)
    return Run(float(energy[1]), forces, float(seconds[1]) / max(steps, 1))


SIZES: dict[str, dict[str, Any]] = {
    "mace": {"hidden": "128x0e+128x1o"},
    "nequip": {"features": 64, "l_max": 2},
    "sevenn": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project", choices=WRITERS)
    parser.add_argument("--atoms", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, in turn")
    asked = parser.parse_args()
    if lammps() is None:
        parser.error(f"no LAMMPS with {', '.join(PACKAGES)}: name its program by LMP")
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, asked.project, lattice(asked.atoms, torch.float64), torch.float32, **SIZES[asked.project])
        turns = {("stock.pt", 1): 2, ("fast.pt", 1): 20, ("fast.pt", 2): 20}  # steps of a run
        for model, ranks in turns:
            run(folder, model, ranks, 0)  # kernels are built
        found = {turn: [] for turn in turns}  # type: ignore[var-annotated]
        for _ in range(asked.repeat):
            for (model, ranks), steps in turns.items():
                found[model, ranks].append(run(folder, model, ranks, steps))
    seconds = {turn: median(r.seconds for r in runs) for turn, runs in found.items()}
    wanted = found["stock.pt", 1][0].forces
    for (model, ranks), runs in found.items():
        error = float((runs[0].forces - wanted).abs().max() / wanted.abs().max())
        print(
            f"{asked.project} {asked.atoms} atoms, {model.removesuffix('.pt')}, {ranks} rank(s): "
            f"{seconds[model, ranks]:.4f} s a step, {seconds['stock.pt', 1] / seconds[model, ranks]:.1f} times stock, "
            f"{seconds['fast.pt', 1] / seconds[model, ranks]:.2f} times one rank, forces within {error:.0e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
