"""Converted modules in a trace: one node each, by fx alone and by `trace_network`."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from importlib import import_module

import pytest
import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet, Gate
from torch import Tensor, fx, nn

import tpgen
from tests.machine import KERNEL
from tests.networks.conversion.traces import BY_COUNT, TRACES, check_traces, modules_called
from tests.nn.modules import FIVE
from tests.nn.modules import inputs as operands
from tpgen.base.errors import TpgenError, TraceError
from tpgen.emitter.leaf import is_kept_whole
from tpgen.networks.conversion.adapters import ADAPTERS
from tpgen.networks.conversion.convert import convert, restore
from tpgen.networks.conversion.swap import ClassSwap, get_swap_mark
from tpgen.networks.inline import inline_products
from tpgen.networks.invert import invert
from tpgen.networks.tracer import opening, trace_network

ROWS = 4
MIXED = "3x0e + 2x1o"


def rows(*dims: int) -> list[Tensor]:
    return [torch.randn(ROWS, dim, dtype=torch.float64) for dim in dims]


def _product(name: str) -> tuple[nn.Module, list[Tensor]]:
    product = FIVE[name](o3)
    return product, operands(product)


def _by_element() -> tuple[nn.Module, list[Tensor]]:
    return o3.FullyConnectedTensorProduct(MIXED, "3x0e", MIXED), [*rows(9), torch.eye(3).double()[[0, 2, 2, 1]]]


def _gate() -> tuple[nn.Module, list[Tensor]]:
    silu, tanh = nn.functional.silu, torch.tanh
    gate = Gate("3x0e", [silu], "2x0e", [tanh], "2x1o")
    return gate, rows(gate.irreps_in.dim)


# e3nn's modules that `convert` knows, and arguments of a call
KINDS: dict[str, Callable[[], tuple[nn.Module, list[Tensor]]]] = {
    **{name: lambda name=name: _product(name) for name in FIVE if name != "empty"},
    "by-element": _by_element,
    "linear": lambda: (o3.Linear(MIXED, "2x0e + 3x1o"), rows(9)),
    "linear-biases": lambda: (o3.Linear(MIXED, "2x0e + 3x1o", biases=True), rows(9)),
    "linear-channels": lambda: (
        o3.Linear(MIXED, "2x0e", f_in=2, f_out=3),
        [torch.randn(ROWS, 2, 9, dtype=torch.float64)],
    ),
    "linear-given": lambda: (o3.Linear("4x0e", "2x0e", internal_weights=False), [*rows(4), torch.randn(8).double()]),
    "harmonics": lambda: (o3.SphericalHarmonics("0e+1o+2e", True), rows(3)),
    "net": lambda: (FullyConnectedNet([3, 8, 5], nn.functional.silu), rows(3)),
    "gate": _gate,
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("strategy", ["grouped", KERNEL])
@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_module_is_one_node(kind: str, strategy: str) -> None:
    module, given = KINDS[kind]()
    network = BY_COUNT[len(given)](module)
    try:
        convert(network, strategy=strategy)
    except TpgenError:
        assert (kind, strategy) == ("harmonics", "grouped"), "kernels alone compute harmonics"
        return
    check_traces(network, given, ["inner.0"])


def test_the_table_holds_every_class_of_e3nn() -> None:
    known = {type(convert(nn.Sequential(make()[0]))[0]) for make in KINDS.values()}
    homes = [
        import_module(f"tpgen.networks.conversion.{name}")
        for name in ("products", "linears", "harmonics", "gates", "radial")
    ]
    ours = {cls for home in homes for cls in vars(home).values() if _computes(cls, home.__name__)}
    assert ours == known


def _computes(cls: object, home: str) -> bool:
    return isinstance(cls, type) and issubclass(cls, nn.Module) and cls.__module__ == home and cls.__name__[0] != "_"


class Stranger(nn.Module):
    """A module of a project, which decides by values."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x * 3


class ConvertedStranger(Stranger):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class AroundStranger(Stranger):
    """Runs the project's forward, and looks at what it is given."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x)


def _adapter(cls: type[nn.Module], now: str) -> Callable:
    return lambda network, options: [ClassSwap(m, cls, now) for m in network.modules() if type(m) is Stranger]


def test_modules_of_any_adapter_are_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTERS, "tests", _adapter(ConvertedStranger, "tpgen"))
    network = convert(nn.Sequential(Stranger(), nn.ReLU()))
    check_traces(network, rows(3), ["0", "1"])
    check_traces(deepcopy(network), rows(3), ["0", "1"])
    restore(network)
    assert type(network[0]).__module__ == network[0].__module__ == __name__
    with pytest.raises(fx.proxy.TraceError, match="control flow"):
        fx.symbolic_trace(network)


@pytest.mark.parametrize("cls, now", [(AroundStranger, "its own code, marked"), (ConvertedStranger, "")])
def test_a_trace_looks_into_blocks_and_into_forwards_of_projects(
    cls: type[nn.Module], now: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ADAPTERS, "tests", _adapter(cls, now))
    network = convert(nn.Sequential(Stranger(), nn.ReLU()))
    with pytest.raises(TraceError, match=r"cannot trace module '0', test_traces.py:\d+ \(return x \* 2 if x.sum"):
        trace_network(network)


class Constants(nn.Module):
    """A layer and a product of tensors that are no arguments of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.product = o3.Linear("2x0e", "2x0e"), o3.FullyConnectedTensorProduct("2x0e", "0e", "2x0e")
        self.register_buffer("x", torch.ones(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(self.x) + self.product(self.x, self.x[:, :1])


@pytest.mark.parametrize("trace", TRACES)
def test_weights_stay_parameters_where_no_argument_is_traced(trace: str) -> None:
    network, x = convert(Constants()), torch.zeros(1, 2)
    traced = TRACES[trace](network)
    with torch.no_grad():
        network.layer.weight.fill_(3.0)
        network.product.weight.fill_(2.0)
    torch.testing.assert_close(traced(x), network(x), rtol=0, atol=0)


def test_what_is_one_node_itself_says_so() -> None:
    with pytest.raises(TraceError, match=r"ConvertedLinear is one node of a graph: trace a network that holds it"):
        trace_network(convert(nn.Sequential(o3.Linear("1o", "1o")))[0])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", FIVE)
def test_programs_of_converted_products_take_their_place(kind: str) -> None:
    if kind == "empty":
        return
    module, given = KINDS[kind]()
    network = convert(BY_COUNT[len(given)](module), strategy="grouped")
    for flat in (
        inline_products(trace_network(network), strategy="einsum", inputs=given),
        trace_network(network, leaf=opening("inner.0")),
    ):
        assert not modules_called(flat)
        torch.testing.assert_close(flat(*given), network(*given), rtol=1e-12, atol=1e-12)
        assert dict(flat.named_parameters()).keys() == dict(network.named_parameters()).keys()


def test_a_converted_layer_is_undone_by_the_inverse_of_its_class() -> None:
    network = convert(nn.Sequential(o3.Linear("1o", "1o")))
    traced = trace_network(network)
    with pytest.raises(TpgenError, match=r"node '_0' .*has no inverse here"):
        invert(traced)
    back = invert(traced, {type(network[0]): lambda y, place: y / network[0].weight.item()})
    x = torch.randn(ROWS, 3)
    torch.testing.assert_close(back(network(x)), x, rtol=1e-4, atol=1e-4)


def test_marks_go_with_the_conversion() -> None:
    network = convert(nn.Sequential(o3.Linear("1o", "1o")))
    assert is_kept_whole(network[0])
    assert get_swap_mark(network[0]) is not None
    assert not is_kept_whole(restore(network)[0])


class Own(nn.Module):
    """Modules of tpgen's, called as they may be."""

    def __init__(self) -> None:
        super().__init__()
        plan = tpgen.channelwise("4x0e", "0e+1o", "0e+1o")
        self.elements = tpgen.Linear("4x0e", "4x0e", num_elements=3)
        self.biased = tpgen.Linear("4x0e", "4x0e", biases=True)
        self.conv = tpgen.TensorProductConv.from_plan(plan)
        self.contraction = tpgen.SymmetricContraction("4x0e+4x1o", "4x0e", 2, num_elements=3)
        self.square = tpgen.Polynomial({"x": "4x0e"}, "4x0e", [("x", "x")])
        self.given = tpgen.FullyConnectedTensorProduct("4x0e", "4x0e", "4x0e", internal_weights=False)

    def forward(self, x: Tensor, y: Tensor, w: Tensor, index: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        x = self.biased(self.elements(x, index=index))
        z = self.conv(x, y, w.view(8, 8), src, dst, num_nodes=5)
        # copies of scalars, then those of vectors
        z = torch.cat([z[:, :4].unsqueeze(-1), z[:, 4:].unflatten(1, (4, 3))], -1)
        x = x + self.contraction(z, index)
        return self.given(self.square(x=x), x, weight=w)


@pytest.mark.usefixtures("float64")
def test_modules_of_tpgen_are_one_node_each() -> None:
    network = Own()
    src, dst = torch.randint(5, (2, 8))
    given = (torch.randn(5, 4), torch.randn(8, 4), torch.randn(64), torch.randint(3, (5,)), src, dst)
    check_traces(network, given, ["elements", "biased", "conv", "contraction", "square", "given"])


class Unlike(tpgen.TensorSquare):
    """A subclass that does more."""

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        return 3 * super().forward(x, weight)


@pytest.mark.usefixtures("float64")
def test_a_subclass_is_one_node_that_does_all_it_does() -> None:
    check_traces(nn.Sequential(Unlike("2x1o")), rows(6), ["0"])
