"""MACE's nets of edges, which run once for each pair of edges: what a call asks for decides."""

from __future__ import annotations

import inspect
from copy import deepcopy
from typing import Any

import pytest
import torch

from tpgen.networks.conversion.convert import conversion_report, convert
from tpgen.networks.conversion.projects import mace_models

from benchmarks.networks import mace  # isort: skip  (after tpgen, which lets torch load the constants of e3nn 0.4.4)


def crystal(repeat: int = 1) -> dict[str, torch.Tensor]:
    """A perfect crystal in a cell so small that atoms see many images of each other, all lengths equal."""
    from ase.build import bulk
    from mace.data import AtomicData, Configuration
    from mace.tools import AtomicNumberTable, torch_geometric

    atoms = bulk("C", "diamond", 3.57, cubic=True).repeat((repeat, 1, 1))
    config = Configuration(
        atomic_numbers=atoms.numbers, positions=atoms.positions, cell=atoms.cell.array, pbc=(True,) * 3,
        properties={}, property_weights={},
    )  # fmt: skip
    data = AtomicData.from_config(config, z_table=AtomicNumberTable([1, 6, 7, 8]), cutoff=5.0)
    return next(iter(torch_geometric.dataloader.DataLoader([data, data], batch_size=2))).to_dict()


ASKED = {
    "forces and stress": {"compute_stress": True},
    "training": {"training": True, "compute_stress": True},
    "the Hessian": {"compute_hessian": True},
    "forces of edges": {"compute_edge_forces": True},
    "stresses of atoms": {"compute_atomic_stresses": True},
    "forces of edges, stresses of atoms": {"compute_edge_forces": True, "compute_atomic_stresses": True},
}


@pytest.mark.parametrize("asked", ASKED)
def test_results_of_a_perfect_crystal_are_those_of_stock(asked: str, rows: list[int]) -> None:
    stock = mace(8, torch.float64, "8x0e+8x1o").model
    found, wanted = (model(crystal(), **ASKED[asked]) for model in (convert(deepcopy(stock)), stock))
    for name, x in wanted.items():
        if isinstance(x, torch.Tensor):
            torch.testing.assert_close(found[name], x, rtol=1e-10, atol=1e-10)
    edges = crystal()["edge_index"].shape[1]
    assert set(rows) == (set() if "of edges" in asked or "of atoms" in asked else {edges // 2})


def test_energies_in_inference_mode(rows: list[int]) -> None:
    stock = mace(8, torch.float64, "8x0e").model
    model = convert(deepcopy(stock))
    with torch.inference_mode():
        found, wanted = (m(crystal(), compute_force=False)["energy"] for m in (model, stock))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert rows


def test_gradients_by_shifts_are_those_of_single_edges(rows: list[int]) -> None:
    stock = mace(8, torch.float64, "8x0e").model
    gradients = []
    for model in (convert(deepcopy(stock)), stock):
        given = crystal()
        given["shifts"].requires_grad_()
        energy = model(given, training=True)["energy"].sum()
        gradients += torch.autograd.grad(energy, given["shifts"])
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
    assert not rows


def _paired_graph_of(model: Any, args: tuple, given: dict[str, Any]) -> Any:
    return mace_models._get_graph_if_pairs_usable(mace_models._bind_arguments_by_name(model, args, given))


def test_what_a_call_asks_for_is_read_by_place_and_of_the_forward_that_runs() -> None:
    model, graph = convert(mace(8, torch.float64, "8x0e").model), crystal()
    names = list(inspect.signature(model.forward).parameters)
    asked = [graph, *(name == "compute_edge_forces" for name in names[1:])]
    for _ in range(2):
        assert _paired_graph_of(model, (graph, True), {"compute_stress": True}) is graph
        assert _paired_graph_of(model, tuple(asked), {}) is None
        assert _paired_graph_of(model, (graph,), {"unknown": True}) is None
    model.forward = lambda training, data: type(model).forward(model, data, training)
    assert _paired_graph_of(model, (True, graph), {}) is graph
    del model.forward
    assert _paired_graph_of(model, (True, graph), {}) is None


@pytest.mark.parametrize("kept", ["radial_embedding", "interactions.0.conv_tp", "interactions.0.conv_tp_weights"])
def test_parts_that_are_kept_leave_the_others_right(kept: str, rows: list[int]) -> None:
    stock = mace(8, torch.float64, "8x0e").model
    model = convert(deepcopy(stock), keep=kept)
    found, wanted = (m(crystal(), compute_stress=True) for m in (model, stock))
    for name in ("energy", "forces", "stress"):
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-10, atol=1e-10)
    assert bool(rows) == (kept != "radial_embedding")


def test_hooks_see_rows_of_edges(rows: list[int]) -> None:
    model, seen = convert(mace(8, torch.float64, "8x0e").model), []
    hook = lambda _module, given, out: seen.append((len(given[0]), len(out)))  # noqa: E731
    for interaction in model.interactions:
        interaction.conv_tp_weights.register_forward_hook(hook)
    edges = crystal()["edge_index"].shape[1]
    model(crystal())
    assert seen == [(edges, edges)] * 2
    assert len(rows) == 2


@pytest.mark.parametrize("place", ["the block", "the net"])
def test_a_net_that_is_wrapped_later_gives_rows_of_edges(place: str, rows: list[int]) -> None:
    stock = mace(8, torch.float64, "8x0e").model
    found = []
    for model in (convert(deepcopy(stock)), stock):
        block = model.interactions[0]
        net = block.conv_tp_weights
        if place == "the block":
            block.conv_tp_weights = torch.nn.Sequential(net, torch.nn.Identity())
        else:
            net.forward = lambda x, run=net.forward: 2 * run(x)
        found.append(model(crystal())["forces"])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)
    assert len(rows) == 2


def test_pairs_are_sought_where_nets_take_the_rows_alone() -> None:
    model = mace(8, torch.float64, "8x0e").model
    assert mace_models._does_embedding_feed_radial_net(model.radial_embedding, model.interactions)
    assert "once for each pair" in str(conversion_report(convert(deepcopy(model))))
    model.radial_embedding.apply_cutoff = False
    assert "once for each pair" not in str(conversion_report(convert(deepcopy(model))))
    model.radial_embedding.apply_cutoff = True
    model.radial_embedding.out_dim -= 1  # as where a block joins more to the rows
    assert not mace_models._does_embedding_feed_radial_net(model.radial_embedding, model.interactions)
