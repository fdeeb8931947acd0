"""Products of a network stand in its graph, which computes the same."""

import copy

import pytest
import torch
from torch import nn

import tpgen
from tests.networks.layers import Layers, layer_inputs
from tpgen.networks.inline import inline_products
from tpgen.networks.tracer import trace_network
from tpgen.planner.presets import channelwise
from tpgen.tools.demo.tetris import Tetris, find_neighbours, shapes


@pytest.mark.parametrize("strategy", ["einsum", "grouped", "unrolled", "kernel"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_a_flat_network_computes_the_same(strategy: str, given: bool, dtype: torch.dtype, tolerance: float) -> None:
    if strategy == "kernel" and tpgen.TensorSquare("1o").choice.strategy != "kernel":
        pytest.skip("needs a C++ compiler")
    network = Layers("einsum").to(dtype)
    inputs = layer_inputs(dtype=dtype)
    flat = inline_products(trace_network(network), strategy=strategy, inputs=inputs if given else None)
    assert not any(isinstance(module, tpgen.TensorProduct) for module in flat.modules())
    for rows in (7, 4):
        inputs = layer_inputs(rows, dtype)
        inputs[0].requires_grad_()
        want, got = network(*inputs), flat(*inputs)
        scale = want.abs().max().item()
        torch.testing.assert_close(got, want, rtol=0, atol=tolerance * max(scale, 1.0))
        for a, b in zip(
            torch.autograd.grad(got.sum(), inputs[0]), torch.autograd.grad(want.sum(), inputs[0]), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=0, atol=10 * tolerance * max(b.abs().max().item(), 1.0))


def test_what_products_have_in_common_is_computed_once() -> None:
    network = Layers("einsum", count=3).double()
    flat = inline_products(trace_network(network), inputs=layer_inputs())
    gain = flat.gain
    assert gain.products == 3
    assert gain.nodes < 0.6 * gain.nodes_before
    assert gain.constants * 3 == gain.constants_before
    assert gain.flops is not None
    assert gain.flops_before is not None
    assert gain.flops <= gain.flops_before
    assert str(gain).startswith("3 products inlined; nodes ")
    shared = [node for node in flat.graph.nodes if len(node.meta.get("shared_by", ())) == 3]
    # the coupling with the spherical harmonics stands there once for all three
    assert any(node.target is torch.functional.einsum for node in shared)


def test_predicate_chooses_products() -> None:
    flat = inline_products(trace_network(Layers()), lambda product, path: path == "products.0")
    assert flat.gain.products == 1
    assert {"products.1", "products.2"} <= {n.target for n in flat.graph.nodes if n.op == "call_module"}


def test_couplings_stay_exact_and_out_of_the_state_dict() -> None:
    network = Layers("einsum")
    flat = inline_products(trace_network(network))
    assert flat.state_dict().keys() <= network.state_dict().keys()
    inputs = layer_inputs()
    for module in (flat.double(), copy.deepcopy(flat)):
        torch.testing.assert_close(module(*inputs), network.double()(*inputs), rtol=1e-12, atol=1e-12)


def test_squares_convolutions_and_own_weights() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.square = tpgen.TensorSquare("2x1o", "3x0e+2x1o", strategy="einsum")
            self.conv = tpgen.TensorProductConv.from_plan(channelwise("3x0e+2x1o", "1o", "1o"), strategy="grouped")

        def forward(self, x, y, w, src, dst):
            return self.conv(self.square(x), y, w, src, dst, num_nodes=3)

    network = Network().double()
    x, y = torch.randn(3, 6, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    w = torch.randn(5, network.conv.weight_numel, dtype=torch.float64)
    src, dst = torch.tensor([0, 1, 2, 2, 1]), torch.tensor([1, 0, 0, 1, 2])
    for inputs in (None, (x, y, w, src, dst)):
        flat = inline_products(trace_network(network), inputs=inputs)
        torch.testing.assert_close(flat(x, y, w, src, dst), network(x, y, w, src, dst), rtol=1e-12, atol=1e-12)
        assert "square.weight" in flat.state_dict()


def test_one_row_of_an_example_is_not_taken_for_all() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = tpgen.ElementwiseTensorProduct("2x1o", "2x1o", strategy="einsum")

        def forward(self, x, y):
            return self.product(x, y)

    network = Network()
    flat = inline_products(trace_network(network), inputs=(torch.randn(4, 6), torch.randn(1, 6)))
    x, y = torch.randn(9, 6), torch.randn(1, 6)
    torch.testing.assert_close(flat(x, y), network(x, y))


def test_the_classifier_of_the_demo_as_one_graph() -> None:
    network = Tetris(tpgen.FullyConnectedTensorProduct, layers=1, mul=2, lmax=1).double()
    points = shapes(torch.Generator().manual_seed(0)).double()
    flat = inline_products(trace_network(network, functions=[find_neighbours]), strategy="grouped", inputs=[points])
    assert flat.gain.products == 4
    turned = shapes(torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close(flat(turned), network(turned), rtol=1e-12, atol=1e-12)


def test_unread_nodes_of_the_network_stay() -> None:
    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.square = tpgen.TensorSquare("1o", strategy="einsum")

        def forward(self, x):
            out = self.square(x)
            out.retain_grad()  # nothing reads its result
            return out

    flat = inline_products(trace_network(Watching()))
    assert "retain_grad" in {node.target for node in flat.graph.nodes}
