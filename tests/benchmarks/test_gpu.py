"""The script for a machine with a GPU does on a CPU what needs none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks import gpu
from tests.machine import needs_compiler
from tpgen.planner.presets import channelwise


def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(gpu.main, ["--json", str(tmp_path / "gpu.json")])
    assert done.exit_code == 1
    assert "no kernel can run here: torch sees no CUDA device" in done.output


@needs_compiler
def test_all_of_it_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = channelwise("4x0e+4x1o", "0e+1o", "0e+1o", shared_weights=False)
    monkeypatch.setattr(gpu, "plans", lambda: [("small", small)])
    monkeypatch.setattr(gpu.check_repetitions, "__defaults__", (2,))
    file = tmp_path / "gpu.json"
    options = ["--device", "cpu", "--rows", "40", "--seconds", "0.001", "--only", "nequip-aspirin"]
    done = CliRunner().invoke(gpu.main, [*options, "--json", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert {row["task"] for row in found["times"]} >= {"forward", "backward", "conv forward", "conv backward"}
    assert all(check["passed"] for check in found["checks"])
    assert all(0 < row["predicted"] <= 1 for row in found["times"] if "predicted" in row)


def test_a_failed_check_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    report = gpu.Report("cpu")
    report.check("something", False, "why")
    assert not report.passed
    assert capsys.readouterr().out == "FAIL something: why\n"
