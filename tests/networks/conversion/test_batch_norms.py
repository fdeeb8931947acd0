"""Batch norms of converted networks are e3nn's: results, statistics, and derivatives of both orders."""

from __future__ import annotations

from copy import deepcopy
from inspect import signature
from itertools import product
from typing import Any

import pytest
import torch
from e3nn.nn import BatchNorm
from torch import Tensor, nn

from tests.networks.conversion.networks import check_derivatives
from tpgen.networks.conversion.batch_norms import ConvertedBatchNorm
from tpgen.networks.conversion.convert import conversion_report, convert, restore

IRREPS = "3x0e+2x1o+4x0o+2x2e+0e"
CHOICES = {
    "affine": (True, False),
    "include_bias": (True, False),
    "normalization": ("component", "norm"),
    "momentum": (0.1, 0.7),
}
KNOWN = [name for name in CHOICES if name in signature(BatchNorm).parameters]  # e3nn 0.4 always has a bias
KINDS = [dict(zip(KNOWN, each, strict=True)) for each in product(*(CHOICES[name] for name in KNOWN))]


def pair(dtype: torch.dtype = torch.float64, **options: Any) -> tuple[nn.Module, nn.Module]:
    """A norm with numbers of its own, and a converted copy."""
    stock = BatchNorm(options.pop("irreps", IRREPS), **options).to(dtype)
    for x in (*stock.parameters(), *stock.buffers()):
        x.data.uniform_(0.5, 2)
    made = convert(deepcopy(stock))
    assert type(made) is ConvertedBatchNorm
    return stock, made


def rows(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return (2 * torch.randn(*shape, 24, dtype=dtype) + 1).requires_grad_()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(40,), (5, 7), (2, 3, 4), (1,)], ids=str)
@pytest.mark.parametrize("options", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_it_is_that_of_e3nn(options: dict[str, Any], shape: tuple[int, ...], training: bool) -> None:
    stock, made = (norm.train(training) for norm in pair(**options))
    x = rows(*shape)
    check_derivatives(made, stock, [x], 1e-9)
    for (name, one), (_, other) in zip(made.named_buffers(), stock.named_buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=name)


def test_first_gradients_of_usual_sizes() -> None:
    stock, made = pair(torch.float32, irreps="32x0e+16x1o+8x2e")
    x = torch.randn(1500, 120, requires_grad=True)
    for one, other in zip(*(first_gradients(norm, x) for norm in (made, stock)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def first_gradients(norm: nn.Module, x: Tensor) -> list[Tensor]:
    out = norm(x)
    g = torch.arange(out.numel()).cos().view_as(out)
    return [out, *torch.autograd.grad(out, [x, *norm.parameters()], g)]


@pytest.mark.parametrize("irreps", ["8x1o", "24x0e", "24x0o"])
def test_of_one_kind_of_irrep(irreps: str) -> None:
    stock, made = pair(irreps=irreps)
    if irreps != "24x0e" and "include_bias" not in KNOWN:
        stock.eval(), made.eval()  # e3nn 0.4 fails in training without scalars
    x = rows(9)
    check_derivatives(made, stock, [x], 1e-9)
    for norm, x in zip((stock, made), (rows(20), rows(20)), strict=True):
        norm(x).sum().backward()
    grads = [[name for name, w in norm.named_parameters() if w.grad is None] for norm in (stock, made)]
    assert grads[0] == grads[1], "parameters of no numbers, which e3nn does not read, get no gradient"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("column", [0, 4, 10, 14, 23])
def test_what_is_no_number_goes_as_far(column: int, value: float, training: bool) -> None:
    stock, made = (norm.train(training) for norm in pair())
    x = rows(9).detach()
    x[3, column] = value
    torch.testing.assert_close(made(x), stock(x), equal_nan=True)
    torch.testing.assert_close(made.running_var, stock.running_var, equal_nan=True)


def test_weights_alone_may_need_gradients() -> None:
    stock, made = pair()
    x = rows(9).detach()
    for one, other in zip(
        *(torch.autograd.grad(n(x).sin().sum(), [*n.parameters()]) for n in (made, stock)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_what_is_transformed_runs_the_code_of_e3nn() -> None:
    stock, made = (norm.eval() for norm in pair())
    x = rows(6, 9).detach()
    torch.testing.assert_close(torch.func.vmap(made)(x), torch.func.vmap(stock)(x))
    _, slopes = torch.func.jvp(made, (x,), (x.cos(),))
    torch.testing.assert_close(slopes, torch.func.jvp(stock, (x,), (x.cos(),))[1])
    torch.testing.assert_close(made(x.float()), stock(x.float()))


def test_others_stay_and_it_is_undone() -> None:
    network = nn.ModuleList([BatchNorm("2x0e"), BatchNorm("2x0e", instance=True), BatchNorm("2x0e", reduce="max")])
    keys = list(network.state_dict())
    with pytest.warns(UserWarning, match="2 modules stay without tpgen, the first '1': of instances"):
        report = conversion_report(convert(network))
    assert [type(norm) for norm in network] == [ConvertedBatchNorm, BatchNorm, BatchNorm]
    assert str(report).count("of instances, or of the largest norm") == 2
    assert list(network.state_dict()) == keys
    assert type(restore(network)[0]) is BatchNorm
