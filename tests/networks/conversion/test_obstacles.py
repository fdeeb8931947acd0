"""What stays e3nn's when a network is converted, and why."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from e3nn import o3
from torch import nn
from torch.nn.utils import parametrizations

from tests.networks.conversion.networks import GRAPHS, VECTORS, Scaled
from tpgen.base.errors import TpgenError
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.swap import get_swap_mark


class Constructed(o3.FullyConnectedTensorProduct):
    """A product with arguments of its own."""

    def __init__(self, copies: int) -> None:
        super().__init__(f"{copies}x0e + {copies}x1o", "0e + 1o", f"{copies}x0e + {copies}x1o")


class Mixing(o3.Linear):
    def __init__(self, copies: int) -> None:
        super().__init__(f"{copies}x0e + {copies}x1o", f"{copies}x0e")


def test_a_subclass_that_is_its_base_but_for_its_construction_is_converted() -> None:
    network = nn.ModuleDict({"product": Constructed(4), "mix": Mixing(4)})
    x, y = torch.randn(5, 16), torch.randn(5, 4)
    wanted = network["mix"](network["product"](x, y))
    convert(network, **GRAPHS)
    assert not conversion_report(network).kept
    assert isinstance(network["product"], o3.FullyConnectedTensorProduct)
    torch.testing.assert_close(network["mix"](network["product"](x, y)), wanted)
    restore(network)
    assert [type(module) for module in network.values()] == [Constructed, Mixing]
    torch.testing.assert_close(network["mix"](network["product"](x, y)), wanted)


class Hinted(o3.Linear):
    """A layer that says what its call takes."""

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        return super().__call__(features)


class Named(o3.SphericalHarmonics):
    """Harmonics with words of their own."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)

    def __repr__(self) -> str:
        return "harmonics"


class Twice(o3.Linear):
    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        return super().__call__(2 * features)


class Renaming(o3.Linear):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x)


def test_a_subclass_that_hands_its_call_on_is_converted() -> None:
    last = [Twice("1o", "1o"), Renaming("1o", "1o")]
    network = nn.ModuleList([Named([0, 1], True, "component"), Hinted("0e + 1o", "3x0e + 1o"), *last])
    x = torch.randn(6, 3)

    def results() -> list[torch.Tensor]:
        return [network[0](x), network[1](network[0](x)), network[2](x), network[3](x=x)]

    wanted = results()
    with pytest.warns(UserWarning, match="2 modules stay"):
        convert(network)
    assert "Linear, whose own code a swap would skip (__call__)" in str(conversion_report(network).kept)
    torch.testing.assert_close(results(), wanted)


def scripted() -> nn.Module:
    return torch.jit.script(o3.FullTensorProduct("2x1o", "1o"))


def replaced_on_the_instance() -> nn.Module:
    product = o3.FullTensorProduct("2x1o", "1o")
    product.forward = lambda x, y: x  # type: ignore[method-assign]
    return product


def hooked_inside() -> nn.Module:
    product = o3.FullTensorProduct("2x1o", "1o")
    product._compiled_main_left_right = nn.Identity()  # what e3nn 0.4 holds there takes no hooks
    product._compiled_main_left_right.register_forward_hook(lambda *_: None)
    return product


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: Scaled(*VECTORS), r"a subclass of e3nn.FullyConnectedTensorProduct, whose own code a swap would skip"),
        (lambda: parametrizations.weight_norm(o3.FullyConnectedTensorProduct(*VECTORS)), r"weight parametrised"),
        (scripted, r"a scripted FullTensorProduct: convert the network before it is scripted"),
        (replaced_on_the_instance, r"its forward is replaced on the instance"),
        (hooked_inside, r"hooks on _compiled_main_left_right"),
    ],
)
def test_what_a_swap_would_lose_is_kept_and_named(make, why: str) -> None:
    network = nn.ModuleDict({"good": o3.FullTensorProduct("2x1o", "1o"), "other": make()})
    before = deepcopy(network["other"].state_dict())
    with pytest.warns(UserWarning, match=rf"1 module stays without tpgen, the first 'other': {why}"):
        convert(network, **GRAPHS)
    assert get_swap_mark(network["good"]) is not None
    assert network["other"].state_dict().keys() == before.keys()
    (kept,) = conversion_report(network).kept
    assert kept.paths == ("other",)
    assert kept.why in str(conversion_report(network))
    with pytest.raises(TpgenError, match=rf"holds nothing that can be converted: {why}"):
        convert(make(), **GRAPHS)


def test_a_scripted_network_that_is_converted_is_called_so() -> None:
    scripted = torch.jit.script(convert(o3.FullTensorProduct("2x1o", "1o"), **GRAPHS))
    network = nn.ModuleList([scripted, o3.FullTensorProduct("1o", "1o")])
    with pytest.warns(UserWarning, match="'0': a scripted ConvertedFullTensorProduct, which computes with"):
        convert(network, **GRAPHS)
    with pytest.raises(TpgenError, match="of a scripted network, restore the one that it was scripted from"):
        restore(scripted)
