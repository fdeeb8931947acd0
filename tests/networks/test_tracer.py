"""Traced networks: which nodes there are and where they come from; flat networks compute the same, with less."""

import copy

import pytest
import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet
from torch import nn

import tpgen
from tpgen.compiler.backends import script
from tpgen.demo.tetris import Tetris, neighbours, shapes
from tpgen.errors import TraceError
from tpgen.networks.cse import cse
from tpgen.networks.inline import inline_products
from tpgen.networks.tracer import is_leaf, opening, trace_network
from tpgen.planner.presets import channelwise


class Layers(nn.Module):
    """Channelwise products that read the same spherical harmonics."""

    def __init__(self, strategy: str = "einsum", count: int = 3) -> None:
        super().__init__()
        irreps = o3.Irreps("4x0e+4x1o")
        plan = channelwise(irreps, "0e+1o", "0e+1o+1e")
        self.products, self.mixes = nn.ModuleList(), nn.ModuleList()
        for _ in range(count):
            product = tpgen.TensorProduct.from_plan(plan, strategy=strategy)
            self.products.append(product)
            self.mixes.append(o3.Linear(product.irreps_out, irreps))
        self.radial = FullyConnectedNet([3, 8, plan.weight_numel], torch.nn.functional.silu)
        self.act = nn.ReLU()

    def forward(self, x, edge, lengths):
        y = o3.spherical_harmonics(o3.Irreps("0e+1o"), edge, normalize=True)
        w = self.radial(lengths)
        for product, mix in zip(self.products, self.mixes, strict=True):
            x = mix(product(x, y, w)) + x.new_ones(len(x), 1)
        return self.act(x)


def layer_inputs(rows: int = 7, dtype: torch.dtype = torch.float64) -> tuple:
    return torch.randn(rows, 16, dtype=dtype), torch.randn(rows, 3, dtype=dtype), torch.randn(rows, 3, dtype=dtype)


def by_path(graph: torch.fx.Graph) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        found.setdefault(node.meta["module_path"], []).append(node.op)
    return found


# --- the tracer -----------------------------------------------------------------------------------------------------


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
    traced = trace_network(network, functions=[neighbours])
    points = shapes(torch.Generator().manual_seed(0))
    torch.testing.assert_close(traced(points), network(points))
    assert neighbours in {node.target for node in traced.graph.nodes}

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


# --- flat networks --------------------------------------------------------------------------------------------------


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
    flat = inline_products(trace_network(network, functions=[neighbours]), strategy="grouped", inputs=[points])
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


# --- sharing --------------------------------------------------------------------------------------------------------


def shared(forward) -> int:
    module = torch.fx.symbolic_trace(forward)
    return cse(module.graph, module)


def test_pure_calls_are_shared_and_others_are_not() -> None:
    assert shared(lambda x: (x * 2) + (x * 2)) == 1
    assert shared(lambda x: x.sin() + torch.sin(x)) == 0  # a method and a function
    assert shared(lambda x: (x * 2) + (x * 2.0)) == 0  # not the same dtype in the end
    assert shared(lambda x: torch.rand_like(x) + torch.rand_like(x)) == 0
    assert shared(lambda x: torch.nn.functional.dropout(x) + torch.nn.functional.dropout(x)) == 0


def doubled(x):
    """A function of the user that writes into its operand."""
    x.mul_(2)


class Foreign(nn.Module):
    """A leaf of the user that does."""

    def forward(self, x):
        x.mul_(2)
        return x


class Around(nn.Module):
    """The same product before and after the user's code."""

    def __init__(self, by_module: bool) -> None:
        super().__init__()
        self.square = tpgen.TensorSquare("2x1o", strategy="einsum")
        self.foreign = Foreign() if by_module else None

    def forward(self, x):
        before = x * 2
        if self.foreign is None:
            doubled(x)
        else:
            self.foreign(x)
        return self.square(before) - self.square(x * 2)


@pytest.mark.parametrize("by_module", [False, True])
def test_code_of_the_user_may_write(by_module: bool) -> None:
    network = Around(by_module)
    traced = trace_network(
        network, functions=[doubled], leaf=lambda module, path: isinstance(module, Foreign) or is_leaf(module, path)
    )
    x = torch.randn(4, 6)
    wanted = network(x.clone())
    assert wanted.abs().max() > 0
    for given in (None, [x.clone()]):
        flat = inline_products(traced, inputs=given)
        torch.testing.assert_close(flat(x.clone()), wanted)


def test_nothing_is_shared_across_a_node_that_writes() -> None:
    def twice(x):
        before = x * 2
        x.add_(1)
        return before + x * 2

    assert shared(twice) == 0

    def written(x):
        a, b = x * 2, x * 2
        a.add_(1)
        return a + b

    assert shared(written) == 0


# --- errors ---------------------------------------------------------------------------------------------------------


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
    scripted = script(nn.Linear(2, 2))
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
