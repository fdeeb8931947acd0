"""What must hold on a processor of another kind: every law in both dtypes, a network proven, a package that is called.

Run by `make test-arm` on an emulated machine, and by name on a real one: ``pytest tests/arm/checks.py``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.test_compilers import _no_kernel_is_known, older, test_instruction_sets  # noqa: F401  run here too
from tests.machine import needs_compiler
from tests.networks.deployment.test_runtime import test_operators_without_python_compute_the_same  # noqa: F401
from tests.networks.deployment.test_runtime import (
    test_what_cannot_run_says_why_at_the_first_call as check_what_cannot_run,
)
from tpgen.networks.deployment.deploy import deploy
from tpgen.networks.deployment.runtime import list_processor_features
from tpgen.nn.modules import build_module, list_size_keywords
from tpgen.planner.problems import LINEARS, POLYNOMIALS, PROBLEMS
from tpgen.tools.demo.potential import convert_potential, make_pair_energy_example
from tpgen.tools.verification.verify import verify

pytestmark = needs_compiler
# products with vectors over rows and over channels, linear layers, polynomials
NAMES = ("tetris-1", "nequip-aspirin", "mace-readout", "nequip-linear", "small-contraction", "harmonics")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_law_holds(name: str, dtype: torch.dtype) -> None:
    problem = {**PROBLEMS, **LINEARS, **POLYNOMIALS}[name]
    sizes = list_size_keywords(problem.plan, min(problem.channels, 3), min(problem.elements, 2))
    report = verify(build_module(problem.plan, **sizes, strategy="kernel").to(dtype), rows=4)
    assert report.passed, str(report)


def test_a_network_is_proven() -> None:
    found = convert_potential(8, 1)[2]
    assert found.proof is not None
    assert found.proof.holds, str(found)


CALL = """
import sys, torch
sys.modules["tpgen"] = None
sys.path.insert(0, sys.argv[1])
from load import load
torch.save(load()(*torch.load(sys.argv[1] + "/inputs.pt")), sys.argv[1] + "/results.pt")
"""


def test_a_package_is_called_without_tpgen(tmp_path: Path) -> None:
    network, given = make_pair_energy_example()
    deploy(network, given, tmp_path / "package")
    done = subprocess.run([sys.executable, "-c", CALL, tmp_path / "package"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    torch.testing.assert_close(tuple(torch.load(tmp_path / "package" / "results.pt")), network(*given))


def test_the_features_of_the_processor_are_known() -> None:
    assert {"asimd", "avx2"} & set(list_processor_features())


def test_kernels_for_another_processor_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = "tpgen: built for a processor with xop; deploy on the machine"
    check_what_cannot_run("a feature", wanted, tmp_path, monkeypatch)
