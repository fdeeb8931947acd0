"""The adapter for NequIP, on stand-ins of its modules; tests/clients runs NequIP itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import deepcopy
from types import ModuleType

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

from tests.machine import KERNEL
from tests.networks.conversion.networks import check_conversion
from tpgen.networks.conversion.convert import convert
from tpgen.networks.conversion.swap import get_swap_mark

ADAPTER = "tpgen.networks.conversion.projects.nequip"
INSTRUCTIONS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 1, 0, "uvu", True), (1, 0, 1, "uvu", True)]


class TensorProductScatter(nn.Module):
    """What the adapter sees of NequIP's class."""

    def __init__(self) -> None:
        super().__init__()
        self.tp = o3.TensorProduct(
            "3x0e+3x1o", "0e+1o", "3x0e+3x1o", INSTRUCTIONS, shared_weights=False, internal_weights=False
        )
        self.model_dtype = torch.get_default_dtype()

    def forward(self, x: Tensor, edge_attr: Tensor, edge_weight: Tensor, edge_dst: Tensor, edge_src: Tensor) -> Tensor:
        messages = self.tp(x[edge_src], edge_attr, edge_weight)
        return messages.new_zeros(x.size(0), messages.size(1)).index_add(0, edge_dst, messages)


TensorProductScatter.__module__ = "nequip.nn._tp_scatter_base"


@pytest.fixture(autouse=True)
def _nequip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    held = {
        "nequip": {},
        "nequip.nn": {},
        "nequip.nn._tp_scatter_base": {"TensorProductScatter": TensorProductScatter},
        f"{ADAPTER}_types": {"find_self_connection_swaps": lambda network, options: ()},  # tests of their own
        f"{ADAPTER}_scalars": {"find_scalar_layer_swaps": lambda network, options: ()},
        f"{ADAPTER}_edges": {"find_nequip_edge_swaps": lambda network, options: ()},
    }
    for name, names in held.items():
        module = ModuleType(name)
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, ADAPTER, raising=False)
    yield
    sys.modules.pop(ADAPTER, None)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tp_scatter = TensorProductScatter()
        self.sc = o3.FullyConnectedTensorProduct("3x0e+3x1o", "2x0e", "3x0e+3x1o")

    def forward(self, x: Tensor, y: Tensor, w: Tensor, attrs: Tensor, edges: Tensor) -> Tensor:
        return self.tp_scatter(x, y, w, edges[0], edges[1]) + self.sc(x, attrs)


def arguments() -> tuple[Tensor, ...]:
    edges = torch.stack([torch.randint(5, (11,)), torch.randint(4, (11,))])  # sums over the first, gathers the second
    return torch.randn(5, 12), torch.randn(11, 4), torch.randn(11, 12), torch.eye(2)[[0, 1, 0, 1, 1]], edges


@pytest.mark.parametrize("strategy", ["grouped", KERNEL])
def test_product_and_scatter_are_one_convolution(strategy: str) -> None:
    close = {"rtol": 1e-5, "atol": 1e-5}
    report = check_conversion(Network, arguments(), copies=(deepcopy,), close=close, strategy=strategy)
    assert {path for r in report.replaced for path in r.paths} == {"tp_scatter", "sc"}, "tp is not called any more"


def test_features_come_in_the_dtype_of_the_model() -> None:
    network = convert(Network(), strategy="grouped")
    x, *rest = arguments()
    assert network.tp_scatter(x.bfloat16(), *rest[:2], *rest[-1]).dtype == torch.float32


def test_a_nequip_of_another_version_keeps_what_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nequip.nn._tp_scatter_base", ModuleType("moved"))
    network = Network()
    with pytest.warns(UserWarning, match=r"'tp_scatter': of nequip, whose adapter cannot be loaded"):
        convert(network, strategy="grouped")
    assert type(network.tp_scatter) is TensorProductScatter
    assert get_swap_mark(network.tp_scatter.tp) is not None


def test_hooks_on_the_product_keep_the_scatter() -> None:
    network, (given, seen) = Network(), (arguments(), [])
    network.tp_scatter.tp.register_forward_hook(lambda _, args, out: seen.append(len(args[0])) or 2 * out)
    wanted = network(*given)
    with pytest.warns(UserWarning, match=r"'tp_scatter': hooks on tp, which see edges: its product alone is converted"):
        convert(network, strategy="grouped")
    torch.testing.assert_close(network(*given), wanted, rtol=1e-5, atol=1e-5)
    assert seen == [11, 11]
    assert get_swap_mark(network.tp_scatter.tp) is not None
