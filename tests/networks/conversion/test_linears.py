"""e3nn's linear layers that compute with tpgen."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from e3nn import o3
from e3nn.util.jit import compile as e3nn_compile
from torch import nn

from tests.machine import KERNEL
from tests.networks.conversion.networks import check_conversion
from tpgen.base.errors import InputError, TpgenError
from tpgen.networks.conversion.convert import convert, restore
from tpgen.networks.conversion.linears import ConvertedLinear

LAYERS = {
    "plain": {},
    "biases": {"biases": True},
    "path": {"path_normalization": "path"},
    "chosen": {"instructions": [(0, 0), (2, 0), (1, 1)]},
    "channels": {"f_in": 2, "f_out": 3},
}


def layer(name: str) -> o3.Linear:
    made = o3.Linear("3x0e+2x1o+4x0e", "2x0e+3x1o+1e", **LAYERS[name])
    if name == "biases":
        nn.init.normal_(made.bias)
    return made


def features(name: str) -> torch.Tensor:
    return torch.randn(5, 2, 13) if name == "channels" else torch.randn(5, 13)


@pytest.mark.parametrize("strategy", ["grouped", KERNEL])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_stock(name: str, strategy: str) -> None:
    check_conversion(partial(layer, name), [features(name)], ConvertedLinear, strategy=strategy)


def test_weights_may_be_given() -> None:
    module, x = o3.Linear("2x0e+1o", "3x0e+1o", shared_weights=False), torch.randn(4, 5)
    w = torch.randn(4, module.weight_numel)
    wanted = module(x, w)
    torch.testing.assert_close(convert(module, strategy="grouped")(x, w), wanted)
    assert type(restore(module)) is o3.Linear


def test_a_layer_without_paths_takes_any_features() -> None:
    """As MACE's models of dipoles have: one layer's output of width 0 goes into another that joins nothing."""
    network = nn.ModuleDict({"none": o3.Linear("16x0e", "1x1o"), "some": layer("plain")})
    convert(network, strategy="grouped")
    for width in (0, 16, 17):
        assert torch.equal(network["none"](torch.randn(4, width)), torch.zeros(4, 3))


def test_features_without_rows_and_columns() -> None:
    module = layer("plain")
    wanted = module(torch.zeros(0, 0))
    convert(module, strategy="grouped")
    assert module(torch.zeros(0, 0)).shape == wanted.shape
    with pytest.raises(InputError, match="the last dimension must be 13"):
        module(torch.zeros(0, 12))
    assert e3nn_compile(module)(torch.zeros(0, 0)).shape == wanted.shape


class _Doubled(o3.Linear):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(features)


def _foreign() -> o3.Linear:
    module = layer("plain")
    module.instructions = [i._replace(path_weight=7.0) for i in module.instructions]
    return module


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: _Doubled("2x0e", "3x0e"), r"a subclass of e3nn.Linear, whose own code a swap would skip"),
        (lambda: torch.jit.script(layer("plain")), r"a scripted Linear: convert the network before it is scripted"),
        (_foreign, r"its coefficients are none that tpgen plans for such a layer"),
    ],
)
def test_what_must_stay_is_named(make, why: str) -> None:
    with pytest.raises(TpgenError, match=f"nothing that can be converted: {why}"):
        convert(make())
