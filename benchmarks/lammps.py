"""Converted networks in LAMMPS itself, on one rank or several, beside stock.

    LMP=path/to/lmp .clients/mace/bin/python -m benchmarks.lammps mace --atoms 1000

LAMMPS must be built with ML-IAP, PYTHON and KOKKOS, for this Python, and its own Python package must be importable.
A deployed network needs pair_nequip: built into LAMMPS, or as a plugin that the variable LMP_PLUGIN names.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shutil import which
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import tpgen
from benchmarks.networks import Structure, allegro, lattice, mace, nequip, sevenn

PACKAGES = {"ML-IAP", "PYTHON", "KOKKOS"}

INPUT = """\
units metal
atom_style atomic
atom_modify map yes
newton {newton}
read_data data.lmp
{before}
pair_style {style}
pair_coeff * * {elements}
neighbor 1.0 bin
neigh_modify every 1 delay 0 check yes
timestep 0.0005
velocity all create 300.0 12345 loop geom
fix moves all nve
thermo_style custom step pe press
thermo_modify format float %.15g norm no
dump forces all custom 1000000 forces.dump id fx fy fz
dump_modify forces sort id format float %.17g
run {steps}
"""


@dataclass(frozen=True)
class Way:
    """A way by which LAMMPS calls a model: lines of its input, options and variables of its program."""

    style: str
    elements: str = "H C N O"
    newton: str = "on"
    before: str = ""
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


def by_python(model: str) -> Way:
    return Way(
        f"mliap unified {model} 0",
        before="fix buffers all property/atom d2_buffers 2000 ghost yes",
        options=("-k", "on", "t", "1", "-sf", "kk", "-pk", "kokkos", "newton", "on", "neigh", "half"),
        variables={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
    )


def by_package(style: str) -> Way:
    """A deployed network, which runs without Python."""
    plugin = os.environ.get("LMP_PLUGIN", "")
    libraries = [f"{Path(torch.__file__).parent}/lib", *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return Way(
        style,
        elements="potential/model.nequip.pt2 H C N O",
        newton="on" if style == "allegro" else "off",
        before=f"plugin load {Path(plugin).absolute()}" if plugin else "",
        variables={"LD_PRELOAD": "potential/libtpgen.so", "LD_LIBRARY_PATH": os.pathsep.join(libraries)},
    )


WAYS: dict[str, Way] = {
    "stock": by_python("stock.pt"),
    "converted": by_python("fast.pt"),
    "deployed": by_package("nequip"),
    "deployed allegro": by_package("allegro"),
}


@cache
def lammps() -> str | None:
    """The program of a LAMMPS that calls models in Python: that of the variable LMP, or one called ``lmp``."""
    found = which(os.environ.get("LMP", "lmp"))
    return str(Path(found).absolute()) if found and set(_help(found)) >= PACKAGES else None


def has_packages() -> bool:
    """Whether the program also runs deployed networks."""
    return bool(os.environ.get("LMP_PLUGIN")) or "nequip" in _help(str(lammps()))


def _help(program: str) -> list[str]:
    return subprocess.run([program, "-h"], capture_output=True, text=True).stdout.split()


# --- models -----------------------------------------------------------------------------------------------------------


def write_mace(folder: Path, dtype: torch.dtype, size: dict[str, Any]) -> torch.nn.Module:
    from mace.calculators.lammps_mliap_mace import LAMMPS_MLIAP_MACE

    from tpgen.networks.conversion.projects.lammps import write_for_lammps

    model = mace(8, dtype, **size).model
    torch.save(model, folder / "my.model")
    write_for_lammps(folder / "my.model", folder / "fast.pt", "mace")
    whole = deepcopy(model)
    whole.lammps_mliap = True  # type: ignore[assignment]
    with mock.patch.dict(os.environ, MACE_ALLOW_CPU="true"):  # which is read here
        torch.save(LAMMPS_MLIAP_MACE(whole), folder / "stock.pt")
    return model


def write_nequip(folder: Path, dtype: torch.dtype, size: dict[str, Any]) -> torch.nn.Module:
    from benchmarks.lammps_nequip import Fast, Stock

    (folder / "my.ckpt").write_bytes(b"a model of seeds, which is built in LAMMPS")
    for made, name in ((Stock, "stock.pt"), (Fast, "fast.pt")):
        torch.save(made(folder / "my.ckpt", dtype, size), folder / name)
    return nequip(8, dtype, **size).model


def write_sevenn(folder: Path, dtype: torch.dtype, size: dict[str, Any]) -> torch.nn.Module:
    import sevenn._keys as keys
    from sevenn import mliap

    from benchmarks.lammps_sevenn import Checkpoint
    from tpgen.networks.conversion.projects.sevennet_lammps import LammpsSevenNet

    if dtype != torch.float32:
        raise ValueError("SevenNet computes in float32")
    config = {keys.CUTOFF: 5.0, keys.CHEMICAL_SPECIES: ["H", "C", "N", "O"]}
    (folder / "my.pth").write_bytes(b"a model of seeds, which is built in LAMMPS")
    with mock.patch.object(mliap, "load_checkpoint", return_value=Checkpoint(config=config, size=size)):
        torch.save(mliap.SevenNetMLIAPWrapper(str(folder / "my.pth")), folder / "stock.pt")
        torch.save(LammpsSevenNet.load_file_for_lammps(folder / "my.pth"), folder / "fast.pt")
    return sevenn(8, dtype, **size).model


def write_allegro(folder: Path, dtype: torch.dtype, size: dict[str, Any]) -> torch.nn.Module:
    return allegro(8, dtype, **size).model


WRITERS: dict[str, Callable[[Path, torch.dtype, dict[str, Any]], torch.nn.Module]] = {
    "mace": write_mace,
    "nequip": write_nequip,
    "sevenn": write_sevenn,
    "allegro": write_allegro,
}


# --- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Energy and forces before the first step, in eV and eV/Å, and the seconds of a step."""

    energy: float
    forces: Tensor
    seconds: float


def write(
    folder: Path, project: str, structure: Structure, dtype: torch.dtype, *, deploys: bool = False, **size: Any
) -> torch.nn.Module:
    """Write a structure and models of seeds, where asked also deployed, into a folder; return the stock model."""
    sides = structure.cell.diag().tolist()
    atoms = zip(structure.species.tolist(), (structure.positions % structure.cell.diag()).tolist(), strict=True)
    (folder / "data.lmp").write_text(
        f"a lattice\n\n{len(structure.species)} atoms\n4 atom types\n\n"
        + "".join(f"0 {side:.17g} {x}lo {x}hi\n" for side, x in zip(sides, "xyz", strict=True))
        + "\nMasses\n\n1 1.008\n2 12.011\n3 14.007\n4 15.999\n\nAtoms\n\n"
        + "".join(f"{n} {kind + 1} {x:.17g} {y:.17g} {z:.17g}\n" for n, (kind, (x, y, z)) in enumerate(atoms, 1))
    )
    model = WRITERS[project](folder, dtype, size).eval()
    if deploys:
        tpgen.deploy(tpgen.convert(deepcopy(model)), None, folder / "potential", ghosts=project == "allegro")
    return model


def run(folder: Path, way: Way, ranks: int, steps: int) -> Run:
    """Run dynamics of so many steps with a model of this folder."""
    (folder / "in.lmp").write_text(INPUT.format(**vars(way), steps=steps))
    command = [
        *f"mpirun --allow-run-as-root --oversubscribe --bind-to core -np {ranks}".split(),
        *[word for name, value in way.variables.items() for word in ("-x", f"{name}={value}")],
        str(lammps()), *way.options, "-in", "in.lmp", "-log", "none",
    ]  # fmt: skip
    paths = [str(Path.cwd()), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in paths if p), "OMP_NUM_THREADS": "1"}
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
    parser.add_argument("project", choices=SIZES)
    parser.add_argument("--atoms", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, in turn")
    asked = parser.parse_args()
    if lammps() is None:
        parser.error(f"no LAMMPS with {', '.join(sorted(PACKAGES))}: name its program by LMP")
    turns = {("stock", 1): 2, ("converted", 1): 20, ("converted", 2): 20}  # steps of a run
    if has_packages():
        turns["deployed", 1] = 20
    with TemporaryDirectory() as name:
        folder, structure = Path(name), lattice(asked.atoms, torch.float64)
        write(folder, asked.project, structure, torch.float32, deploys=has_packages(), **SIZES[asked.project])
        for way, ranks in turns:
            run(folder, WAYS[way], ranks, 0)  # kernels are built
        found: dict[tuple[str, int], list[Run]] = {turn: [] for turn in turns}
        for _ in range(asked.repeat):
            for (way, ranks), steps in turns.items():
                found[way, ranks].append(run(folder, WAYS[way], ranks, steps))
    seconds = {turn: median(r.seconds for r in runs) for turn, runs in found.items()}
    wanted = found["stock", 1][0].forces
    for (way, ranks), runs in found.items():
        error = float((runs[0].forces - wanted).abs().max() / wanted.abs().max())
        print(
            f"{asked.project} {asked.atoms} atoms, {way}, {ranks} rank(s): {seconds[way, ranks]:.4f} s a step, "
            f"{seconds['stock', 1] / seconds[way, ranks]:.1f} times stock, "
            f"{seconds['converted', 1] / seconds[way, ranks]:.2f} times one rank, forces within {error:.0e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
