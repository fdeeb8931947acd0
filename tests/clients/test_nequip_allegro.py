"""Allegro itself, an extension of NequIP: its model, its couplings, and ghosts of LAMMPS."""

from __future__ import annotations

import warnings
from copy import deepcopy

import pytest
import torch
from nequip.nn.mlp import ScalarLinearLayer

from benchmarks.networks import Case, allegro, nequip
from tests.clients.checks import assert_same, check_everything, results
from tests.clients.projects import OF_NEQUIP
from tpgen.base.errors import DeployError
from tpgen.networks.conversion.convert import conversion_report, convert
from tpgen.networks.deployment.models import OfStructures, describe_model
from tpgen.networks.step import compile_step


def small() -> Case:
    return allegro(27, torch.float64, features=4, scalars=8, l_max=1)


@pytest.mark.parametrize("coupled", [True, False])
def test_a_model_is_converted_and_equal(coupled: bool) -> None:
    model = check_everything(allegro(27, torch.float64, features=4, scalars=8, coupled=coupled))
    done = {path: row.now for row in conversion_report(model).replaced for path in row.paths}
    for n in range(2):
        assert done[f"model.func.allegro.tps.{n}"].startswith("tpgen polynomial, kernel")


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


def test_couplings_that_were_written_to_are_in_the_program() -> None:
    case = small()
    stock, model = case.model.eval(), convert(deepcopy(case.model)).eval()
    for network in (stock, model):
        for name, x in network.named_buffers():
            if name.endswith("w3j"):
                x.mul_(1.5)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is computed by Allegro's own code from now on")
        found = case.run(compile_step(model, outputs=[*OF_NEQUIP]), False)
    for name, x in case.run(stock, False).items():
        assert (found[name] - x).abs().max() <= 1e-12 * x.abs().max(), name


def test_an_allegro_takes_ghosts_in_the_place_of_a_cell() -> None:
    network = small().model.eval()
    model = describe_model(network)
    local = model.with_ghosts(network)
    structure = model.make_example_inputs()
    wanted = dict(zip(model.outputs, OfStructures(network, model)(*structure), strict=True))
    found = OfStructures(network, local)(*structure[:3])
    assert len(local.make_example_inputs()) == len(local.inputs) == 3
    for name, x in zip(local.outputs, found, strict=True):
        torch.testing.assert_close(x, wanted[name], rtol=1e-12, atol=1e-12)


def test_ghosts_of_a_network_that_passes_messages_are_refused() -> None:
    network = nequip(27, torch.float64, features=4, l_max=1, layers=1).model
    with pytest.raises(DeployError, match="only Allegro"):
        describe_model(network).with_ghosts(network)
