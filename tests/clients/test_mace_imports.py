"""e3nn 0.4.4, which MACE pins, in programs that import it themselves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

USE = "print(o3.FullyConnectedTensorProduct('1o', '1o', '0e').weight_numel)"


def run(program: str) -> subprocess.CompletedProcess[str]:
    # MACE, where this process has imported it, lets torch load anything in processes that begin here
    env = {name: value for name, value in os.environ.items() if name != "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"}
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, env=env)


@pytest.mark.parametrize(
    "first",
    [
        "import tpgen",
        "import torch, tpgen",
        "import tpgen, torch",
        "from tpgen import convert",
        "import tpgen.planner.plan",
        "import mace",
        "import mace, tpgen",
        "import tpgen, mace",
    ],
)
def test_e3nn_is_imported_after_tpgen_or_mace(first: str) -> None:
    found = run(f"{first}; from e3nn import o3; {USE}")
    assert found.stdout.splitlines()[-1:] == ["1"], found.stderr


def test_without_either_torch_refuses_its_constants() -> None:
    """The page on MACE says so: where this passes one day, the hook has no use any more."""
    assert "UnpicklingError" in run("from e3nn import o3").stderr
    forgotten = run(
        "import tpgen; from e3nn import o3; import torch; print(slice in torch.serialization.get_safe_globals())"
    )
    assert forgotten.stdout.strip() == "False", "what is allowed is allowed for e3nn's constants alone"
