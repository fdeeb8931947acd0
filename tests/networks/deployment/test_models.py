"""Models of known projects, deployed as networks of the tensors of a structure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import tpgen
from tpgen.base.errors import DeployError
from tpgen.networks.deployment.deploy import format_input_table, name_inputs
from tpgen.networks.deployment.dicts import OfTensors
from tpgen.networks.deployment.models import INPUTS, OUTPUTS, Model, OfStructures, Structure
from tpgen.networks.program import network_program
from tpgen.tools.cli.app import main


def lengths(network: nn.Module, given: Structure) -> Sequence[Tensor]:
    """Sums of the lengths of edges, as energies."""
    positions, (src, dst), types, cell, shifts = (given[name] for name in INPUTS)
    positions.requires_grad_()
    cell = cell * torch.ones(1, 3, 3)  # which has three axes: no other network of points is so free
    each = torch.linalg.vector_norm(positions[dst] - positions[src] + shifts @ cell[0], dim=1)
    energies = network.weight[0, 0] * torch.zeros(types.shape[0], dtype=each.dtype).index_add(0, src, each)
    (slope,) = torch.autograd.grad(energies.sum(), positions)
    return energies[:, None], energies.sum().reshape(1, 1), -slope, cell, cell


def test_numbers_are_float64_and_forces_are_taken() -> None:
    model = Model(("H", "O"), 4.0, lengths)
    given = model.make_example_inputs()
    found = dict(zip(OUTPUTS, OfStructures(nn.Linear(1, 1).float(), model)(*given), strict=True))
    assert {x.dtype for x in found.values()} == {torch.float64}
    assert not any(x.requires_grad for x in found.values())
    torch.testing.assert_close(found["forces"].sum(0), torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)
    distances = torch.pdist(given[0])
    assert ((distances > 0.2 * model.cutoff) & (distances < model.cutoff)).all()
    assert given[1].shape == (2, 56)
    assert model.pair_nequip_metadata()["nequip_aoti_inputs"] == "pos edge_index atom_types cell edge_cell_shift"
    assert model.pair_nequip_metadata()["type_names"] == "H O"


def test_a_folder_lists_its_inputs_in_the_words_of_the_field() -> None:
    model = Model(("H", "O"), 4.0, lengths)
    network = OfStructures(nn.Linear(1, 1), model)
    table = format_input_table(network_program(network, model.make_example_inputs()), name_inputs(network, 5))
    assert table.splitlines()[2:] == [
        "| `pos` | (atoms, 3) | float64 |",
        "| `edge_index` | (2, edges) | int64 |",
        "| `atom_types` | (atoms) | int64 |",
        "| `cell` | (1, 3, 3) | float64 |",
        "| `edge_cell_shift` | (edges, 3) | float64 |",
    ]
    assert "`atom_types` counts from 0 in H, O." in model.describe_for_readme()


def test_inputs_without_a_word_of_the_field_have_letters() -> None:
    class Network(nn.Module):
        def forward(self, positions: Tensor, charges: Tensor, *more: Tensor) -> Tensor:
            return (positions * torch.ones(3)).sum() + charges.sum() + more[0].sum()

    network = Network()
    names = name_inputs(network, 3)
    table = format_input_table(network_program(network, [torch.ones(5, 3), torch.ones(7), torch.ones(4, 6)]), names)
    assert names == ["positions", "charges", "input 2"]
    assert [row.split(" | ")[1] for row in table.splitlines()[2:]] == ["(atoms, 3)", "(a)", "(b, c)"]
    assert "≥" not in table
    assert name_inputs(OfTensors(network, ["x", "y"], ["out"]), 2) == ["x", "y"]


def test_a_size_that_a_network_decides_by_has_its_least() -> None:
    class Deciding(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x.sum() + y.sum() if x.shape[0] > 5 else x.sum()

    table = format_input_table(network_program(Deciding(), [torch.ones(7, 3), torch.ones(4)]), ["x", "y"])
    assert [row.split(" | ")[1] for row in table.splitlines()[2:]] == ["(a ≥ 6, b)", "(c)"]


def test_another_network_needs_inputs(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match="Linear is no model of mace, nequip, sevenn"):
        tpgen.deploy(nn.Linear(3, 2), out=tmp_path / "deployed")


def test_one_network_is_named(tmp_path: Path) -> None:
    (tmp_path / "my.model").touch()
    done = CliRunner().invoke(main, ["deploy", "tetris", "--mace", f"{tmp_path}/my.model", "--out", f"{tmp_path}/new"])
    assert done.exit_code
    assert "or a file by --mace, --nequip, --sevenn" in done.output
