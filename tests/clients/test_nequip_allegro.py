"""Allegro itself, an extension of NequIP: its model, the modifier, what NequIP packages of it, dynamics."""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from nequip.nn.mlp import ScalarLinearLayer

from benchmarks.networks import Case, allegro
from tests.clients.checks import assert_same, check_everything, check_float32, compare_dynamics, results
from tests.clients.nequip_checks import calculator_of, check_packaged, modified
from tpgen.networks.conversion.convert import conversion_report, convert


def small() -> Case:
    return allegro(27, torch.float64, features=4, scalars=8, l_max=1)


@pytest.mark.parametrize("coupled", [True, False])
def test_a_model_is_converted_and_equal(coupled: bool) -> None:
    model = check_everything(allegro(27, torch.float64, features=4, scalars=8, coupled=coupled))
    done = {path: row.now for row in conversion_report(model).replaced for path in row.paths}
    for n in range(2):
        assert done[f"model.func.allegro.tps.{n}"].startswith("tpgen polynomial, kernel")


def test_float32_is_within_its_rounding() -> None:
    torch.set_default_dtype(torch.float32)
    check_float32(allegro(27, torch.float32, features=8, scalars=16))


def test_the_modifier_is_found_by_name() -> None:
    case = small()
    wanted = results(case, case.model)
    model = modified(case.model)
    assert "TpgenContracter" in {type(m).__name__ for m in model.modules()}
    assert_same(results(case, model), wanted)


def test_nequip_compile_packages_a_converted_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_packaged(small(), tmp_path, monkeypatch)


def test_energies_are_conserved() -> None:
    compare_dynamics(calculator_of, small().model)


@pytest.mark.parametrize("first", ["normed", "converted"])
@pytest.mark.parametrize("dim", [0, None])
def test_radial_layers_may_have_the_older_weight_norm(first: str, dim: int | None) -> None:
    """Their weights are no parameters then, but computed by a hook before each call."""
    case = small()
    model = deepcopy(case.model)
    if first == "converted":
        convert(model)
    for network in (case.model, model):
        for layer in [m for m in network.modules() if isinstance(m, ScalarLinearLayer)]:
            if layer.out_features > 1:  # of one output it is its sign, whose gradients are rounding alone
                torch.nn.utils.weight_norm(layer, dim=dim)
    if first == "normed":
        convert(model)
    assert_same(results(case, model), results(case, case.model))
    assert str(conversion_report(model))


def products(model: torch.nn.Module) -> set[str]:
    return {row.now.partition(" (")[0] for row in conversion_report(model).replaced if ".tps." in row.paths[0]}


def test_the_report_follows_the_dtype() -> None:
    model = convert(small().model)
    assert products(model) == {"tpgen polynomial, kernel"}
    assert products(model.half()) == {"Allegro's own code"}


def test_couplings_of_its_own_are_computed_by_allegro_until_they_are_gone() -> None:
    case = small()
    stock, model = deepcopy(case.model), convert(case.model)
    right = deepcopy(stock.state_dict())
    foreign = {name: 1.5 * x if name.endswith("w3j") else x for name, x in right.items()}
    for state, words in ((foreign, "Allegro's own code"), (right, "tpgen polynomial, kernel")):
        stock.load_state_dict(state)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is computed by Allegro's own code from now on")
            model.load_state_dict(state)
        assert products(model) == {words}
        assert_same(results(case, model), results(case, stock))
