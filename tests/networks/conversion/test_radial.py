"""e3nn's nets of scalars, which make the weights of edges."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from e3nn.nn import FullyConnectedNet
from torch import nn
from torch.nn.utils import parametrize, prune

from tests.machine import needs_compiler
from tests.networks.conversion.networks import check_conversion, pickled, scripted
from tpgen.functions import silu
from tpgen.networks.conversion import radial
from tpgen.networks.conversion.convert import conversion_report, convert
from tpgen.networks.conversion.operations import matmul, pairs
from tpgen.networks.conversion.radial import ConvertedFullyConnectedNet, find_weight_net_swap
from tpgen.networks.conversion.swap import apply_swaps


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


NETS = {
    "plain": lambda: FullyConnectedNet([8, 16, 16, 24], nn.functional.silu),
    "variances": lambda: FullyConnectedNet([8, 16, 24], torch.tanh, variance_in=2, variance_out=3),
    "active to the end": lambda: FullyConnectedNet([8, 16, 24], nn.functional.silu, 1, 5, out_act=True),
    "linear": lambda: FullyConnectedNet([8, 16, 24], None, 1, 2),
    "identity": lambda: FullyConnectedNet([8, 24], _same),
}


@pytest.fixture(params=[0, 2**40], ids=["large", "small"], autouse=True)
def _size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "WORTH_MATMUL", request.param)
    monkeypatch.setattr(silu, "WORTH_SILU", request.param)


@pytest.mark.parametrize("rows", [(11,), (1, 11)])
@pytest.mark.parametrize("name", NETS)
def test_a_net_is_stock(name: str, rows: tuple[int, ...]) -> None:
    copies = (deepcopy, pickled, *([scripted] if name == "plain" else []))
    check_conversion(NETS[name], [torch.randn(*rows, 8)], ConvertedFullyConnectedNet, copies)


def test_a_layer_in_two_places_is_called_twice() -> None:
    net, x = FullyConnectedNet([8, 16, 16, 16, 24], nn.functional.silu).double(), torch.randn(11, 8).double()
    net.layer2 = net.layer1
    wanted = torch.autograd.grad(net(x).square().sum(), tuple(net.parameters()))
    convert(net)
    found = torch.autograd.grad(net(x).square().sum(), tuple(net.parameters()))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("strategy", "products"), [("auto", "tpgen products"), ("grouped", "torch products")])
def test_a_strategy_without_kernels_takes_torchs_products(strategy: str, products: str) -> None:
    net, x = NETS["plain"](), torch.randn(11, 8)
    wanted = net(x)
    convert(net, strategy=strategy)
    assert products in str(conversion_report(net))
    calls: list = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(radial, "matmul", lambda x, w, scale: calls.append(w) or x @ (w * scale))
        torch.testing.assert_close(net(x), wanted)
    assert len(calls) == (3 if strategy == "auto" else 0)


@needs_compiler
def test_the_report_follows_the_dtype() -> None:
    net = convert(NETS["plain"]())
    for dtype, words in ((torch.float16, r"torch products \(.*not in float16\)"), (torch.float32, "tpgen products")):
        assert re.match(words, conversion_report(net.to(dtype)).replaced[0].now)


def test_a_report_follows_a_layer_that_is_taken_out() -> None:
    net = convert(NETS["plain"]())
    del net.layer0
    assert len(conversion_report(net).replaced) == 1


def test_a_converted_net_compiles() -> None:
    net, x = convert(NETS["plain"]()), torch.randn(11, 8)
    torch.testing.assert_close(torch.compile(net, backend="eager", fullgraph=True)(x), net(x))


def test_autocast_rounds_as_it_does_without() -> None:
    net, x = NETS["plain"](), torch.randn(11, 8)
    with torch.autocast("cpu"):
        wanted = net(x)
        found = convert(net)(x)
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=0.1, atol=0.1)


def _prune(net: FullyConnectedNet) -> None:
    prune.l1_unstructured(net.layer0, "weight", 0.5)
    with torch.no_grad():
        net.layer0.weight_orig.mul_(3)


CHANGES: dict[str, Callable[[FullyConnectedNet], object]] = {
    "hook": lambda net: net[1].register_forward_hook(lambda _module, _given, out: 2 * out),
    "wrap": lambda net: setattr(net, "layer1", nn.Linear(16, 16)),
    "activate": lambda net: setattr(net.layer1, "act", nn.SiLU()),
    "parametrise": lambda net: parametrize.register_parametrization(net.layer1, "weight", nn.Tanh()),
    "hook an activation": lambda net: net.layer1.act.register_forward_pre_hook(lambda _, given: (given[0] - 1,)),
    "prune": _prune,
    "forward": lambda net: setattr(net.layer1, "forward", lambda x: x + 1),
}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("hook", "of hooks inside it"),
        ("wrap", r"of a layer that is a torch\.Linear"),
        ("activate", r"of an activation that is a torch\.SiLU"),
        ("parametrise", "of a layer that is parametrised"),
    ],
)
def test_a_changed_net_stays(change: str, why: str) -> None:
    network = nn.ModuleDict({"first": NETS["plain"](), "changed": NETS["plain"]()})
    CHANGES[change](network["changed"])
    x = torch.randn(11, 8)
    wanted = network["changed"](x)
    with pytest.warns(UserWarning, match=f"'changed': {why}"):
        convert(network)
    torch.testing.assert_close(network["changed"](x), wanted)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_afterwards_counts(change: str) -> None:
    net, x = NETS["plain"](), torch.randn(11, 8)
    stock = deepcopy(net)
    convert(net)
    for each in (net, stock):
        torch.manual_seed(0)
        CHANGES[change](each)
    torch.testing.assert_close(net(x), stock(x))


class Block(nn.Module):
    """A net and what takes its results."""

    class Product(nn.Module):
        takes_pairs = True

    def __init__(self) -> None:
        super().__init__()
        self.net, self.product = NETS["plain"](), self.Product()


def _marked(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Rows of two pairs of edges and of one edge alone."""
    monkeypatch.setattr(pairs, "WORTH_PAIRS", 1)
    index = torch.tensor([[0, 1, 0, 2, 2], [1, 0, 2, 0, 1]])
    vectors = torch.tensor([1.0, -1.0, 2.0, -2.0, 3.0]).unsqueeze(1).expand(-1, 3)
    x = vectors.abs().repeat(1, 3)[:, :8].contiguous()
    pairs.mark_edge_pairs(x, index, vectors)
    return x


TAKEN: dict[str, Callable[[Block], object]] = {
    "taken": lambda block: None,
    "hook on the net": lambda block: block.net.register_forward_hook(lambda *_: None),
    "hook on the product": lambda block: block.product.register_forward_pre_hook(lambda *_: None),
    "a product that takes none": lambda block: setattr(block.product, "takes_pairs", False),
    "wrapped net": lambda block: setattr(block, "net", nn.Sequential(block.net)),
    "replaced forward of the net": lambda block: setattr(block.net, "forward", block.net.forward),
    "wrapped product": lambda block: setattr(block, "product", nn.Sequential(block.product)),
    "replaced forward of the product": lambda block: setattr(block.product, "forward", block.product.forward),
    "replaced forward of the block": lambda block: setattr(block, "forward", block.forward),
}


@needs_compiler
@pytest.mark.parametrize("change", TAKEN)
def test_results_are_rows_of_pairs_where_nobody_else_sees_them(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block, x = Block(), _marked(monkeypatch)
    wanted = block.net(x)
    apply_swaps(find_weight_net_swap(block, block, ("net", "product"), {}))
    net = block.net
    TAKEN[change](block)
    torch.testing.assert_close(net(x), wanted[[0, 2, 4]] if change == "taken" else wanted)


@needs_compiler
def test_a_net_runs_once_for_each_pair_and_gives_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, seen = NETS["plain"](), _marked(monkeypatch), []
    wanted = net(x)
    convert(net)
    evaluate = radial._evaluate_net
    monkeypatch.setattr(radial, "_evaluate_net", lambda net, x: (seen.append(len(x)), evaluate(net, x))[1])
    torch.testing.assert_close(net(x), wanted)
    torch.testing.assert_close(net(x.clone()), wanted)
    assert seen == [3, 5]


def test_a_net_in_two_places_is_no_blocks_own() -> None:
    block = Block()
    block.again = block.net
    assert not list(find_weight_net_swap(block, block, ("net", "product"), {}))
