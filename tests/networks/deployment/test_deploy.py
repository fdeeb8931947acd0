"""A whole potential deployed: loaded by a Python without tpgen and by a program in C++."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import tpgen
from tests.machine import needs_compiler
from tests.networks.deployment.elsewhere import NETWORK, run_without_tpgen
from tests.networks.deployment.network import FEW, Potential, inputs, make
from tpgen.base.errors import DeployError
from tpgen.networks.deployment.example import build_example, run_example
from tpgen.tools.cli.app import main

pytestmark = [pytest.mark.slow, needs_compiler]

LOAD = f"""{NETWORK}
found = [network(*inputs) for inputs in given]
def said(call):
    try:
        call()
    except RuntimeError as error:
        assert "Exception raised from" not in str(error), "a stack of C++"
        print(*str(error).split(), sep=" ")
for places, kinds, edges in given[:1]:
    said(lambda: network(places.clone().requires_grad_(), kinds, edges))
    said(lambda: network(places.float(), kinds, edges))
    said(lambda: network(places[:, :2].contiguous(), kinds, edges))
    said(lambda: network(places, kinds[:-1], edges))
    said(lambda: network(places, kinds, edges + len(places)))
    said(lambda: load(sys.argv[3]))
"""
# of these calls, in their order
SAID = (
    "an input requires a gradient, and this package computes values",
    r"input_handles\[0\]: unmatched dtype",
    r"input_handles\[0\]: unmatched dim value at 1, expected: 3",
    r"this package is for inputs with inputs\[1\].shape\[0\] == inputs\[0\].shape\[0\]: use the network as it is",
    "index out of bounds: .*: an edge or another index points to a row that is not there$",
    "another deployed network serves the operators of this process",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("deployed") / "potential"
    done = CliRunner().invoke(main, ["deploy", "tests.networks.deployment.network:make", "--out", str(made)])
    assert done.exit_code == 0, done.output
    return made


def test_the_folder_says_what_it_is(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert "| `positions` | (atoms, 3) | float64 |\n| `elements` | (atoms, 3) | float64 |" in text
    assert "Sizes that are words or letters may vary, down to 0 unless the table names another least." in text
    assert "| `edges` | (a ≥ 2, edges) | int64 |" in text
    assert "{" not in text
    assert [path.name for path in folder.parent.iterdir()] == ["potential"]
    assert set(json.loads((folder / "manifest.json").read_text())["files"]) > {"model.pt2", "kernels/7.so"}


def loaded(folder: Path, given: list, tmp_path: Path) -> list:
    other = shutil.copytree(folder, tmp_path / "other", dirs_exist_ok=True)
    found, said = run_without_tpgen(folder, LOAD, given, (other,))
    if given:
        assert all(map(re.match, SAID, said)), said
        assert len(said) == len(SAID)
    return found


def test_python_without_tpgen_computes_energies_and_forces(folder: Path, tmp_path: Path) -> None:
    network, _ = make()
    given = [*map(inputs, (5, 3, 9)), *FEW]
    for found, wanted in zip(loaded(folder, given, tmp_path), given, strict=True):
        torch.testing.assert_close(tuple(found), network(*wanted), rtol=1e-12, atol=1e-12)


WITH_TPGEN = """
import tpgen, torch, sys
sys.path.insert(0, sys.argv[1])
from load import load
network = load()
torch.save([network(*inputs) for inputs in torch.load(sys.argv[2])], sys.argv[2])
product = tpgen.TensorProduct("4x1o", "1o", "4x0e", [(0, 0, 0, "uvu", True)], strategy="kernel")
product(torch.ones(2, 12), torch.ones(2, 3))
"""


def test_python_with_tpgen_serves_both(folder: Path, tmp_path: Path) -> None:
    (network, _), given = make(), [inputs(), *FEW]
    torch.save(given, tmp_path / "given.pt")
    command = [sys.executable, "-c", WITH_TPGEN, folder, tmp_path / "given.pt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for found, wanted in zip(torch.load(tmp_path / "given.pt"), given, strict=True):
        torch.testing.assert_close(tuple(found), network(*wanted), rtol=1e-12, atol=1e-12)


def test_a_program_in_cpp_computes_energies_and_forces(folder: Path, tmp_path: Path) -> None:
    build_example(folder / "example.cpp", tmp_path / "example")
    network, example = make()
    copied = Path(shutil.copytree(folder, tmp_path / "copy"))
    for given in (example, *FEW):
        torch.save([x.contiguous() for x in given], copied / "inputs.pt")
        found = run_example(tmp_path / "example", copied)
        wanted = [x.flatten() for x in network(*given)]
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def scripted(potential: Potential, given: list, file: Path) -> Path:
    """The energy alone, its contraction by a trace: TorchScript does not read polynomials."""
    energy, seen = copy.deepcopy(potential.energy), []
    hook = energy.contraction.register_forward_pre_hook(lambda module, inputs: seen.append(inputs))
    energy(*given)
    hook.remove()
    energy.contraction = torch.jit.trace(energy.contraction, seen[0], check_trace=False)
    torch.jit.script(energy).save(file)
    return file


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_program_in_cpp_loads_torchscript(folder: Path, tmp_path: Path) -> None:
    """A portable network has forces by libtorch's autograd; one with kernels finds them in a deployed folder."""
    network, given = make()
    wanted = [x.flatten() for x in network(*given)]
    program = tmp_path / "program"
    build_example(Path(__file__).parents[3] / "docs" / "examples" / "torchscript.cpp", program)
    plain = scripted(tpgen.portable(network), given, tmp_path / "plain.pt")
    torch.testing.assert_close(run_example(program, plain, folder / "inputs.pt"), wanted)
    kernels = scripted(network, given, tmp_path / "kernels.pt")
    energy = run_example(program, kernels, folder / "inputs.pt", folder / "libtpgen.so")
    torch.testing.assert_close(energy, wanted[:1])
    with pytest.raises(DeployError, match="Unknown builtin op: tpgen"):
        run_example(program, kernels, folder / "inputs.pt")


@pytest.mark.parametrize(
    "file, damage, message",
    [
        ("model.pt2", lambda x: x[:1000], "model.pt2 is not what was deployed: copy the whole folder again"),
        ("kernels/0.so", lambda x: b"", "kernels/0.so is not what was deployed"),
        ("libtpgen.so", None, "libtpgen.so is missing: copy the whole folder again"),
        ("manifest.json", lambda x: x.replace(b'"torch": "', b'"torch": "9'), "deployed with torch 92.*use that one"),
        (
            "manifest.json",
            lambda x: x.replace(b'"features": [', b'"features": ["xop", '),
            "processor with xop: dep",
        ),
    ],
)
def test_damaged_folders_say_so(folder: Path, tmp_path: Path, file: str, damage, message: str) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "copy"))
    whole = (copied / file).read_bytes()
    (copied / file).unlink()
    if damage is not None:
        (copied / file).write_bytes(damage(whole))
    with pytest.raises(AssertionError, match=message):
        loaded(copied, [], tmp_path)
