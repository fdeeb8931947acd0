"""Names of modules in files that tpgen 0.1 wrote: pickles of converted networks, deployed folders, entry points."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tpgen._moved import today
from tpgen.conversion.convert import conversion_report, restore

SAVED = Path(__file__).parent / "saved"
# what pickles of converted MACE and NequIP models name, each line a module and what stands in it
NAMES = [line.split() for line in (SAVED / "names.txt").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("file", sorted((SAVED / "converted").glob("*.pt")), ids=lambda file: file.stem)
def test_converted_networks_load_and_are_restored(file: Path) -> None:
    saved = torch.load(file, weights_only=False)
    module = saved["module"]
    assert conversion_report(module).replaced
    for network in (module, restore(module)):
        torch.testing.assert_close(network(*saved["operands"]), saved["result"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda text: text)
def test_what_a_pickle_names_is_there(module: str, name: str) -> None:
    """Read off the source, as some modules need the project that they serve."""
    spec = find_spec(today(module) or module)
    assert spec is not None
    assert spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    aliases = {n.id for node in body if isinstance(node, ast.Assign) for n in ast.walk(node) if isinstance(n, ast.Name)}
    imported = {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert name in {getattr(node, "name", None) for node in body} | aliases | imported


@pytest.mark.parametrize(
    ("old", "name"),
    [
        ("tpgen.integrations.mace", "MaceConvolution"),
        ("tpgen.kernels.activations.bessel", "CutBessel"),
        ("tpgen.kernels.activations.gate", "GateTable"),
        ("tpgen.kernels.operators.ops", "kernel_product"),  # as load.py of a deployed folder does
        ("tpgen.kernels.polynomial.operator", "kernel_polynomial"),  # and pickled programs
        ("tpgen.nn.pairs", "mark"),
        ("tpgen.demo.deployed", "PairEnergy"),
    ],
)
def test_an_old_name_leads_to_the_module_of_today(old: str, name: str) -> None:
    assert getattr(import_module(old), name) is getattr(import_module(today(old)), name)


@pytest.mark.parametrize(
    ("name", "missing"),
    [("tpgen.integrations.orb", "tpgen.conversion.projects.orb"), ("tpgen.integration", "tpgen.integration")],
)
def test_other_names_are_not_found(name: str, missing: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=rf"'{missing}'"):
        import_module(name)
