"""MACE itself: every interaction block, its files, calculator, training program, dynamics, and what LAMMPS reads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen, run
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from tests.clients.checks import carbon, check_everything
from tests.clients.pages import ROOT
from tests.clients.projects import BLOCKS
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.swap import get_swap_mark
from tpgen.tools.cli.app import main

from benchmarks.networks import mace  # isort: skip  (after tpgen, which lets torch load the constants of e3nn 0.4.4)

TRAINING = [
    "--name=tiny", "--train_file=carbon.xyz", "--valid_fraction=0.2", "--E0s=average", "--model=ScaleShiftMACE",
    "--r_max=3.0", "--num_channels=8", "--max_L=1", "--batch_size=4", "--max_num_epochs=2", "--device=cpu",
    "--default_dtype=float64", "--energy_key=REF_energy", "--forces_key=REF_forces", "--ema", "--swa", "--start_swa=1",
    "--save_cpu",
]  # fmt: skip


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_is_converted_and_equal(block: str) -> None:
    model = check_everything(mace(27, torch.float64, "8x0e+8x1o", block))
    done = {path: r.now for r in conversion_report(model).replaced for path in r.paths}
    for n in range(2):
        assert done[f"interactions.{n}.conv_tp"].startswith("tpgen convolution")
        assert done[f"products.{n}.symmetric_contractions"].startswith("tpgen polynomial")


@pytest.mark.parametrize("first", BLOCKS)
@pytest.mark.parametrize("block", BLOCKS)
def test_any_two_blocks_convert_and_are_restored(block: str, first: str) -> None:
    case = mace(8, torch.float64, "3x0e+3x1o", block, first, max_ell=1)
    wanted, attributes = case.run(case.model, False), {*case.model.state_dict()}
    for change, limit in ((convert, 1e-12), (restore, 0.0)):
        for name, x in case.run(change(case.model), False).items():
            torch.testing.assert_close(x, wanted[name], rtol=0.0, atol=limit * float(x.abs().max().clamp_min(1.0)))
    assert {*case.model.state_dict()} == attributes


def test_a_converted_model_scripts() -> None:
    from e3nn.util import jit

    case = mace(27, torch.float64, "8x0e+8x1o")
    wanted = case.run(case.model, False)
    scripted = jit.compile(convert(case.model))
    found = case.run(scripted, False)
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-10, atol=1e-10)


def test_a_part_that_is_kept_keeps_its_contraction_and_reports_follow_the_dtype() -> None:
    model = mace(27, torch.float64, "8x0e").model
    convert(model, keep="products.0.symmetric_contractions.contractions.0")
    words = {}
    for dtype in (torch.float64, torch.float16):
        rows = conversion_report(model.to(dtype)).replaced
        words[dtype] = [r.now.partition(" (")[0] for r in rows if "symmetric" in r.paths[0]]
    assert words == {torch.float64: ["tpgen polynomial, kernel"], torch.float16: ["MACE's own code"]}


def test_steps_of_a_contraction_may_be_hooked_after_the_conversion() -> None:
    case = mace(8, torch.float64, "4x0e")
    model, found = convert(deepcopy(case.model)), []
    for network in (case.model, model):
        step = network.products[0].symmetric_contractions.contractions[0].contractions_features[0]
        step.register_forward_pre_hook(lambda _step, given: (1.5 * given[0], *given[1:]))
        found.append(case.run(network, False))
    for name, x in found[0].items():
        torch.testing.assert_close(found[1][name], x, rtol=1e-10, atol=1e-10)


def calculator(**given: Any) -> Any:
    from mace.calculators import MACECalculator

    return MACECalculator(**given, device="cpu", default_dtype="float64")


def tpgen(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.output


def test_files_are_converted_and_restored(tmp_path: Path) -> None:
    stock, there, back = (tmp_path / f"{name}.model" for name in ("stock", "converted", "back"))
    model = mace(8, torch.float64, "8x0e+8x1o").model
    torch.save(model, stock)
    assert "0 stay as they are" in tpgen("mace-convert", stock, there)
    tpgen("mace-convert", "--restore", there, back)
    energies = []
    for file in (stock, there, back):
        atoms = carbon()
        atoms.calc = calculator(model_paths=[str(file)])
        energies.append(atoms.get_potential_energy())
    assert energies[1] == pytest.approx(energies[0], rel=1e-10)
    assert energies[2] == energies[0]
    assert not mark_names(torch.load(back, weights_only=False))


def mark_names(model: torch.nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if get_swap_mark(module) is not None]


def test_the_training_program_gives_the_same_losses(tmp_path: Path) -> None:
    write_training_set(tmp_path / "carbon.xyz")
    output, losses = trained_by_both(tmp_path, TRAINING)
    assert "modules compute with tpgen, 0 stay" in output
    assert len(losses[0]) > 6
    for saved in ("tiny.model", "tiny_stagetwo.model"):
        assert_same_weights(tmp_path, saved, 1e-8)


def trained_by_both(folder: Path, arguments: Sequence[str]) -> tuple[str, list[list[float]]]:
    """What MACE's training program says where it is run by tpgen, and the losses of stock and of that, which agree."""
    programs = {"stock": ["mace.cli.run_train"], "converted": ["tpgen", "mace-run-train"]}
    started = [
        Popen(
            [sys.executable, "-W", "ignore", "-m", *module, *arguments, f"--work_dir={name}"],
            cwd=folder, stdout=PIPE, stderr=STDOUT, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for name, module in programs.items()
    ]  # fmt: skip
    for process in started:
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output
    losses = [
        [json.loads(line)["loss"] for file in (folder / name).glob("results/*.txt") for line in file.open()]
        for name in programs
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-8)
    return output, losses


def assert_same_weights(folder: Path, saved: str, limit: float) -> None:
    """The model of the converted program is stock, and has the weights of the stock program's."""
    theirs, ours = (torch.load(folder / name / saved, weights_only=False) for name in ("stock", "converted"))
    assert not mark_names(ours)
    for wanted, found in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=limit, atol=1e-8)


def write_training_set(file: Path) -> None:
    from ase.calculators.lj import LennardJones
    from ase.io import write

    frames = []
    for seed in range(10):
        atoms = carbon(seed)
        atoms.calc = LennardJones(sigma=1.4, epsilon=0.1, rc=3.0)
        frame = atoms.copy()
        frame.info["REF_energy"], frame.arrays["REF_forces"] = atoms.get_potential_energy(), atoms.get_forces()
        frames.append(frame)
    write(file, frames)


def test_a_file_for_lammps_runs_where_tpgen_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mace.cli import create_lammps_model

    model = mace(8, torch.float64, "8x0e+8x1o").model
    files = [tmp_path / name for name in ("stock.model", "converted.model")]
    for file, change in zip(files, (lambda m: m, convert), strict=True):
        torch.save(change(model), file)
        monkeypatch.setattr(sys, "argv", ["mace_create_lammps_model", str(file), "--head=Default"])
        create_lammps_model.main()
    everywhere = torch.ones(6, dtype=torch.float64)
    found, wanted = (torch.jit.load(f"{f}-lammps.pt")(graph(), everywhere, True) for f in reversed(files))
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-10, atol=1e-10)
    alone = f"import torch; torch.jit.load({str(files[1]) + '-lammps.pt'!r})"
    process = run([sys.executable, "-c", alone], capture_output=True, text=True)
    assert "Unknown builtin op: tpgen::" in process.stderr


def graph(nodes: int = 6) -> dict[str, torch.Tensor]:
    """Atoms that all see each other, as LAMMPS hands them over."""
    edges = torch.nonzero(~torch.eye(nodes, dtype=torch.bool)).T.contiguous()
    zeros = torch.zeros(edges.shape[1], 3, dtype=torch.float64)
    positions = 3 * torch.rand(nodes, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return {
        "positions": positions, "edge_index": edges, "unit_shifts": zeros, "shifts": zeros,
        "vectors": (positions[edges[1]] - positions[edges[0]]).requires_grad_(),
        "cell": 10 * torch.eye(3, dtype=torch.float64), "batch": torch.zeros(nodes, dtype=torch.int64),
        "node_attrs": torch.eye(4, dtype=torch.float64)[torch.arange(nodes) % 4], "ptr": torch.tensor([0, nodes]),
    }  # fmt: skip


class Lammps:
    """What the Python interface of LAMMPS does between layers, where no atom is a ghost."""

    def forward_exchange(self, features: torch.Tensor, out: torch.Tensor, _: int) -> None:
        out.copy_(features)

    reverse_exchange = forward_exchange


def test_the_python_interface_of_lammps_takes_a_converted_model(tmp_path: Path) -> None:
    from mace.calculators.lammps_mliap_mace import LAMMPS_MLIAP_MACE

    model = mace(8, torch.float64, "8x0e+8x1o").model
    model.lammps_mliap = True
    torch.save(LAMMPS_MLIAP_MACE(model), tmp_path / "stock.pt")
    tpgen("mace-convert", tmp_path / "stock.pt", tmp_path / "converted.pt")
    results = []
    for name in ("stock.pt", "converted.pt"):
        given = {**graph(), "lammps_class": Lammps(), "natoms": (6, 0)}
        results.append(torch.load(tmp_path / name, weights_only=False).model(given))
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert results[0][2].abs().max() > 0.01
