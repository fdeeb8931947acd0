"""The training example: it learns, resumes to the bit, refuses half a checkpoint, and several processes equal one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

pytest.importorskip("ase", reason="the example makes its data with ase")

import tpgen
from tests.machine import needs_compiler

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SMALL = ["--train", "8", "--valid", "2", "--batch", "4", "--channels", "2", "--strategy", "einsum"]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("train_potential")


def tensors(state: object, name: str = "") -> dict[str, Tensor]:
    if isinstance(state, dict):
        return {k: x for key, value in state.items() for k, x in tensors(value, f"{name}.{key}").items()}
    return {name: state} if isinstance(state, Tensor) else {}


def assert_same(one: Path, other: Path, tolerance: float = 0.0) -> None:
    """Checkpoints are equal: weights, their average, the optimiser, the losses."""
    a, b = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (one, other))
    torch.testing.assert_close(a["history"], b["history"], rtol=tolerance, atol=0.0)
    assert a["epoch"] == b["epoch"]
    found, wanted = tensors(a), tensors(b)
    assert found.keys() == wanted.keys()
    for name, x in found.items():
        same = (
            torch.equal(x, wanted[name]) if tolerance == 0.0 else torch.allclose(x, wanted[name], tolerance, tolerance)
        )
        assert same, name


def train(*options: str) -> None:
    """A run in a process of its own, as interrupted ones go on: what ran before in one may change its last digits."""
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / "train_potential.py"), *options, *SMALL]
    alike = {**os.environ, "MKL_CBWR": "COMPATIBLE"}  # else its sums may depend on where matrices lie in memory
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=alike)
    assert done.returncode == 0, done.stderr


@needs_compiler  # without kernels, e3nn's harmonics stay, whose TorchScript rounds differently from run to run
def test_a_run_that_was_interrupted_goes_on_to_the_bit(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train("--out", str(whole), "--epochs", "3")
    train("--out", str(parts), "--epochs", "2")
    train("--out", str(parts), "--epochs", "3", "--resume")
    assert_same(whole, parts)
    assert (whole / "training.png").stat().st_size > 0
    losses = [before for before, _ in torch.load(whole / "checkpoint.pt", weights_only=True)["history"]]
    assert losses[-1] < losses[0]


def test_the_average_of_the_weights_lags(example: ModuleType, tmp_path: Path) -> None:
    run = example.main(["--out", str(tmp_path), "--epochs", "1", *SMALL])
    state = run.state()
    assert state["updates"] == 2
    name = "readout.weight"
    start = example.prepared(example.parsed(["--out", "x", *SMALL]), example.structures(8, 1), torch.device("cpu"))
    first, mean, last = (s[name] for s in (start.state()["model"], state["averaged"], state["model"]))
    assert ((mean - first).norm() < (last - first).norm()).item()


def test_half_a_checkpoint_is_refused_and_left_as_it_is(example: ModuleType, tmp_path: Path) -> None:
    example.main(["--out", str(tmp_path), "--epochs", "1", *SMALL])
    checkpoint = tmp_path / "checkpoint.pt"
    half = checkpoint.read_bytes()[: checkpoint.stat().st_size // 2]
    checkpoint.write_bytes(half)
    with pytest.raises(example.CheckpointError, match=r"cannot be read .* copied or written in part.* copy it again"):
        example.main(["--out", str(tmp_path), "--epochs", "2", "--resume", *SMALL])
    assert checkpoint.read_bytes() == half
    with pytest.raises(example.CheckpointError, match="is not there: leave --resume out to begin"):
        example.main(["--out", str(tmp_path / "new"), "--epochs", "2", "--resume", *SMALL])


def test_a_write_that_fails_keeps_the_checkpoint_before(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.pt"
    example.save({"epoch": 1}, path)

    def full(state: object, file) -> None:
        file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space"):
        example.save({"epoch": 2}, path)
    assert example.load(path) == {"epoch": 1}


def test_bfloat16_stays_within_its_budget_or_says_so(example: ModuleType, tmp_path: Path) -> None:
    given = ["--out", str(tmp_path), "--epochs", "1", "--autocast", *SMALL]
    example.main(given)
    with pytest.raises(SystemExit, match=r"bfloat16.*0.0%"):
        example.main([*given, "--budget", "1e-6"])


def test_processes_are_asked_for_by_torchrun(example: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--parallel ddp needs torchrun"):
        example.main(["--out", str(tmp_path), "--parallel", "ddp", *SMALL])


def test_the_potential_obeys_every_law(example: ModuleType) -> None:
    data = example.collated(example.structures(1, seed=3))
    potential = importlib.import_module("alloy_potential").Potential(2, strategy="einsum").double()

    class Called(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.potential = potential

        def forward(self, positions: Tensor, shifts: Tensor) -> dict[str, Tensor]:
            fields = {**vars(data), "positions": positions, "shifts": shifts, "elements": data.elements.double()}
            energy, forces = self.potential(example.Batch(**fields))
            return {"energy": energy, "forces": forces}

    report = tpgen.verify(Called(), (data.positions, data.shifts), only=["equivariant", "translation", "forces"])
    assert report.passed, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_equal_one(parallel: str, example: ModuleType, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    example.main(["--out", str(one), "--epochs", "2", *SMALL])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    script = [str(EXAMPLES / "train_potential.py"), "--out", str(two), "--epochs", "2", "--parallel", parallel]
    done = subprocess.run([*command, *script, *SMALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_same(one, two, tolerance=1e-3)  # float32 sums in another order, through two epochs of Adam
