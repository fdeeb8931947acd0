"""Three forms of a network are timed side by side; no test says how long they may take."""

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import tpgen
from tpgen.cli.app import main
from tpgen.errors import TpgenError
from tpgen.inspection.costs.flat_times import FlatTimes, Row, time_flat
from tpgen.networks.inline import Gain, inline_products
from tpgen.networks.tracer import trace_network


class Twice(nn.Module):
    """Two products of the same operands."""

    def __init__(self) -> None:
        super().__init__()
        self.first = tpgen.FullyConnectedTensorProduct("2x1o", "0e+1o", "2x1o", strategy="einsum")
        self.second = tpgen.FullyConnectedTensorProduct("2x1o", "0e+1o", "1x0e", strategy="einsum")

    def forward(self, x, y):
        return self.first(x, y).sum(1) + self.second(x, y).sum(1)


def inputs() -> list[torch.Tensor]:
    return [torch.randn(5, 6), torch.randn(5, 4)]


def network_and_inputs() -> tuple[nn.Module, list[torch.Tensor]]:
    return Twice(), inputs()


def test_each_form_has_a_time_for_each_task() -> None:
    found = time_flat(Twice(), inputs(), rounds=2)
    assert [row.contender for row in found.rows] == ["network", "inlined", "flat"]
    assert all(row.forward > 0 and row.step > 0 for row in found.rows)
    assert found.ratio("forward", "flat") == 1.0
    assert found.ratio("step") == found.rows[0].step / found.rows[2].step
    assert found.gain.nodes < found.gain.nodes_before
    assert str(found).splitlines()[1].split() == [
        *("backend", "eager", "forward", "flat", "is", "forward+backward", "flat", "is")
    ]


def test_the_output_says_whether_the_flat_network_is_faster() -> None:
    rows = Row("network", 3.0, 3.0), Row("flat", 2.0, 6.0)
    times = FlatTimes("eager", "einsum", 1, Gain(1, 1, 1, 1, 1), rows)
    assert times.verdict.splitlines() == [
        "forward: a flat graph is faster than the network as it is (1.50×)",
        "forward+backward: a flat graph is not faster than the network as it is (0.50×)",
    ]
    assert str(times).endswith(times.verdict)


def test_times_that_lie_apart_decide_nothing() -> None:
    rows = Row("network", 3.0, 3.0, spread=0.5), Row("flat", 2.0, 6.0)
    said = FlatTimes("eager", "einsum", 1, Gain(1, 1, 1, 1, 1), rows).verdict
    assert said == "times of the same call lie 50 % apart, so they decide nothing: measure again"


def test_inlined_without_sharing_is_as_it_was_put_together() -> None:
    given = inputs()
    network = Twice()
    inlined = inline_products(trace_network(network), inputs=given, shared=False)
    flat = inline_products(trace_network(network), inputs=given)
    assert len(inlined.graph.nodes) > len(flat.graph.nodes)
    assert torch.allclose(inlined(*given), flat(*given), atol=1e-5)


def test_what_cannot_be_compared() -> None:
    with pytest.raises(TpgenError, match="must be positive, got 0"):
        time_flat(Twice(), inputs(), rounds=0)
    random = nn.Sequential(tpgen.TensorSquare("2x1o", strategy="einsum"), nn.Dropout())
    with pytest.raises(TpgenError, match=r"is there a random function in it \(dropout\)"):
        time_flat(random, [torch.randn(50, 6)], rounds=1)


def test_the_command() -> None:
    result = CliRunner().invoke(main, ["flat", f"{__name__}:network_and_inputs", "--rounds", "1"])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("2 products inlined; ")
    result = CliRunner().invoke(main, ["flat", "nothing"])
    assert result.exit_code == 2
    assert "unknown network 'nothing'; known networks: tetris" in result.output


class Chosen(nn.Module):
    """A choice of rows by value, a batch norm, and a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.square = tpgen.TensorSquare("2x1o", strategy="einsum")
        self.norm = nn.BatchNorm1d(6)
        self.layer = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x):
        return self.square(chosen(self.layer(self.norm(x)))).sum(1)


def chosen(x):
    return x[x[:, 0] > -100.0] if bool(x.isfinite().all()) else x


def chosen_and_functions() -> tuple[nn.Module, list[torch.Tensor], list]:
    return Chosen(), [torch.randn(5, 6)], [chosen]


def test_frozen_parameters_functions_and_buffers() -> None:
    network, given, functions = chosen_and_functions()
    found = time_flat(network, given, functions=functions, rounds=1)
    assert all(row.step > 0 for row in found.rows)
    assert int(network.norm.num_batches_tracked) == 0
    result = CliRunner().invoke(main, ["flat", f"{__name__}:chosen_and_functions", "--rounds", "1"])
    assert result.exit_code == 0, result.output


def wrong() -> tuple[nn.Module, int]:
    return Twice(), 3


def test_what_a_function_must_return() -> None:
    result = CliRunner().invoke(main, ["flat", f"{__name__}:wrong"])
    assert result.exit_code == 2
    assert "must return the network and a list of its arguments, as in `return network, [x, y]`; got " in result.output
    assert "got Twice, int" in result.output
