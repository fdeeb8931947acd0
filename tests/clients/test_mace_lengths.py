"""MACE's functions of lengths: by a kernel where they are Bessel's times the cutoff, else MACE's own."""

from __future__ import annotations

import io
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.clients.checks import counted_lengths
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.projects import mace_models
from tpgen.networks.conversion.projects.mace_models import find_mace_model_swaps
from tpgen.networks.conversion.swap import apply_swaps, describe_computing_code, undo_swaps

from mace.modules.blocks import RadialEmbeddingBlock  # isort: skip  (after tpgen, as e3nn 0.4.4 needs)

from benchmarks.networks import mace  # isort: skip


def block(**options: Any) -> RadialEmbeddingBlock:
    return RadialEmbeddingBlock(**{"r_max": 5.0, "num_bessel": 8, "num_polynomial_cutoff": 5, **options})


def converted(stock: nn.Module, **options: Any) -> nn.Module:
    model = nn.ModuleList([deepcopy(stock)])
    apply_swaps(find_mace_model_swaps(model, options))
    return model[0]


def arguments(dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    lengths = torch.linspace(0.5, 5.5, 30, dtype=dtype).unsqueeze(1).requires_grad_()
    return lengths, torch.eye(4, dtype=dtype), torch.randint(4, (2, 30)), torch.tensor([1, 6, 7, 8])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return counted_lengths(monkeypatch, mace_models)


def check(found: Any, wanted: Any, given: tuple[Tensor, ...]) -> None:
    """Values, and derivatives by the lengths up to the third."""
    for ours, theirs in zip(found, wanted, strict=True):
        if theirs is None:
            assert ours is None
            continue
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        totals = [ours.square().sum(), theirs.square().sum()]
        for _ in range(3):
            slopes = [torch.autograd.grad(total, given[0], create_graph=True)[0] for total in totals]
            torch.testing.assert_close(*slopes, rtol=1e-9, atol=1e-9)
            totals = [slope.tanh().sum() for slope in slopes]


@pytest.mark.parametrize("power", [5, 6])
@pytest.mark.parametrize("trainable", [False, True])
def test_bessel_functions_are_those_of_mace(power: int, trainable: bool, calls: list[int]) -> None:
    stock = block(num_polynomial_cutoff=power)
    if trainable:
        weights = stock.bessel_fn._buffers.pop("bessel_weights")
        stock.bessel_fn.bessel_weights = nn.Parameter(weights + 0.1 * torch.rand(8))
    model, given = converted(stock), arguments()
    found, wanted = model(*given), stock(*given)
    check(found, wanted, given)
    assert calls == [30]
    assert "tpgen kernel" in describe_computing_code(model)
    if trainable:
        slopes = [
            torch.autograd.grad(out[0].cos().sum(), m.bessel_fn.bessel_weights)[0]
            for out, m in ((found, model), (wanted, stock))
        ]
        torch.testing.assert_close(*slopes, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "options",
    [
        {"radial_type": "gaussian"},
        {"radial_type": "chebyshev"},
        {"distance_transform": "Agnesi"},
        {"distance_transform": "Soft"},
        {"apply_cutoff": False},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_other_functions_stay_as_they_are(options: dict[str, Any], calls: list[int]) -> None:
    model = converted(block(**options))
    assert type(model) is RadialEmbeddingBlock
    assert not calls


def test_what_somebody_adds_later_is_seen(calls: list[int]) -> None:
    stock, given, seen = block(), arguments(), []
    model = converted(stock)
    handle = model.cutoff_fn.register_forward_hook(lambda *_: seen.append(1))
    check(model(*given), stock(*given), given)
    assert (seen, calls) == ([1], [])
    handle.remove()
    model.register_forward_hook(lambda _module, _given, out: (2 * out[0], None))
    check(model(*given), (2 * stock(*given)[0], None), given)
    assert not calls


def test_constants_are_read_at_each_call(calls: list[int]) -> None:
    other, given = block(r_max=4.0, num_polynomial_cutoff=6), arguments()
    model = converted(block())
    model(*given)
    model.load_state_dict(other.state_dict())
    check(model(*given), other(*given), given)
    single = arguments(torch.float32)
    torch.testing.assert_close(model.float()(*single)[0], other.float()(*single)[0], rtol=1e-4, atol=1e-5)
    assert calls == [30] * 3


def test_copies_files_scripts_and_the_way_back(calls: list[int]) -> None:
    stock, given = block(), arguments()
    wanted = stock(*given)
    model = converted(stock)
    assert list(model.state_dict()) == list(stock.state_dict())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (deepcopy(model), torch.load(file, weights_only=False)):
        check(other(*given), wanted, given)
    assert len(calls) == 2
    scripted = torch.jit.script(deepcopy(model))
    torch.testing.assert_close(scripted(*given)[0], wanted[0])
    undo_swaps(model)
    assert type(model) is RadialEmbeddingBlock
    assert vars(model).keys() == vars(stock).keys()


def test_a_strategy_without_kernels_has_none_here() -> None:
    assert type(converted(block(), strategy="grouped")) is RadialEmbeddingBlock
    model = mace(8, torch.float64, "8x0e").model
    for strategy, told_so in (("auto", True), ("grouped", False)):
        report = str(conversion_report(convert(deepcopy(model), strategy=strategy)))
        assert ("tpgen kernel (Bessel functions" in report) == told_so
        assert "once for each pair" in report
    assert type(restore(convert(model)).radial_embedding) is RadialEmbeddingBlock
