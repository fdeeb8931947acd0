"""NequIP itself: its model, its scripting, and its self-connections."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

import tpgen
from benchmarks.networks import Case, nequip
from tests.clients.checks import assert_same, check_everything, results
from tpgen.functions import silu
from tpgen.networks.conversion import species
from tpgen.networks.conversion.operations import matmul


def test_a_model_is_converted_and_equal() -> None:
    check_everything(nequip(27, torch.float64, features=4))


def test_a_converted_model_scripts() -> None:
    from e3nn.util import jit

    case = nequip(27, torch.float64, features=4)
    wanted = case.run(case.model, False)
    torch.testing.assert_close(case.run(jit.script(tpgen.convert(case.model).model), False), wanted)


def test_few_atoms_and_many_have_the_same_self_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(species, "WORTH_SPECIES", 0)
    monkeypatch.setattr(matmul, "WORTH_MATMUL", 0)
    monkeypatch.setattr(silu, "WORTH_SILU", 0)
    check_everything(nequip(27, torch.float64, features=4))


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Case:
    """A small model, whose self-connections go by atom type whatever their size."""
    monkeypatch.setattr(species, "WORTH_SPECIES", 0)
    return nequip(8, torch.float64, features=2, l_max=1, layers=2)


def blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Those that hold a self-connection."""
    found = [m for m in model.modules() if type(m).__name__.endswith("InteractionBlock")]
    return [m for m in found if m.sc is not None]


def test_hooks_on_a_self_connection_see_its_attributes(typed: Case) -> None:
    stock, model = deepcopy(typed.model), tpgen.convert(typed.model)
    for network in (stock, model):
        for block in blocks(network):
            block.sc.register_forward_pre_hook(lambda _module, given: (given[0], given[1] / 2))
    assert_same(results(typed, model), results(typed, stock))


def test_gradients_by_node_attributes_are_those_of_stock(typed: Case) -> None:
    stock, model = deepcopy(typed.model).train(), tpgen.convert(deepcopy(typed.model)).train()
    for with_table in (False, True):
        gradients = []
        for network in (stock, model):
            found = network(dict(typed.batch))
            table = [p for name, p in network.named_parameters() if name.endswith("embed_module.weight")]
            asked = [found["node_attrs"], *table * with_table]
            gradients.append(torch.autograd.grad(found["total_energy"].sum(), asked))
        torch.testing.assert_close(*gradients)
    for network in (stock, model):
        found = network(dict(typed.batch))
        found["node_attrs"].retain_grad()
        found["total_energy"].sum().backward()
        gradients.append(found["node_attrs"].grad)
    torch.testing.assert_close(*gradients[2:])


def test_attributes_come_back_where_a_block_fails(typed: Case) -> None:
    block, seen = blocks(tpgen.convert(typed.model))[0], []
    block.register_forward_pre_hook(lambda _module, given: seen.append((given[0], given[0]["node_attrs"])))
    block.linear_1.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        typed.run(typed.model, False)
    data, attributes = seen[0]
    assert data["node_attrs"] is attributes


def test_each_model_of_several_has_its_own_embedding(typed: Case) -> None:
    models = torch.nn.ModuleList([typed.model, deepcopy(typed.model)])
    rows = tpgen.conversion_report(tpgen.convert(models)).replaced
    assert sum("by atom type" in row.now for row in rows) == 2
    tables = {id(block.sc.get_embedding_table()) for block in blocks(models)}
    assert tables == {id(p) for name, p in models.named_parameters() if name.endswith("embed_module.weight")}


@pytest.mark.parametrize("name", ["*.tp_scatter.tp", "e3nn.TensorProduct"])
def test_a_product_that_is_kept_keeps_its_scatter(name: str, typed: Case) -> None:
    assert not any(
        "tp_scatter" in row.paths[0] for row in tpgen.conversion_report(tpgen.convert(typed.model, keep=name)).replaced
    )


def test_the_report_follows_the_dtype() -> None:
    model = nequip(8, torch.float64, features=80, l_max=1, layers=2).model
    rows = tpgen.conversion_report(tpgen.convert(model).half()).replaced
    layers = [row.now for row in rows if "edge_mlp" in row.paths[0]]
    assert {now.partition(" (")[0] for now in layers} == {"torch product", "torch SiLU"}
