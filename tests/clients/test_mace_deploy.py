"""MACE deployed by the recipe of docs/deploy.md, against stock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from tests.clients.checks import check_deployed, check_few, check_products, deployed_programs, few
from tests.clients.pages import snippets
from tpgen.networks.deployment.example import build_example, run_example
from tpgen.networks.deployment.models import OfStructures, describe_model
from tpgen.tools.cli.app import main

from benchmarks.networks import mace  # isort: skip  (after tpgen, which lets torch load the constants of e3nn 0.4.4)

LOAD = """
import sys, torch
sys.path.insert(0, "potential")
from load import load
network = load()
given = torch.load("given.pt")
torch.save([network(*inputs) for inputs in given], "found.pt")
given[0][1][0] = 1
try:
    network(*given[0])
except RuntimeError as error:
    print(error)
"""


def recipe() -> str:
    """The snippet of the page that makes a network of MACE's."""
    (found,) = (text for text in snippets("docs/deploy.md") if "my.model" in text)
    return found


def test_the_recipe_of_the_page_deploys_mace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cases = [mace(atoms, torch.float64, "8x0e+8x1o") for atoms in (27, 16)]
    for case in cases:
        case.model.load_state_dict(cases[0].model.state_dict())
    torch.save(cases[0].model, "my.model")
    torch.save(cases[0].batch, "batch.pt")
    Path("model.py").write_text(recipe())
    done = CliRunner().invoke(main, ["deploy", "model:make", "--out", "potential"])
    assert done.exit_code == 0, done.output
    names = sys.modules.pop("model").INPUTS
    torch.save([[case.batch[name] for name in names] for case in cases], "given.pt")
    loaded = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    assert "takes one-hot node_attrs alone" in loaded.stdout
    for case, found in zip(cases, torch.load("found.pt"), strict=True):
        wanted = case.run(case.model, False)
        for x, (name, y) in zip(found, wanted.items(), strict=True):
            assert (x - y).abs().max() <= 1e-12 * y.abs().max(), name


def test_a_model_file_is_deployed_by_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = deployed_programs(monkeypatch)
    cases = {atoms: mace(atoms, torch.float64, "8x0e+8x1o") for atoms in (27, 16)}
    torch.save(cases[27].model, tmp_path / "my.model")
    done = CliRunner().invoke(main, ["deploy", "--mace", f"{tmp_path}/my.model", "--out", f"{tmp_path}/potential"])
    assert done.exit_code == 0, done.output
    check_products(programs)
    check_deployed(tmp_path / "potential", cases[27].model, cases)
    shown = run_example(_built(tmp_path), tmp_path / "potential")
    given = torch.load(tmp_path / "potential" / "inputs.pt")
    model = describe_model(cases[27].model)
    wanted = OfStructures(cases[27].model, model)(*given)
    assert len(given[0]) > 1
    for name, x, y in zip(model.outputs, shown, wanted, strict=True):
        assert (x - y.flatten()).abs().max() <= 1e-12 * y.abs().max(), name
    for name, inputs in few().items():
        torch.save([x.contiguous() for x in inputs], tmp_path / "potential" / "inputs.pt")
        shown = run_example(tmp_path / "example", tmp_path / "potential")
        check_few(shown, OfStructures(cases[27].model, model)(*inputs), name, 1e-12)


def _built(folder: Path) -> Path:
    build_example(folder / "potential" / "example.cpp", folder / "example")
    return folder / "example"
