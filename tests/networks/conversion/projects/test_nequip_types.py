"""NequIP's self-connections by atom type, on stand-ins of its modules; tests/clients runs NequIP itself."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from tests.machine import needs_compiler
from tests.networks.conversion.projects.test_nequip import TensorProductScatter
from tpgen.base.errors import TpgenError
from tpgen.functions import silu
from tpgen.networks.conversion import species
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.operations import matmul
from tpgen.networks.conversion.swap import get_swap_mark

pytestmark = needs_compiler
ADAPTERS = tuple(f"tpgen.networks.conversion.projects.nequip{rest}" for rest in ("", "_types", "_scalars", "_edges"))
Data = dict[str, Tensor]
EDGES = {f"{name}_KEY": name.lower() for name in ("EDGE_VECTORS", "EDGE_LENGTH", "EDGE_CELL_SHIFT", "NORM_LENGTH")}
KEYS = SimpleNamespace(NODE_ATTRS_KEY="attrs", ATOM_TYPE_KEY="types", NODE_FEATURES_KEY="features", Type=Data, **EDGES)


class NodeTypeEmbed(nn.Module):
    """What the adapter sees of NequIP's class."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_module = nn.Embedding(3, 4)

    def forward(self, data: Data) -> Data:
        data["attrs"] = self.embed_module(data["types"].view(-1))
        return data


class InteractionBlock(nn.Module):
    """What the adapter sees of NequIP's class."""

    def __init__(self) -> None:
        super().__init__()
        self.sc = o3.FullyConnectedTensorProduct("3x0e+2x1o", "4x0e", "3x0e+2x1o")

    def forward(self, data: Data) -> Data:
        data["features"] = data["features"].sin() + self.sc(data["features"], data["attrs"][: len(data["features"])])
        return data


class ScalarLinearLayer(nn.Module):
    """What the adapter sees of NequIP's class."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("alpha", torch.tensor(0.3), persistent=False)
        self.weight = nn.Parameter(torch.randn(in_features, out_features))
        self.bias = nn.Parameter(torch.randn(out_features)) if bias else None

    def forward(self, input: Tensor) -> Tensor:
        found = input @ (self.weight * self.alpha)
        return found if self.bias is None else found + self.bias


class ScalarMLPFunction(nn.Module):
    """What the adapter sees of NequIP's class."""

    def __init__(self, *dims: int, bias: bool = False) -> None:
        super().__init__()
        layers = [ScalarLinearLayer(a, b, bias) for a, b in pairwise(dims)]
        self.mlp = nn.Sequential(layers[0], nn.SiLU(), *layers[1:])

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block = NodeTypeEmbed(), InteractionBlock()
        self.noise = 0.0

    def forward(self, x: Tensor, types: Tensor) -> Tensor:
        data = self.embed({"features": x, "types": types})
        if self.noise:
            data["attrs"] = data["attrs"] + self.noise
        return self.block(data)["features"]


OF_EDGES = {  # no network here has them
    name: type(name, (nn.Module,), {})
    for name in ("BesselEdgeLengthEncoding", "EdgeLengthNormalizer", "SphericalHarmonicEdgeAttrs")
}
HELD = {
    "nequip": {},
    "nequip.nn": {},
    "nequip.data": {"AtomicDataDict": KEYS},
    "nequip.nn._tp_scatter_base": {"TensorProductScatter": TensorProductScatter},
    "nequip.nn.embedding": {"NodeTypeEmbed": NodeTypeEmbed, **OF_EDGES},
    "nequip.nn.embedding.cutoffs": {"PolynomialCutoff": type("PolynomialCutoff", (nn.Module,), {})},
    "nequip.nn.misc": {"ApplyFactor": type("ApplyFactor", (nn.Module,), {})},
    "nequip.nn.interaction_block": {"InteractionBlock": InteractionBlock},
    "nequip.nn.mlp": {"ScalarLinearLayer": ScalarLinearLayer, "ScalarMLPFunction": ScalarMLPFunction},
}


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Stand-ins in the place of NequIP; the number of types of each call by species, which all are worth."""
    for name, names in HELD.items():
        module = ModuleType(name)
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, name, module)
    for cls in (NodeTypeEmbed, InteractionBlock, ScalarLinearLayer, ScalarMLPFunction):
        monkeypatch.setattr(cls, "__module__", "nequip.nn")
    for adapter in ADAPTERS:
        monkeypatch.delitem(sys.modules, adapter, raising=False)
    seen, run = [], species.kernel_layer
    monkeypatch.setattr(species, "WORTH_SPECIES", 0)
    monkeypatch.setattr(species, "kernel_layer", lambda x, w, *rest: seen.append(len(w)) or run(x, w, *rest))
    yield seen
    for adapter in ADAPTERS:
        sys.modules.pop(adapter, None)


def arguments() -> tuple[Tensor, Tensor]:
    return torch.randn(7, 9), torch.tensor([[0], [2], [2], [0], [1], [0], [2]])


def test_types_choose_the_matrices(calls: list[int]) -> None:
    network = convert(Network())
    report = conversion_report(network, prove=arguments())
    assert all(d.relative < 1e-12 for d in report.proof.differences), report.proof
    assert calls, "also the gradients of the embedding are those of the stock network"
    (row,) = report.replaced
    assert row.paths == ("block.sc",)
    assert row.now.endswith("; by atom type where rows are embeddings of types")
    stock = Network()
    stock.load_state_dict(network.state_dict(), strict=True)
    torch.testing.assert_close(network(*(given := arguments())), stock(*given), rtol=1e-5, atol=1e-5)
    assert type(restore(network).block) is InteractionBlock


def test_a_copy_follows_its_own_embedding(calls: list[int]) -> None:
    network = convert(Network())
    copy = deepcopy(network)
    with torch.no_grad():
        copy.embed.embed_module.weight.mul_(2)
    given = arguments()
    wanted = restore(deepcopy(copy))(*given)
    torch.testing.assert_close(copy(*given), wanted, rtol=1e-5, atol=1e-5)
    assert set(calls) == {3}, "once, and once more where a kernel is built: a rehearsal runs what asks for one"


def test_other_attributes_are_multiplied(calls: list[int]) -> None:
    network, given = Network(), arguments()
    network.noise = 0.5
    wanted = network(*given)
    torch.testing.assert_close(convert(network)(*given), wanted, rtol=1e-5, atol=1e-5)
    assert calls == []


def test_a_table_that_does_more_than_look_up_leaves_the_product(calls: list[int]) -> None:
    network, given = Network(), arguments()
    network.embed.embed_module.register_forward_hook(lambda _module, _given, out: 2 * out)
    wanted = network(*given)
    with pytest.warns(UserWarning, match="'block': of self-connections whose attributes are not one plain table"):
        convert(network)
    torch.testing.assert_close(network(*given), wanted, rtol=1e-5, atol=1e-5)
    assert type(network.block) is InteractionBlock
    assert calls == []


def _energy(network: Network, x: Tensor, seen: list[Tensor]) -> Tensor:
    data = network.embed({"features": x, "types": arguments()[1]})
    seen.append(data["attrs"])
    return network.block(data)["features"].square().sum()


def _alone(energy: Tensor, rows: Tensor, _table: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(energy, rows)


def _with_the_table(energy: Tensor, rows: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(energy, [rows, table])


def _by_edges(energy: Tensor, rows: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(energy, [get_gradient_edge(x) for x in (table, rows)])


def _by_name(energy: Tensor, rows: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(energy, iter([table, rows]))


def _retained(energy: Tensor, rows: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    rows.retain_grad()
    energy.backward()
    return rows.grad, table.grad


def _backward_to(energy: Tensor, rows: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    torch.autograd.backward(energy, inputs=[table, rows])
    return rows.grad, table.grad


def _hooked(energy: Tensor, rows: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    seen: list[Tensor] = []
    rows.register_hook(seen.append)
    energy.backward()
    return *seen, table.grad


def _twice(energy: Tensor, rows: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    first = torch.autograd.grad(energy, [rows, table], create_graph=True)
    return torch.autograd.grad(sum(x.square().sum() for x in first), [rows, table])


def _batched(energy: Tensor, rows: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(energy, [rows, table], torch.tensor([1.0, -2.0]), is_grads_batched=True)


ASKED = [_alone, _with_the_table, _by_edges, _by_name, _retained, _backward_to, _hooked, _twice, _batched]


@pytest.mark.parametrize("ask", ASKED, ids=lambda ask: ask.__name__)
def test_gradients_by_attributes_are_those_of_stock(ask: Any, calls: list[int], float64: None) -> None:
    torch.manual_seed(0)
    stock, x = Network(), torch.randn(7, 9, requires_grad=True)
    found = []
    for network in (stock, convert(deepcopy(stock))):
        energy = _energy(network, x, seen := [])
        found.append(ask(energy, *seen, network.embed.embed_module.weight))
    assert calls, "computed by type"
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


def test_gradients_by_others_go_by_type(monkeypatch: pytest.MonkeyPatch, float64: None) -> None:
    torch.manual_seed(0)
    stock, x = Network(), torch.randn(7, 9, requires_grad=True)
    network = convert(deepcopy(stock))
    energy = _energy(network, x, seen := [])
    monkeypatch.setattr(type(network.block.sc._tpgen), "forward", lambda *_: pytest.fail("the product ran"))
    given = [x, *network.parameters()]
    found = torch.autograd.grad(energy, given)
    monkeypatch.undo()
    wanted = torch.autograd.grad(_energy(stock, x, seen), [x, *stock.parameters()])
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_attributes_that_another_module_made_are_multiplied(calls: list[int], float64: None) -> None:
    network = convert(Network())
    leaf = network.embed.embed_module.weight[arguments()[1].view(-1)].detach().requires_grad_()
    network.block({"features": torch.randn(7, 9), "types": arguments()[1], "attrs": leaf})["features"].sum().backward()
    assert leaf.grad is not None
    assert network.embed.embed_module.weight.grad is None
    assert calls == []


def test_a_block_and_its_product_are_restored_together() -> None:
    with pytest.raises(TpgenError, match="converted together with the module that holds it"):
        restore(convert(Network()).block.sc)


def test_the_last_layer_of_a_radial_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "WORTH_MATMUL", 0)
    monkeypatch.setattr(silu, "WORTH_SILU", 0)
    net, x = ScalarMLPFunction(4, 8, 24), torch.randn(7, 4)
    wanted, keys = net(x), list(net.state_dict())
    convert(net)
    assert [type(layer).__name__ for layer in net.mlp] == ["ScalarLinearLayer", "TpgenSiLU", "TpgenScalarLinearLayer"]
    assert list(net.state_dict()) == keys
    torch.testing.assert_close(net(x), wanted)
    proof = conversion_report(net, prove=(x,)).proof
    assert all(d.relative < 1e-12 for d in proof.differences), proof
    assert type(restore(net).mlp[2]) is ScalarLinearLayer


def test_other_layers_stay() -> None:
    biased, narrow = ScalarMLPFunction(4, 8, 24, bias=True), ScalarMLPFunction(4, 8, 1)
    for net, why in ((biased, ["of a radial layer with biases"]), (narrow, [])):
        network = nn.ModuleDict({"net": net, "product": o3.FullTensorProduct("1o", "1o")})
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            convert(network)
        assert type(net.mlp[-1]) is ScalarLinearLayer
        assert [str(w.message).count(text) for w, text in zip(said, why, strict=True)] == [1] * len(why)


def test_a_nequip_whose_modules_moved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nequip.nn.embedding", ModuleType("nequip.nn.embedding"))
    network = Network()
    with pytest.warns(UserWarning, match=r"'embed': of nequip .*cannot import name 'NodeTypeEmbed'"):
        convert(network)
    assert get_swap_mark(network.block.sc) is not None
