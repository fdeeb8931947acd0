"""SevenNet's nets of edges, which run once for each pair of edges, where its outputs are made of both."""

from __future__ import annotations

from copy import deepcopy

import pytest
import sevenn._keys as keys
import torch

from benchmarks.networks import Case, sevenn
from tests.clients.checks import assert_same, results
from tpgen.networks.conversion.convert import convert


def small() -> Case:
    return sevenn(27, torch.float64, hidden="8x0e+4x1e")


def test_forces_from_edges_and_gradients_of_a_loss_are_those_of_stock(rows: list[int]) -> None:
    case = small()
    model = convert(deepcopy(case.model))
    assert_same(results(case, model), results(case, case.model))
    assert rows == [case.edges // 2] * len(rows)
    assert rows


def test_virials_of_atoms_are_those_of_stock(rows: list[int]) -> None:
    case = small()
    virials = []
    for model in (convert(deepcopy(case.model)), case.model):
        model.get_submodule("force_output").use_atomic_virial = True
        given = {**case.batch, keys.EDGE_VEC: case.batch[keys.EDGE_VEC].clone().requires_grad_()}
        virials.append(model(given)[keys.PRED_ATOMIC_VIRIAL])
    torch.testing.assert_close(*virials, rtol=1e-10, atol=1e-10)
    assert not rows


@pytest.mark.parametrize("factor", [None, 1.0], ids=["leaf", "behind a factor"])
@pytest.mark.parametrize("later", [False, True], ids=["before", "after convert"])
def test_a_network_without_outputs_of_its_own_is_asked_by_single_edges(
    factor: float | None, later: bool, rows: list[int]
) -> None:
    case = small()
    if not later:
        case.model.delete_module_by_key("force_output")
    gradients = []
    for model in (deepcopy(convert(deepcopy(case.model))), case.model):
        model.delete_module_by_key("force_output")
        vectors = case.batch[keys.EDGE_VEC].clone().requires_grad_()
        given = {**case.batch, keys.EDGE_VEC: vectors if factor is None else factor * vectors}
        gradients += torch.autograd.grad(model(given)[keys.PRED_TOTAL_ENERGY].sum(), vectors)
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
    assert not rows


def test_energies_in_inference_mode(rows: list[int]) -> None:
    case = small()
    case.model.delete_module_by_key("force_output")
    model = convert(deepcopy(case.model))
    with torch.inference_mode():
        given = {**case.batch, keys.EDGE_VEC: case.batch[keys.EDGE_VEC].detach()}
        found, wanted = (m(dict(given))[keys.PRED_TOTAL_ENERGY] for m in (model, case.model))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert rows
