"""Checkpoints deployed by one line, against stock; test_mace_deploy.py deploys MACE's files."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from tests.clients.checks import check_deployed, check_products, deployed_programs
from tests.clients.projects import PROJECTS
from tpgen.tools.cli.app import main

# option and module of what reads a checkpoint, the function there, and what it returns
READERS: dict[str, tuple[str, str, str, Any]] = {
    "nequip": ("--nequip", "nequip.model.saved_models.load_utils", "load_saved_model", deepcopy),
    "allegro": ("--nequip", "nequip.model.saved_models.load_utils", "load_saved_model", deepcopy),
    "sevenn": ("--sevenn", "sevenn.util", "model_from_checkpoint", lambda model: (deepcopy(model), {})),
}


@pytest.mark.parametrize("project", READERS.keys() & PROJECTS.keys())
def test_a_checkpoint_is_deployed_by_one_line(project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model comes from here, as a checkpoint takes a training run to make."""
    option, where, reader, returned = READERS[project]
    programs = deployed_programs(monkeypatch)
    cases = {atoms: PROJECTS[project].make(atoms, torch.float64) for atoms in (27, 16)}
    model = cases[27].model.eval()
    monkeypatch.setattr(resolve_name(where), reader, lambda _: returned(model))
    (tmp_path / "best.ckpt").touch()
    done = CliRunner().invoke(main, ["deploy", option, f"{tmp_path}/best.ckpt", "--out", f"{tmp_path}/potential"])
    assert done.exit_code == 0, done.output
    check_products(programs)
    refused = ("an edge", "an atom and an image") if project == "allegro" else ()
    check_deployed(tmp_path / "potential", model, cases, refused=refused)
    names = (tmp_path / "potential" / "model.nequip.pt2").read_bytes()
    assert b"nequip_aoti_inputs" in names
    assert b"pos edge_index atom_types cell edge_cell_shift" in names
