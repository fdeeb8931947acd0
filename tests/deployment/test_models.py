"""Models of known projects, deployed as networks of the tensors of a structure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import tpgen
from tpgen.cli.app import main
from tpgen.deployment.models import INPUTS, OUTPUTS, Model, OfStructures, Structure
from tpgen.errors import DeployError


def lengths(network: nn.Module, given: Structure) -> Sequence[Tensor]:
    """Sums of the lengths of edges, as energies."""
    positions, (src, dst), types, cell, shifts = (given[name] for name in INPUTS)
    positions.requires_grad_()
    each = torch.linalg.vector_norm(positions[dst] - positions[src] + shifts @ cell[0], dim=1)
    energies = network.weight[0, 0] * torch.zeros(len(types), dtype=each.dtype).index_add(0, src, each)
    (slope,) = torch.autograd.grad(energies.sum(), positions)
    return energies[:, None], energies.sum().reshape(1, 1), -slope, cell, cell


def test_numbers_are_float64_and_forces_are_taken() -> None:
    model = Model(("H", "O"), 4.0, lengths)
    given = model.example()
    found = dict(zip(OUTPUTS, OfStructures(nn.Linear(1, 1).float(), model)(*given), strict=True))
    assert {x.dtype for x in found.values()} == {torch.float64}
    assert not any(x.requires_grad for x in found.values())
    torch.testing.assert_close(found["forces"].sum(0), torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)
    distances = torch.pdist(given[0])
    assert ((distances > 0.2 * model.cutoff) & (distances < model.cutoff)).all()
    assert given[1].shape == (2, 56)
    assert model.package()["nequip_aoti_inputs"] == "pos edge_index atom_types cell edge_cell_shift"
    assert model.package()["type_names"] == "H O"


def test_another_network_needs_inputs(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="Linear is no model of mace, nequip, sevenn"):
        tpgen.deploy(nn.Linear(3, 2), out=tmp_path / "deployed")


def test_one_network_is_named(tmp_path: Path) -> None:
    (tmp_path / "my.model").touch()
    done = CliRunner().invoke(main, ["deploy", "tetris", "--mace", f"{tmp_path}/my.model", "--out", f"{tmp_path}/new"])
    assert done.exit_code
    assert "or a file by --mace, --nequip, --sevenn" in done.output
