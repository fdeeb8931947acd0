"""NequIP's nets of edges, which run once for each pair of edges, behind the factor of its embedding too."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from nequip.data import AtomicDataDict as keys

from benchmarks.networks import Case, allegro, nequip
from benchmarks.networks import _of_nequip as of_nequip
from tests.clients.checks import assert_same, results
from tpgen.networks.conversion.convert import convert


@pytest.mark.parametrize("kept", [(), "*.tp_scatter", "*.bessel_encode"])
def test_forces_and_gradients_of_a_loss_are_those_of_stock(kept: str | tuple[()], rows: list[int]) -> None:
    case = nequip(27, torch.float64, features=4)
    model = convert(deepcopy(case.model), keep=kept)
    assert_same(results(case, model), results(case, case.model))
    assert rows == [case.edges // 2] * len(rows)
    assert bool(rows) == (kept != "*.bessel_encode")


def test_cutoffs_that_differ_with_the_direction_leave_edges_alone(rows: list[int]) -> None:
    from nequip.model import NequIPGNNModel

    cutoffs = {"H": {"C": 4.0, "N": 4.5}, "C": {"H": 3.5}}
    case = of_nequip(
        NequIPGNNModel, 27, torch.float64, num_layers=2, l_max=1, num_features=4, per_edge_type_cutoff=cutoffs
    )
    model = convert(deepcopy(case.model))
    assert_same(results(case, model), results(case, case.model))
    assert all(case.edges // 2 < n < case.edges for n in rows)
    assert rows


def test_forces_of_edges_are_those_of_stock(rows: list[int]) -> None:
    case = nequip(27, torch.float64, features=4)
    found = []
    for model in (convert(deepcopy(case.model)), case.model):
        given = dict(case.batch)
        ends = given[keys.POSITIONS_KEY][given[keys.EDGE_INDEX_KEY]]
        cell = given[keys.CELL_KEY][0]
        given[keys.EDGE_VECTORS_KEY] = ends[1] - ends[0] + given[keys.EDGE_CELL_SHIFT_KEY] @ cell
        found.append(model.eval()(given)[keys.EDGE_FORCE_KEY])
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)
    assert not rows


def energies_in_inference_mode(case: Case) -> None:
    """A model without its forces, made before and within the mode."""
    stock = case.model
    model = convert(deepcopy(stock))
    for network in (model, stock):
        for module in network.modules():
            if hasattr(module, "do_derivatives"):
                module.do_derivatives = False
    with torch.inference_mode():
        wanted = stock(dict(case.batch))[keys.TOTAL_ENERGY_KEY]
        for network in (model, deepcopy(model)):
            found = network(dict(case.batch))[keys.TOTAL_ENERGY_KEY]
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_energies_in_inference_mode(rows: list[int]) -> None:
    energies_in_inference_mode(nequip(27, torch.float64, features=4))
    assert rows


def test_energies_of_allegro_in_inference_mode(rows: list[int]) -> None:
    energies_in_inference_mode(allegro(27, torch.float64, features=4, scalars=8, l_max=1))
    assert not rows


@pytest.mark.parametrize("factor", [None, 1.0], ids=["leaf", "behind a factor"])
def test_gradients_by_vectors_that_are_given(factor: float | None, rows: list[int]) -> None:
    case = nequip(27, torch.float64, features=4)
    given = dict(case.batch)
    ends, cell = given[keys.POSITIONS_KEY][given[keys.EDGE_INDEX_KEY]], given[keys.CELL_KEY][0]
    vectors = (ends[1] - ends[0] + given[keys.EDGE_CELL_SHIFT_KEY] @ cell).requires_grad_()
    found = []
    for model in (convert(deepcopy(case.model)), case.model):
        for module in model.modules():
            if hasattr(module, "do_derivatives"):
                module.do_derivatives = False
        energy = model({**given, keys.EDGE_VECTORS_KEY: vectors if factor is None else factor * vectors})
        found += torch.autograd.grad(energy[keys.TOTAL_ENERGY_KEY].sum(), vectors)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)
    assert not rows
