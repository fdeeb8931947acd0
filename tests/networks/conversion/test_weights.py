"""Weights that wait for a sum by node: each way to write the sum, and whatever else is done with weights and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from e3nn import o3
from e3nn.nn import FullyConnectedNet
from torch import Tensor, nn

from tests.machine import needs_compiler
from tpgen.networks.conversion import late_weights
from tpgen.networks.conversion import weights as module
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.late_weights import LateWeights
from tpgen.networks.conversion.weight_nets import SequentialForWeights
from tpgen.networks.step import compile_step

pytestmark = needs_compiler
NODES, EDGES = 12, 90
Sum = Callable[[Tensor, Tensor, Any], Tensor]


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Edges of each sum before a last layer; whatever their number, it is worth it."""
    seen, summed = [], LateWeights.summed
    monkeypatch.setattr(LateWeights, "summed", lambda self, x, *rest: seen.append(x.shape[0]) or summed(self, x, *rest))
    for where in (late_weights, module):
        monkeypatch.setattr(where, "WORTH_LATE", 0)
    monkeypatch.setattr(late_weights, "_FEWER", 0.0)
    return seen


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def scatter(rows: Tensor, at: Tensor, nodes: Any) -> Tensor:
    return rows.new_zeros(nodes, rows.shape[1]).scatter_add_(0, at.view(-1, 1).expand_as(rows), rows)


def by_index(rows: Tensor, at: Tensor, nodes: Any) -> Tensor:
    return torch.zeros(nodes, rows.shape[1], dtype=rows.dtype).index_add(0, at, rows)


def mean(rows: Tensor, at: Tensor, nodes: Any) -> Tensor:
    total = torch.ones(nodes, rows.size(1)).index_add_(0, at, rows)
    return total / torch.bincount(at, minlength=nodes).clamp(min=1)[:, None]


def by_matrix(rows: Tensor, at: Tensor, nodes: Any) -> Tensor:
    return nn.functional.one_hot(at, NODES).to(rows.dtype).T @ rows


class Convolution(nn.Module):
    """One layer as DiffDock and tutorials of e3nn write it."""

    def __init__(self, add: Sum = scatter, own: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct("4x0e+2x1o", "0e+1o", "4x0e+2x1o", shared_weights=False)
        width = self.product.weight_numel
        layers = nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.1), nn.Linear(5, width, bias=bias)
        self.net = FullyConnectedNet([6, 5, width], torch.tanh) if own else nn.Sequential(*layers)
        self.add = add

    def forward(self, x: Tensor, senders: Tensor, receivers: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
        return self.add(self.product(x[senders], y, self.weights(lengths)), receivers, x.shape[0])

    def weights(self, lengths: Tensor) -> Tensor:
        return self.net(lengths)


class Scaled(Convolution):
    def weights(self, lengths: Tensor) -> Tensor:
        w = self.net(lengths)
        w.mul_(lengths[:, :1].detach().cos())
        return w


class Read(Convolution):
    def weights(self, lengths: Tensor) -> Tensor:
        w = self.net(lengths)
        return w + w.mean()


class ScaledByTracked(Convolution):
    def weights(self, lengths: Tensor) -> Tensor:
        return self.net(lengths).mul_(lengths[:, :1])


CASES = {
    "scatter_add_": (Convolution, True),
    "index_add": (lambda: Convolution(by_index), True),
    "mean": (lambda: Convolution(mean), True),
    "without a bias": (lambda: Convolution(bias=False), True),
    "FullyConnectedNet": (lambda: Convolution(own=True), True),
    "scaled in place": (Scaled, True),
    "by a matrix": (lambda: Convolution(by_matrix), False),
    "weights that are read": (Read, False),
    "scaled by what needs a gradient": (ScaledByTracked, False),
}


def arguments(tracked: bool = True) -> list[Tensor]:
    senders, receivers = torch.randint(0, NODES, (2, EDGES))
    floats = torch.randn(NODES, 10), torch.randn(EDGES, 4), torch.randn(EDGES, 6)
    x, y, lengths = (t.requires_grad_(tracked) for t in floats)
    return [x, senders, receivers, y, lengths]


def derivatives(network: nn.Module, given: list[Tensor]) -> list[Tensor]:
    wanted = [*(x for x in given if x.requires_grad), *network.parameters()]
    torch.manual_seed(0)
    out = network(*given)
    first = torch.autograd.grad(out.cos().sum(), wanted, create_graph=True)
    scalar = torch.stack([g.sin().sum() for g in first]).sum()
    second = torch.autograd.grad(scalar, wanted, allow_unused=True, materialize_grads=True)
    return [out, *first, *second]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_network_is_stock(case: str, training: bool, late: list[int]) -> None:
    make, waits = CASES[case]
    stock = make().train(training)
    made, given = convert(deepcopy(stock), program=False), arguments()
    for a, b in zip(derivatives(made, given), derivatives(stock, given), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert late == waits * [EDGES]


@pytest.mark.parametrize("case", CASES)
def test_a_program_is_stock(case: str, late: list[int]) -> None:
    make, waits = CASES[case]
    stock, given = make().eval(), arguments(tracked=False)
    step = compile_step(convert(deepcopy(stock), program=False), *given)
    assert bool(late) == (waits or make is ScaledByTracked), "no input needs a gradient here"
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(step(*given), stock(*given), rtol=1e-10, atol=1e-10)
            given = [x[:70] if len(x) == EDGES else x for x in given]  # other sizes


def test_what_is_not_worth_it_is_computed_by_row(late: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    stock, given = Convolution().eval(), arguments()
    made = convert(deepcopy(stock), program=False)
    for where, name, value in ((module, "WORTH_LATE", 10**9), (late_weights, "_FEWER", 1e9)):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            torch.testing.assert_close(made(*given), stock(*given))
    assert not late


def test_the_report_says_so_and_restore_takes_it_back() -> None:
    network = convert(Convolution())
    (row,) = conversion_report(network).replaced
    assert row.paths == ("product",)
    assert row.now.endswith("summed by node before the last layer of its net, where that is less")
    assert type(network.net) is SequentialForWeights
    assert type(restore(network).net) is nn.Sequential
    (alone,) = conversion_report(
        convert(o3.FullyConnectedTensorProduct("4x0e", "0e", "4x0e", shared_weights=False))
    ).replaced
    assert "last layer" not in alone.now


def test_hooks_and_other_layers_see_weights(late: list[int]) -> None:
    network, given, seen = convert(Convolution().eval(), program=False), arguments(), []
    wanted = network(*given)
    hook = network.net[-1].register_forward_hook(lambda _m, _g, w: seen.append(type(w)))
    torch.testing.assert_close(network(*given), wanted)
    hook.remove()
    assert (seen, late) == ([Tensor], [EDGES])
    network.net[3] = nn.Sequential(network.net[3])
    torch.testing.assert_close(network(*given), wanted)
    assert late == [EDGES]


def test_scripts_and_graphs(late: list[int]) -> None:
    network, x = convert(Convolution(), program=False).eval(), torch.randn(EDGES, 6)
    assert torch.equal(torch.jit.script(network.net)(x), restore(deepcopy(network)).net(x))
    graph = torch.fx.symbolic_trace(network.net)
    assert torch.equal(graph(x), network.net(x) + 0)
