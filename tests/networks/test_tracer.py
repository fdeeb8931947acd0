"""A whole network as one graph, and what stands in the way of one."""

import pytest
import torch
from e3nn import o3
from torch import nn

import tpgen
from tests.networks.layers import Layers, by_path, layer_inputs
from tpgen.base.errors import TraceError
from tpgen.compiler.backends import script_module
from tpgen.networks.inline import inline_products
from tpgen.networks.tracer import is_leaf, opening, trace_network
from tpgen.tools.demo.tetris import Tetris, find_neighbours, shapes


def test_products_and_e3nn_modules_stay_nodes() -> None:
    network = Layers(count=1).double()
    traced = trace_network(network)
    paths = by_path(traced.graph)
    assert paths["products.0"] == paths["mixes.0"] == paths["radial.layer0"] == paths["act"] == ["call_module"]
    assert "call_function" in paths[""]
    inputs = layer_inputs()
    torch.testing.assert_close(traced(*inputs), network(*inputs), rtol=0, atol=0)
    assert traced.state_dict().keys() <= network.state_dict().keys()


def test_the_names_of_the_network_are_put_back() -> None:
    before = o3.spherical_harmonics
    trace_network(Layers(count=1))
    assert o3.spherical_harmonics is before
    assert "len" not in globals()


def test_a_leaf_can_be_opened_and_a_network_closed() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    kinds = [node.op for node in trace_network(network, leaf=opening(nn.ReLU)).graph.nodes]
    assert kinds == ["placeholder", "call_module", "call_function", "output"]
    opened = trace_network(network, leaf=opening("0"))
    assert by_path(opened.graph)["0"] == ["get_attr", "get_attr", "call_function"]
    outer = nn.Sequential(network)
    closed = trace_network(outer, leaf=lambda module, path: path == "0")
    assert [str(node.target) for node in closed.graph.nodes] == ["input", "0", "output"]


def test_an_opened_product_is_its_program() -> None:
    network = Layers("grouped", count=2).double()
    opened = trace_network(network, leaf=opening("products.1"))
    modules = {node.target for node in opened.graph.nodes if node.op == "call_module"}
    assert "products.0" in modules
    assert "products.1" not in modules
    inputs = layer_inputs()
    torch.testing.assert_close(opened(*inputs), network(*inputs), rtol=1e-12, atol=1e-12)


def test_attributes_are_on_every_node() -> None:
    fixed = trace_network(Layers(count=1), attributes={"stage": "forward"})
    assert {node.meta["stage"] for node in fixed.graph.nodes} == {"forward"}
    depth = trace_network(Layers(count=1), attributes=lambda node: {"depth": node.meta["module_path"].count(".")})
    assert {node.meta["depth"] for node in depth.graph.nodes} == {0, 1}
    flat = inline_products(fixed)
    assert {node.meta["stage"] for node in flat.graph.nodes} == {"forward"}


def test_functions_and_fixed_arguments() -> None:
    network = Tetris(tpgen.FullyConnectedTensorProduct, layers=1, mul=2, lmax=1)
    traced = trace_network(network, functions=[find_neighbours])
    points = shapes(torch.Generator().manual_seed(0))
    torch.testing.assert_close(traced(points), network(points))
    assert find_neighbours in {node.target for node in traced.graph.nodes}

    class Choosing(nn.Module):
        def forward(self, x, double: bool):
            return x * 2 if double else x

    fixed = trace_network(Choosing(), concrete_args={"double": True})
    assert sum(node.op == "call_function" for node in fixed.graph.nodes) >= 1


class Padded(nn.Module):
    """Makes tensors of the sizes of its input."""

    def forward(self, x):
        rows, width = len(x), x.shape[1]
        made = torch.zeros(rows, width, dtype=x.dtype) + torch.ones((rows, 1)) + torch.full((rows, width), 2.0)
        return x + made + torch.arange(rows, device=x.device)[:, None] + torch.eye(3).sum()


def test_tensors_of_a_size_in_the_graph_are_recorded() -> None:
    before = torch.zeros
    traced = trace_network(Padded())
    assert torch.zeros is before
    called = {node.target for node in traced.graph.nodes if node.op == "call_function"}
    assert {torch.zeros, torch.ones, torch.full, torch.arange} <= called
    assert torch.eye not in called, "its size is a number"
    for rows in (2, 5):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(traced(x), Padded()(x), rtol=0, atol=0)


def chosen(x):
    return x if x.sum() > 0 else -x


class Choosy(nn.Module):
    def forward(self, x):
        return chosen(x) * 2


def test_a_function_that_decides_by_a_value_is_named() -> None:
    with pytest.raises(TraceError, match=r"keep chosen as one node of the graph: functions=\[chosen\]"):
        trace_network(Choosy())
    x = torch.randn(3)
    torch.testing.assert_close(trace_network(Choosy(), functions=[chosen])(x), Choosy()(x))


def test_default_leaves() -> None:
    product = tpgen.TensorSquare("1o")
    assert is_leaf(product)
    assert is_leaf(nn.Linear(1, 1))
    assert not is_leaf(Layers(count=1))


class Deciding(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Unpacking(nn.Module):
    def forward(self, x):
        return sum(list(x))


class Stranger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(2, 2)]

    def forward(self, x):
        return self.hidden[0](x)


@pytest.mark.parametrize(
    "module, message",
    [
        (Deciding(), r"cannot trace module '0', test_tracer.py:\d+ \(return x if x.sum.*make the module a leaf"),
        (Unpacking(), r"cannot trace module '0', test_tracer.py:\d+ .*unpack it into a fixed number of names"),
        (Stranger(), r"cannot trace module '0', .*assign it to an attribute"),
    ],
)
def test_untraceable_code_says_where_and_the_way_out(module: nn.Module, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        trace_network(nn.Sequential(module))


def test_any_other_failure_names_the_ways_out() -> None:
    class Casting(nn.Module):
        def forward(self, x):
            return x * float(x.sum())

    with pytest.raises(TraceError, match=r"cannot trace the network, test_tracer.py:.*the function it calls a node"):
        trace_network(Casting())


def test_modules_without_python_code() -> None:
    scripted = script_module(nn.Linear(2, 2))
    with pytest.raises(TraceError, match=r"has no Python code to trace .*trace the module that it was made from"):
        trace_network(scripted)
    with pytest.raises(TraceError, match="is TorchScript, which has no Python code to trace: keep it a leaf"):
        trace_network(nn.Sequential(scripted), leaf=lambda module, path: False)


def test_a_list_of_weights_has_no_program() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = tpgen.FullyConnectedTensorProduct("1o", "1o", "0e", internal_weights=False)

        def forward(self, x, w):
            return self.product(x, x, [w])

    with pytest.raises(TraceError, match="product 'product' is called with a list of weights"):
        inline_products(trace_network(Listed()))


def test_what_is_no_network_or_not_traced_is_told_so() -> None:
    with pytest.raises(TraceError, match=r"give an nn\.Module to trace, not function; wrap a function in a module"):
        trace_network(lambda x: x)  # type: ignore[arg-type]
    network = Layers(count=1).double()
    with pytest.raises(TraceError, match=r"got Layers: give it trace_network\(network\)"):
        inline_products(network)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match=r"fails on the inputs given .*; give inputs that it takes"):
        inline_products(trace_network(network), inputs=[torch.ones(2)])


def test_trying_inputs_leaves_statistics_alone() -> None:
    network = nn.Sequential(tpgen.TensorSquare("2x1o", strategy="einsum"), nn.BatchNorm1d(21))
    traced = trace_network(network)
    inline_products(traced, inputs=[torch.randn(5, 6)])
    assert network.training
    assert network[1].num_batches_tracked == 0
