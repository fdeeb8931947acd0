"""SevenNet's files deployed by one line, against stock."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from sevenn import util

from benchmarks.networks import sevenn
from tests.clients.checks import check_deployed, check_products, deployed_programs
from tpgen.tools.cli.app import main


def test_a_checkpoint_is_deployed_by_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = deployed_programs(monkeypatch)
    cases = {atoms: sevenn(atoms, torch.float64, "8x0e+4x1e") for atoms in (27, 16)}
    model = cases[27].model.eval()
    made = deepcopy(model)
    monkeypatch.setattr(util, "model_from_checkpoint", lambda _: (made, {}))  # one takes a training run
    (tmp_path / "best.pth").touch()
    done = CliRunner().invoke(main, ["deploy", "--sevenn", f"{tmp_path}/best.pth", "--out", f"{tmp_path}/potential"])
    assert done.exit_code == 0, done.output
    check_products(programs)
    check_deployed(tmp_path / "potential", model, cases)
