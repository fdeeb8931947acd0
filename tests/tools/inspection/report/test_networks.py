"""Reports of whole modules: results whose shape depends on values, inputs in dicts, irreps as attributes, training."""

import json

import pytest
import torch
from e3nn import o3
from torch import nn

import tpgen
from tpgen.compiler.probe import capture_graphs
from tpgen.networks.trial import run_forward_and_backward
from tpgen.tools.cli.networks import find_network
from tpgen.tools.inspection.report.compile_report import compile_report


def test_capture_of_a_whole_network() -> None:
    network = nn.Sequential(tpgen.TensorSquare("2x1o", strategy="einsum"), nn.Linear(24, 2))
    rows = torch.randn(3, 6)
    width = network[0](rows).shape[-1]
    network[1] = nn.Linear(width, 2)
    found = capture_graphs(network, [rows])
    assert len(found.graphs) == 1
    assert not found.breaks


class Selecting(nn.Module):
    """Rows that a value decides on: no shape of the result is known before."""

    def forward(self, x):
        kept = x.detach().sum(1).nonzero().squeeze(1)
        return torch.tanh(x[kept])


def test_shapes_that_depend_on_values() -> None:
    report = compile_report(Selecting(), [torch.ones(3, 2)], sections=["joint", "partition"])
    assert not report.missing
    text = report["joint"].text
    assert "none of the module as a whole (DynamicOutputShapeException" in text
    assert "give its result as an input); these are of the graphs that torch.compile captures" in text
    assert "graph 0: nothing in the result depends on a parameter or a floating input" in text
    (graph,) = report["joint"].data["graphs"]
    assert graph["name"] == "graph 1"
    assert "tanh" in graph["code"]
    rows = report["partition"].text.splitlines()
    assert rows[2].split()[:2] == ["graph", "partitioner"]
    assert rows[3].split()[:2] == ["1", "default"]
    assert {p["graph"] for p in report["partition"].data["partitions"]} == {"graph 1"}


def test_frozen_parameters_have_no_gradient_in_captured_graphs_either() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.layer.bias.requires_grad_(False)

        def forward(self, x):
            return self.layer(x[x.detach().sum(1).nonzero().squeeze(1)])

    report = compile_report(Last(), [torch.ones(3, 2)], sections=["joint"])
    (graph,) = report["joint"].data["graphs"]
    returned = graph["code"].splitlines()[-1]
    assert returned.count("None") == 2, returned  # of the indices, and of the bias


def test_what_no_stage_can_take_is_missing() -> None:
    class Counting(nn.Module):
        def forward(self, x):
            return x.detach().nonzero()

    report = compile_report(Counting(), [torch.ones(3, 2)], sections=["joint"])
    assert "take it out of the module, and give its result as an input" in report.missing["joint"]


class HoldsIrreps(nn.Module):
    """Reads irreps in forward, as e3nn-style networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.irreps = o3.Irreps("2x0e+1o")

    def forward(self, x):
        return x * float(self.irreps[1].ir.l) + sum(mul for mul, _ in self.irreps)


def test_irreps_as_attributes_do_not_stop_a_report() -> None:
    report = compile_report(
        HoldsIrreps(), [torch.randn(3, 5)], sections=["backends", "graphs", "partition"], inductor=False, repeats=1
    )
    assert not report.missing
    assert not report["backends"].data["missing"]
    (remark,) = report.remarks
    assert "or compile trace_network(module), whose graph holds irreps as text" in remark
    assert f"remark: {remark}" in str(report)
    assert json.loads(report.to_json())["remarks"] == [remark]
    with pytest.raises(NotImplementedError):
        len(o3.Irrep("1o"))  # e3nn is as it was


def test_a_report_without_irreps_has_no_remark() -> None:
    assert compile_report(nn.ReLU(), [torch.ones(2, 2)], sections=["graphs", "partition"]).remarks == ()


class OfDict(nn.Module):
    """Features in a dict, and a layer of which one parameter is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.layer.bias.requires_grad_(False)

    def forward(self, data):
        return {"out": torch.tanh(self.layer(data["x"])) * data["scale"]}


def test_inputs_in_dicts_are_varied_and_differentiated() -> None:
    given = [{"x": torch.randn(4, 3), "scale": 2.0}]
    report = compile_report(
        OfDict(), given, sections=["backends", "recompilations", "joint"], inductor=False, repeats=1
    )
    assert not report.missing
    assert report.inputs == ("{x: float32[4, 3], scale: float}",)
    calls = report["recompilations"].data["calls"]
    assert [call[0].split(",")[0] for call in calls] == [f"{{x: float32[{rows}" for rows in (4, 5, 9, 1)]
    for row in report["backends"].data["backends"]:
        assert row["gradient_error"] < 1e-5
        assert row["step_seconds"] > 0
    # the result, gradients of weight and x; none of the bias, which is frozen, and of the number
    assert report["joint"].data["code"].splitlines()[-1].count("None") == 2


def test_a_step_has_gradients_of_parameters_and_inputs() -> None:
    module = OfDict()
    results, gradients = run_forward_and_backward(module, [{"x": torch.randn(4, 3), "scale": 2.0}], module.parameters())
    assert [tuple(result.shape) for result in results] == [(4, 2)]
    assert gradients is not None
    assert [tuple(gradient.shape) for gradient in gradients] == [(2, 3), (4, 3)]
    assert run_forward_and_backward(nn.Identity(), [torch.ones(2, dtype=torch.int64)]) == ([], None)


def test_what_has_no_gradients_is_timed_without() -> None:
    given = [torch.arange(6).reshape(3, 2)]
    section = compile_report(nn.Flatten(), given, sections=["backends"], inductor=False, repeats=1)["backends"]
    assert "no gradients: nothing in the result depends on a parameter or a floating input" in section.text
    assert all(row["step_seconds"] is row["gradient_error"] is None for row in section.data["backends"])


def test_a_module_in_training_is_left_as_it_was() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout())
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    given = [torch.randn(4, 3)]
    state = torch.get_rng_state()
    report = compile_report(network, given, sections=["backends"], inductor=False, repeats=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(buffer, before[name]) for name, buffer in network.named_buffers())
    assert network.training
    assert any("draws random numbers at a call (dropout?)" in remark for remark in report.remarks)
    assert not compile_report(network.eval(), given, sections=["partition"]).remarks


def test_the_network_of_the_demo_has_a_partition_of_every_graph() -> None:
    network = find_network("tetris")
    report = compile_report(network.module, network.inputs, sections=["partition"])
    assert not report.missing
    assert report["partition"].text.startswith("there is none of the module as a whole (DynamicOutputShapeException")
