"""Products of a network, explained as the network calls them."""

import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from e3nn import o3
from torch import nn

import tpgen
from tests.machine import needs_compiler
from tests.networks.conversion.test_weights import Messages, arguments
from tpgen.base.errors import TpgenError
from tpgen.networks.conversion import weights
from tpgen.networks.conversion.convert import convert
from tpgen.nn.conv import TensorProductConv
from tpgen.planner.presets import channelwise
from tpgen.tools.cli.app import main
from tpgen.tools.inspection.costs.explain_network import explain_network
from tpgen.tools.inspection.costs.roofline import Ceilings
from tpgen.tools.inspection.explorer.page import write_network_explorer

GIVEN = Ceilings(bandwidth=1e10, flops=1e11)
CONV = channelwise("4x0e", "0e+1o", "0e+1o")


class Edges(nn.Module):
    """A convolution that gathers five edges from three nodes, a product that is called twice, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = TensorProductConv.from_plan(CONV, strategy="einsum")
        self.square = tpgen.TensorSquare("2x1o", strategy="einsum")
        self.spare = tpgen.TensorSquare("1o", strategy="einsum")

    def forward(self, x, y, w, edge_src, edge_dst):
        out = self.conv(x, y, w, edge_src, edge_dst)
        return out.sum(1) + self.square(x.repeat(1, 2)[:, :6]).sum(1) + self.square(x[:1].repeat(1, 2)[:, :6]).sum()


def inputs() -> list[torch.Tensor]:
    edges = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([1, 2, 0, 2, 0])
    return [torch.randn(3, 4), torch.randn(5, 4), torch.randn(5, CONV.weight_numel), *edges]


def test_calls_and_rows_are_those_of_one_call() -> None:
    network = Edges()
    for measure in (False, True):
        found = explain_network(network, inputs(), measure=measure, ceilings=GIVEN)
        seen = {p.module: (p.calls, p.explanation.rows) for p in found.products}
        assert seen == {"conv": (1, 5), "square": (2, 3)}
        assert found.not_called == ("spare",)
        assert "not called: spare" in str(found)
    assert network.training
    assert not network.conv._forward_hooks


def test_times_are_there_when_measured() -> None:
    found = explain_network(Edges(), inputs(), ceilings=GIVEN)
    assert found.seconds is found.share is None
    assert "measured" not in str(found)
    found = explain_network(Edges(), inputs(), measure=True, ceilings=GIVEN)
    assert found.share
    assert all(p.seconds for p in found.products)
    assert str(found).splitlines()[1].endswith("predicted  forward  backward  of call")
    assert "% of it in products" in str(found)
    assert "lie 155 % apart: the machine is busy" in str(replace(found, spread=1.55))
    assert "busy" not in str(replace(found, spread=0.1))


def test_it_is_a_value_and_json() -> None:
    found = explain_network(Edges(), inputs(), ceilings=GIVEN)
    with pytest.raises(TpgenError, match=r"'sqare':.*'square'"):
        _ = found["sqare"]
    assert found["square"] == tpgen.explain(Edges().square, rows=3, ceilings=GIVEN)
    assert found.largest.flops == max(p.flops for p in found.products)
    assert json.loads(found.to_json())["products"][0]["module"] == "conv"


def test_a_product_is_a_network_of_one() -> None:
    found = explain_network(tpgen.TensorSquare("1o", strategy="einsum"), [torch.randn(2, 3)], ceilings=GIVEN)
    assert "(itself)" in str(found)


def test_errors() -> None:
    with pytest.raises(TpgenError, match=r"Linear holds no tensor product, .* nothing to convert"):
        explain_network(nn.Linear(1, 1), [torch.ones(1)])
    with pytest.raises(TpgenError, match=r"the network fails on the inputs given \(.*\); give inputs it takes"):
        explain_network(Edges(), [torch.ones(1)])
    with pytest.raises(TpgenError, match=r"explain_network takes an nn\.Module, got int"):
        explain_network(3, [])  # type: ignore[arg-type]
    with pytest.raises(TpgenError, match=r"in a list or tuple, got Tensor: write explain_network\(network, \[x, y\]\)"):
        explain_network(Edges(), torch.ones(1))  # type: ignore[arg-type]
    idle = nn.ModuleDict({"spare": tpgen.TensorSquare("1o"), "used": nn.ReLU()})
    idle.forward = lambda x: idle["used"](x)  # type: ignore[method-assign]
    with pytest.raises(TpgenError, match=r"write_network_explorer takes an nn\.Module, got int"):
        write_network_explorer(3, [], "page.html")  # type: ignore[arg-type]
    with pytest.raises(TpgenError, match=r"ModuleDict calls no product in one call; it holds spare"):
        _ = explain_network(idle, [torch.ones(1)], ceilings=GIVEN).largest


def network_and_inputs() -> tuple[nn.Module, list[torch.Tensor]]:
    return Edges(), inputs()


def test_the_commands(tmp_path: Path) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, [*arguments, "--network", f"{__name__}:network_and_inputs"])
        assert result.exit_code == code, result.output
        return result.output

    assert run("explain").startswith("Edges: 2 products called in one call")
    assert json.loads(run("explain", "--json"))["network"] == "Edges"
    assert "leave out --strategy and --rows" in run("explain", "--rows", "3", "--strategy", "einsum", code=2)
    page = tmp_path / "page.html"
    assert run("explore", "--product", "square", "--out", str(page)) == f"{page}\n"
    assert "for 3 rows" in page.read_text(encoding="utf-8")
    assert "unknown product 'mine'; known products: conv, square" in run("explore", "--product", "mine", code=2)
    assert "leave out --layout" in run("explore", "--layout", "ir_mul", code=2)
    assert "leave out --rows" in run("report", "--rows", "3", code=2)


def test_a_product_of_no_network_is_refused() -> None:
    result = CliRunner().invoke(main, ["explore", "article", "--product", "square"])
    assert result.exit_code == 2
    assert "--product is for a product of a network (--network): leave out --product" in result.output


class Keywords(nn.Module):
    """A product called by keywords, on operands that broadcast, and again on fewer rows."""

    def __init__(self) -> None:
        super().__init__()
        self.product = tpgen.FullyConnectedTensorProduct("2x1o", "1o", "2x0e", strategy="einsum")

    def forward(self, x, y):
        return self.product(y=y, x=x).sum() + self.product(x[:1, 0], y=y[0]).sum()


def test_keyword_calls_have_the_rows_that_operands_broadcast_to_and_costs_add_up() -> None:
    found = explain_network(Keywords(), [torch.randn(5, 1, 6), torch.randn(1, 7, 3)], ceilings=GIVEN)
    (product,) = found.products
    assert (product.calls, product.explanation.rows) == (2, 35)
    whole = [tpgen.explain(Keywords().product, rows=rows, ceilings=GIVEN) for rows in (35, 7)]
    assert product.flops == sum(one.flops for one in whole)
    assert product.bytes == sum(one.bytes for one in whole)
    assert product.predicted_seconds == pytest.approx(sum(one.predicted_seconds or 0 for one in whole))


def test_a_convolution_counts_its_nodes_once_and_is_timed_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = explain_network(Edges(), inputs(), ceilings=GIVEN)["conv"]
    assert (conv.rows, conv.nodes) == (5, 3)
    edge = 4 * (CONV.irreps_in2.dim + CONV.weight_numel) + 2 * 8
    assert conv.bytes == 5 * edge + 3 * 4 * (CONV.irreps_in1.dim + CONV.irreps_out.dim)
    assert "for 5 edges of 3 nodes" in str(conv)
    called = []
    forward = TensorProductConv.forward
    monkeypatch.setattr(TensorProductConv, "forward", lambda *a, **k: called.append(a[1].shape) or forward(*a, **k))
    found = tpgen.explain(Edges().conv, rows=50, nodes=4, measure=True, ceilings=GIVEN)
    assert found.forward_seconds
    assert found.backward_seconds
    assert set(called) == {(4, CONV.irreps_in1.dim)}
    with pytest.raises(TpgenError, match="nodes=3 is for a TensorProductConv, whose rows are edges; leave it out"):
        tpgen.explain(CONV, nodes=3)


def test_linear_layers_stand_beside_products() -> None:
    network = nn.Sequential(
        tpgen.Linear("4x0e+2x1o", "8x0e", strategy="grouped"),
        tpgen.Linear("4x0e", "2x0e", f_in=2, f_out=3, biases=True, strategy="grouped"),
    )
    network[0].register_forward_hook(lambda module, args, out: out.reshape(-1, 2, 4))
    found = explain_network(network, [torch.randn(6, 10)], ceilings=Ceilings(1e10, 1e11))
    flat, channels = (product.explanation for product in found.products)
    assert (flat.rows, channels.rows) == (6, 6)
    assert flat.flops == 6 * 2 * 4 * 8
    assert channels.product == "4x0e -> 2x0e, 2 -> 3 channels"
    assert channels.bytes == 4 * (6 * (2 * 4 + 3 * 2) + 2 * 3 * 8 + 3 * 2)


def test_products_and_layers_of_a_converted_network_are_counted() -> None:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.product = o3.FullyConnectedTensorProduct("2x0e+1o", "0e+1o", "0e+1o")
            self.layer = o3.Linear("0e+1o", "0e")

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.layer(self.product(x, y))

    network = tpgen.convert(Network())
    found = explain_network(network, (torch.randn(4, 5), torch.randn(4, 4)))
    assert [(p.module, p.calls) for p in found.products] == [("product", 1), ("layer", 1)]
    assert [p.backward for p in found.products] == [1, 1]


def test_a_stock_network_is_explained_by_a_converted_copy() -> None:
    network = nn.Sequential(o3.Linear("2x0e", "2x0e"), o3.Linear("2x0e", "0e"))
    found = explain_network(network, (torch.randn(4, 2),), ceilings=GIVEN)
    assert str(found).startswith("Sequential: 2 products called in one call of a converted copy\n")
    assert [type(layer) for layer in network] == [o3.Linear, o3.Linear]
    ours = explain_network(tpgen.convert(network), (torch.randn(4, 2),), ceilings=GIVEN)
    assert [p.flops for p in found.products] == [p.flops for p in ours.products]
    assert "copy" not in str(ours)


def test_the_page_of_a_stock_network_shows_a_converted_copy(tmp_path: Path) -> None:
    network = nn.Sequential(o3.TensorSquare("2x1o", "0e"))
    page = write_network_explorer(network, [torch.ones(2, 6)], tmp_path / "page.html", ceilings=GIVEN)
    assert "2x1o x 2x1o" in page.read_text(encoding="utf-8")
    assert type(network[0]) is o3.TensorSquare


class Bound(nn.Module):
    """A stock network that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.lock = o3.Linear("0e", "0e"), threading.Lock()


def test_a_stock_network_that_cannot_be_copied_is_to_be_converted_first() -> None:
    with pytest.raises(TpgenError, match=r"Bound cannot be copied \(.*lock.*\): convert it first"):
        explain_network(Bound(), [torch.ones(1, 1)])


def spend(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        spend(0.02)
        return gradient


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        spend(0.01)
        return {"found": [Slow.apply(x)]}


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.square = Inner(), tpgen.TensorSquare("2x1o", strategy="einsum")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spend(0.005)
        (found,) = self.inner(x)["found"]
        return self.square(found)


def test_the_rest_of_the_time_is_divided_by_class() -> None:
    found = explain_network(Outer(), [torch.randn(4, 6, requires_grad=True)], measure=True, ceilings=GIVEN)
    seconds = {code.name: code.seconds for code in found.others}
    assert [name.split(".")[-1] for name in seconds] == ["Inner", "Outer", "autograd, between modules"]
    inner, outer, _ = seconds.values()
    assert inner > 0.028
    assert 0.004 < outer < inner / 2
    assert sum(seconds.values()) + found.share * found.seconds == pytest.approx(found.seconds)  # type: ignore[operator]
    assert re.search(r"code outside of products +time +of call\n.*Inner +\d.* ms +\d+ %\n", str(found))
    assert json.loads(found.to_json())["others"][0]["name"] == next(iter(seconds))
    assert "Inner" in found._repr_html_()
    assert "outside" not in str(replace(found, others=()))


def test_many_classes_are_few_rows() -> None:
    kinds = [type(f"Kind{n}", (nn.Identity,), {}) for n in range(9)]
    network = nn.Sequential(tpgen.TensorSquare("1o", strategy="einsum"), *(kind() for kind in kinds))
    found = explain_network(network, [torch.randn(2, 3)], measure=True, ceilings=GIVEN)
    assert [code.name for code in found.others][-2:] == ["4 more", "autograd, between modules"]
    assert len(found.others) == 8


class Forces(nn.Module):
    """An energy and its forces, of positions that are detached inside, as many calculators have them."""

    def __init__(self) -> None:
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct("0e+1o", "0e+1o", "4x0e+4x1o")
        self.layer, self.harmonics = o3.Linear("4x0e+4x1o", "0e"), o3.SphericalHarmonics("0e+1o", True)
        self.norm = nn.BatchNorm1d(1)

    def forward(self, graph: dict[str, Any], *, forces: bool = True) -> tuple[torch.Tensor, Any]:
        positions = graph["positions"].detach().requires_grad_()
        graph["y"] = self.harmonics(positions)
        with torch.set_grad_enabled(forces or torch.is_grad_enabled()):
            energy = self.norm(self.layer(self.product(graph["y"], graph["y"]))).sum()
        if not forces:
            return energy, None
        return energy, torch.autograd.grad(energy, positions, create_graph=self.training)[0]


@pytest.mark.parametrize("training", [True, False])
@needs_compiler
def test_a_network_that_takes_its_forces_is_explained_with_their_backward_pass(training: bool) -> None:
    network = tpgen.convert(Forces()).train(training)
    network.layer.weight.grad = kept = torch.ones_like(network.layer.weight)
    graph = {"positions": torch.randn(5, 3)}
    state = {name: x.clone() for name, x in network.state_dict().items()}
    random = torch.get_rng_state()
    found = explain_network(network, [graph], {"forces": True}, measure=True, ceilings=GIVEN)
    calls = {p.module: (p.calls, p.backward, p.explanation.rows) for p in found.products}
    assert calls == {"product": (1, 1, 5), "layer": (1, 1, 5), "harmonics": (1, 1, 5)}
    assert found.inside
    assert all(p.seconds and p.backward_seconds for p in found.products)
    assert found.share
    assert 0 < found.share < 1
    assert re.search(r"call: .* % of it in products", str(found))
    assert [*graph] == ["positions"], "the arguments are as they were"
    assert network.training == training
    assert network.layer.weight.grad is kept
    assert torch.equal(torch.get_rng_state(), random)
    for name, x in network.state_dict().items():
        assert torch.equal(x, state[name]), name


@needs_compiler
def test_a_backward_pass_follows_a_call_without_one() -> None:
    network, graph, without = tpgen.convert(Forces()), {"positions": torch.randn(5, 3)}, {"forces": False}
    found = explain_network(network, [graph], without, measure=True, ceilings=GIVEN)
    assert [(p.module, p.backward) for p in found.products] == [("product", 1), ("layer", 1), ("harmonics", 0)]
    assert not found.inside
    assert "forward and backward: " in str(found)
    frozen = explain_network(network.requires_grad_(False), [graph], without, ceilings=GIVEN)
    assert [p.backward for p in frozen.products] == [0, 0, 0]


def test_backward_passes_of_each_product_are_told_apart() -> None:
    network = nn.Sequential(*(tpgen.TensorSquare("2x0e", "2x0e", strategy="einsum") for _ in range(3)))
    x = torch.randn(4, 2, requires_grad=True)
    found = explain_network(network, [x], measure=True, ceilings=GIVEN)
    assert [p.backward for p in found.products] == [1, 1, 1]
    assert sum(p.both_seconds for p in found.products) < found.seconds  # type: ignore[operator]
    assert x.grad is None


@needs_compiler
def test_a_product_that_waits_for_a_sum_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "WORTH_SUMMING", (0, 0))
    network, given = convert(Messages(), program=False), arguments()
    found = explain_network(network, given, ceilings=Ceilings(1e10, 1e11), measure=True)
    (product,) = found.products
    assert (product.calls, product.backward) == (1, 1)
    assert product.backward_seconds


@pytest.mark.parametrize("keyword", [False, True])
def test_a_converted_square_is_explained(keyword: bool) -> None:
    network, x = nn.Sequential(tpgen.convert(o3.TensorSquare("2x1o", "0e"))), torch.ones(2, 6)
    if keyword:
        network.forward = lambda x: network[0](x=x)  # type: ignore[method-assign]
    (product,) = explain_network(network, [x], ceilings=GIVEN).products
    assert product.explanation.rows == 2
