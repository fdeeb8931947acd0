"""MACE's blocks that divide weights: what a call asks for decides, and what users add is seen."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.clients.checks import Written
from tpgen.networks.conversion.convert import convert, restore
from tpgen.networks.conversion.joined import JoinedLayers
from tpgen.networks.conversion.projects import mace_models

from benchmarks.networks import Case, mace  # isort: skip  (after tpgen, which lets torch load the constants of e3nn 0.4.4)
from mace.modules import blocks  # isort: skip


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each call of both layers as one."""
    seen, apply = [], JoinedLayers.apply_both_layers
    monkeypatch.setattr(
        JoinedLayers, "apply_both_layers", lambda self, x, *rest: seen.append(len(x)) or apply(self, x, *rest)
    )
    return seen


@pytest.fixture
def case() -> Case:
    return mace(27, torch.float64, "8x0e+8x1o", first="RealAgnosticInteractionBlock")


def check(case: Case, model: nn.Module, stock: nn.Module, training: bool = False) -> None:
    wanted = case.run(stock, training)
    for name, x in case.run(model, training).items():
        assert (x - wanted[name]).abs().max() <= 1e-10 * wanted[name].abs().max(), name


def test_layers_are_one_where_no_training_is_asked_for(case: Case, joined: list[int]) -> None:
    model = convert(deepcopy(case.model))
    check(case, model, case.model)  # a call before whose kernels are built is rehearsed
    joined.clear()
    for training in (False, True, False):
        check(case, model, case.model, training)
    assert joined == [27, 27]
    assert [type(block) for block in model.interactions] == [
        mace_models.RealAgnosticInteractionBlock,
        mace_models.RealAgnosticResidualInteractionBlock,
    ]
    assert [type(block) for block in restore(model).interactions] == [
        blocks.RealAgnosticInteractionBlock,
        blocks.RealAgnosticResidualInteractionBlock,
    ]


def test_gradients_of_parameters_in_a_call_that_asks_for_no_training(case: Case, joined: list[int]) -> None:
    stock, found = case.model, []
    for model in (stock, convert(deepcopy(stock))):
        model(dict(case.batch), training=False, compute_force=False)["energy"].sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert joined
    assert found[0].keys() == found[1].keys()
    for name, x in found[0].items():
        assert (found[1][name] - x).abs().max() <= 1e-10 * x.abs().max(), name


def test_averaged_weights_that_are_written_as_data_are_used(case: Case, joined: list[int]) -> None:
    stock, model = case.model, convert(deepcopy(case.model))
    for factor in (1.0, 1.1):
        for p in (*stock.parameters(), *model.parameters()):
            p.data.mul_(factor)
        check(case, model, stock)
    assert len(joined) == 2


@pytest.mark.parametrize("name", ["linear", "skip_tp", ""])
def test_hooks_see_what_they_see_in_mace(case: Case, joined: list[int], name: str) -> None:
    stock, model = case.model, convert(deepcopy(case.model))
    for network in (stock, model):
        block = network.interactions[0]
        block.get_submodule(name).register_forward_hook(_doubled)
    check(case, model, stock)
    assert not joined


def _doubled(_module: nn.Module, _given: Any, out: Any) -> Any:
    return 2 * out if isinstance(out, Tensor) else (2 * out[0], *out[1:])


@pytest.mark.parametrize("kept", ["interactions.0.linear", "interactions.0.skip_tp"])
def test_a_layer_that_is_kept_is_called_as_it_is(case: Case, joined: list[int], kept: str) -> None:
    model = convert(deepcopy(case.model), keep=kept)
    check(case, model, case.model)
    assert not joined


def test_a_block_of_another_version_keeps_its_class(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mace_models, "_KNOWN", {cls: (own, ()) for cls, (own, _) in mace_models._KNOWN.items()})
    model = convert(deepcopy(case.model))
    assert [type(block) for block in model.interactions] == [type(block) for block in case.model.interactions]
    check(case, model, case.model)


def test_a_model_is_built_anew_from_the_classes_of_a_converted_one(case: Case) -> None:
    from mace.tools.scripts_utils import extract_model

    converted = convert(deepcopy(case.model))
    assert isinstance(converted, type(case.model))
    assert type(converted).__name__ == type(case.model).__name__
    model = extract_model(converted)
    kinds = ([type(m) for m in n.modules() if not isinstance(m, Written)] for n in (model, case.model))
    assert next(kinds) == next(kinds)
    for name, x in case.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], x), name
    check(case, model, case.model)
