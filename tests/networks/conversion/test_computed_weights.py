"""Weights that torch computes at each call, by a hook or a parametrisation: results and gradients are stock's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import tpgen
from tests.attacks.modules import OF_E3NN
from tpgen.base._e3nn import default_dtype
from tpgen.base.errors import TpgenError
from tpgen.networks.conversion.convert import conversion_report
from tpgen.networks.conversion.operations import matmul

HOOKED: dict[str, Callable[[nn.Module], Any]] = {
    "weight_norm": torch.nn.utils.weight_norm,
    "weight_norm of all": lambda m: torch.nn.utils.weight_norm(m, dim=None),
    "spectral_norm": torch.nn.utils.spectral_norm,
    "parametrised": parametrizations.weight_norm,
    "pruned": lambda m: prune.random_unstructured(m, "weight", 0.3),
}
REFUSED = ("spectral_norm",)
KINDS = ("product", "connected", "linear", "channels", "net", "network")


def computed(network: nn.Module, norm: Callable[[nn.Module], Any]) -> nn.Module:
    """Let every weight of a network be computed from others."""
    torch.manual_seed(1)
    for module in list(network.modules()):
        if "weight" in dict(module.named_parameters(recurse=False)) and module.weight.numel():
            norm(module)
    return network


def answers(network: nn.Module, arguments: tuple[Any, ...]) -> dict[str, Tensor]:
    """Two calls in a row, so that a weight of the call before would be seen, with gradients of all parameters."""
    network(*arguments)
    found = network(*arguments)
    found.square().sum().backward()
    return {"result": found.detach(), **{name: p.grad for name, p in network.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("first", ["computed", "converted"])
@pytest.mark.parametrize("norm", HOOKED)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_are_those_of_stock(
    kind: str, norm: str, first: str, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "WORTH_MATMUL", 0 if kernels else 2**18)
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        stock, arguments = OF_E3NN[kind](o3)
    model = deepcopy(stock)
    arguments = tuple(x.double() for x in arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: that old ones are deprecated; ours: that one stays
        try:
            wanted = answers(computed(stock, HOOKED[norm]), arguments)
        except (RuntimeError, IndexError):  # torch refuses vectors of weights
            assert norm in REFUSED
            return
        if first == "converted":
            tpgen.convert(model)
        computed(model, HOOKED[norm])
        if first == "computed":
            with suppress(TpgenError):  # all that there is may stay, which is said
                tpgen.convert(model)
        found = answers(model, arguments)
        with suppress(TpgenError):
            assert str(conversion_report(model))
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-10, atol=1e-10 * float(x.abs().max()) + 1e-14, msg=name)
