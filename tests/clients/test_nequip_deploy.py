"""Files of NequIP's, Allegro's among them, deployed by one line, against stock."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from nequip.model.saved_models import load_utils

from benchmarks.networks import allegro, nequip
from tests.clients.checks import check_deployed, check_products, deployed_programs
from tpgen.base.errors import DeployError
from tpgen.networks.deployment.models import OfStructures, model_of
from tpgen.tools.cli.app import main

MODELS = {
    "nequip": partial(nequip, features=4, l_max=1, layers=1),
    "allegro": partial(allegro, features=4, scalars=8, l_max=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_is_deployed_by_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = deployed_programs(monkeypatch)
    cases = {atoms: MODELS[name](atoms, torch.float64) for atoms in (27, 16)}
    model = cases[27].model.eval()
    monkeypatch.setattr(load_utils, "load_saved_model", lambda _: deepcopy(model))  # a checkpoint takes a training run
    (tmp_path / "best.ckpt").touch()
    done = CliRunner().invoke(main, ["deploy", "--nequip", f"{tmp_path}/best.ckpt", "--out", f"{tmp_path}/potential"])
    assert done.exit_code == 0, done.output
    check_products(programs)
    refused = ("an edge", "an atom and an image") if name == "allegro" else ()
    check_deployed(tmp_path / "potential", model, cases, refused=refused)
    names = (tmp_path / "potential" / "model.nequip.pt2").read_bytes()
    assert b"nequip_aoti_inputs" in names
    assert b"pos edge_index atom_types cell edge_cell_shift" in names


def test_an_allegro_takes_ghosts_in_the_place_of_a_cell() -> None:
    network = MODELS["allegro"](27, torch.float64).model.eval()
    model = model_of(network)
    local = model.with_ghosts(network)
    structure = model.example()
    wanted = dict(zip(model.outputs, OfStructures(network, model)(*structure), strict=True))
    found = OfStructures(network, local)(*structure[:3])
    assert len(local.example()) == len(local.inputs) == 3
    for name, x in zip(local.outputs, found, strict=True):
        torch.testing.assert_close(x, wanted[name], rtol=1e-12, atol=1e-12)


def test_ghosts_of_a_network_that_passes_messages_are_refused() -> None:
    network = MODELS["nequip"](27, torch.float64).model
    with pytest.raises(DeployError, match="only Allegro"):
        model_of(network).with_ghosts(network)
