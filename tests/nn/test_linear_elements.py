"""Linear layers whose weights and biases are those of each row's element."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from e3nn.util.jit import script
from torch import Tensor

from tests.machine import needs_compiler
from tpgen import Linear, explain, verify
from tpgen.base.errors import EmitError, InputError, PlanError
from tpgen.emitter.strategies import STRATEGIES
from tpgen.planner.linear import make_linear_plan
from tpgen.tools.inspection.stages.calls import resolve_request
from tpgen.tools.inspection.stages.dump import draw_example_arguments, dump_stage
from tpgen.tools.inspection.stages.request import Request

ENDS = "8x0e+4x1o", "6x1o+5x0e+3x2e"
ELEMENTS, ROWS = 3, 9
INDEX = torch.tensor([0, 2, 2, 1, 0, 1, 2, 2, 0])
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"biases": True},
    "channels": {"biases": True, "f_in": 2, "f_out": 3},
    "ir_mul": {"layout": "ir_mul"},
    "max_bytes": {"max_bytes": 4000},
    "aot_eager": {"backend": "aot_eager", "biases": True},
}
pytestmark = needs_compiler


def layer_of(**options: Any) -> Linear:
    layer = Linear(*ENDS, num_elements=ELEMENTS, **options)
    torch.nn.init.normal_(layer.bias) if layer.bias.numel() else None
    return layer


def features(layer: Linear, *batch: int) -> Tensor:
    channels = (layer.plan.f_in,) if layer.plan.f_in else ()
    return torch.randn(*batch, *channels, layer.irreps_in.dim, requires_grad=True)


def by_rows(layer: Linear, x: Tensor, index: Tensor) -> Tensor:
    """The layer with weights for each row, taken by the index."""
    rows = Linear.from_plan(layer.plan.remade(shared_weights=False), layout=layer.layout, strategy="einsum")
    return rows(x, layer.weight[index], layer.bias[index] if layer.bias_numel else None)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_row_has_the_weights_of_its_element(strategy: str, options: str) -> None:
    layer = layer_of(strategy=strategy, **OPTIONS[options])
    x = features(layer, ROWS)
    parameters = [x, layer.weight, *([layer.bias] if layer.bias_numel else [])]
    found, wanted = layer(x, index=INDEX), by_rows(layer, x, INDEX)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    gradients = [torch.autograd.grad(y.square().sum(), parameters, create_graph=True) for y in (found, wanted)]
    seconds = [torch.autograd.grad(g[0].square().sum(), parameters[:2]) for g in gradients]
    for mine, theirs in zip((*gradients[0], *seconds[0]), (*gradients[1], *seconds[1]), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("strategy", ["grouped", "kernel"])
@pytest.mark.parametrize("options", ["plain", "channels"])
def test_an_index_has_the_batch_of_the_features_or_is_one_hot(strategy: str, options: str) -> None:
    layer = layer_of(strategy=strategy, **OPTIONS[options])
    x = features(layer, ROWS)
    wanted = layer(x, index=INDEX)
    torch.testing.assert_close(layer(x, index=torch.eye(ELEMENTS)[INDEX]), wanted)
    torch.testing.assert_close(layer(x.unflatten(0, (3, 3)), index=INDEX.view(3, 3)).flatten(0, 1), wanted)
    torch.testing.assert_close(layer(x[0], index=INDEX[0]), wanted[0])
    assert layer(x[:0], index=INDEX[:0]).shape == (0, *wanted.shape[1:])
    torch.testing.assert_close(script(layer)(x, index=INDEX), wanted)
    torch.testing.assert_close(pickle.loads(pickle.dumps(layer))(x, index=INDEX), wanted)


def test_weights_of_a_call() -> None:
    layer = Linear.from_plan(make_linear_plan(*ENDS, biases=True, shared_weights="element"))
    assert not layer.internal_weights
    x, w, b = features(layer, ROWS), torch.randn(4, layer.weight_numel), torch.randn(4, layer.bias_numel)
    each = Linear(*ENDS, biases=True, shared_weights=False)
    torch.testing.assert_close(layer(x, w, b, index=INDEX + 1), each(x, w[INDEX + 1], b[INDEX + 1]))


@pytest.mark.parametrize("strategy", ["grouped", "kernel"])
def test_layers_without_weights(strategy: str) -> None:
    layer, index = Linear("2x0e", "3x1o", num_elements=2, strategy=strategy), torch.tensor([0, 1, 1, 0])
    for run in (layer, script(layer)):
        assert not run(torch.randn(4, 2), index=index).any()
        assert not run(torch.randn(4, 2), torch.zeros(2, 0), index=index).any()
    for wrong in (index + 1, index - 1):
        with pytest.raises(InputError, match="index: elements run from 0 to 1"):
            layer(torch.randn(4, 2), index=wrong)


@pytest.mark.parametrize("strategy", ["grouped", "kernel"])
def test_layers_of_biases_alone(strategy: str) -> None:
    plan = make_linear_plan("2x1o", "3x0e", biases=True, shared_weights="element")
    bias, index = torch.randn(4, 3), torch.tensor([0, 3, 1])
    given = Linear.from_plan(plan, strategy=strategy)
    torch.testing.assert_close(given(torch.randn(3, 6), None, bias, index=index), bias[index])
    with pytest.raises(InputError, match="index: elements run from 0 to 3, got -1 to 2"):
        given(torch.randn(3, 6), None, bias, index=index - 1)


@pytest.mark.parametrize("strategy", ["grouped", "kernel"])
def test_gradients_of_single_rows(strategy: str) -> None:
    """By `vmap` over calls of one row each, as for gradients of samples."""
    layer = layer_of(strategy=strategy, biases=True)
    x, parameters = features(layer, ROWS).detach(), {n: p.detach() for n, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, index: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,), {"index": index}).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, INDEX)
    for n, (row, index) in enumerate(zip(x, INDEX, strict=True)):
        for name, gradient in torch.func.grad(loss)(parameters, row, index).items():
            torch.testing.assert_close(found[name][n], gradient)


@pytest.mark.parametrize("strategy", ["grouped", "kernel"])
def test_scripted_layers_take_what_eager_ones_do(strategy: str) -> None:
    layer = layer_of(strategy=strategy, **OPTIONS["channels"])
    scripted, x = script(layer), features(layer, ROWS)
    torch.testing.assert_close(scripted(x[0], index=INDEX[0]), layer(x[0], index=INDEX[0]))
    for index in (INDEX.int(), INDEX[:1], torch.eye(ELEMENTS, dtype=torch.int64)[INDEX], None):
        with pytest.raises(torch.jit.Error, match="index: "):
            scripted(x, index=index)
    with pytest.raises(torch.jit.Error, match="index: this layer has no elements"):
        script(Linear(*ENDS))(torch.zeros(2, 20), index=INDEX[:2])


def test_a_usual_call_goes_by_the_shortest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_of(strategy="kernel")
    x = features(layer, ROWS)
    wanted = layer(x, index=INDEX)  # builds the kernel
    monkeypatch.setattr(type(layer), "_check_and_convert_operands", None)
    torch.testing.assert_close(layer(x, index=INDEX), wanted)


@pytest.mark.slow
def test_graphs_of_torch_hold_it() -> None:
    layer = layer_of(biases=True)
    x = features(layer, ROWS).detach()
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x, index=INDEX), layer(x, index=INDEX))
    exported = torch.export.export(layer, (x,), {"index": INDEX}).module()
    torch.testing.assert_close(exported(x, index=INDEX), layer(x, index=INDEX))


def test_every_law_holds() -> None:
    report = verify(layer_of(biases=True))
    assert report.passed, report
    assert {finding.law for finding in report.findings} >= {"definition", "permutation", "second order"}


def test_costs_count_the_sets_of_weights() -> None:
    few, many = (Linear(*ENDS, num_elements=n, biases=True) for n in (1, 11))
    both = [explain(layer, rows=100) for layer in (few, many)]
    numbers = few.weight_numel + few.bias_numel
    assert both[1].bytes - both[0].bytes == 10 * 4 * numbers
    assert many.memory(100).given - few.memory(100).given == 10 * 4 * numbers
    assert explain(many, rows=10, measure=True).forward_seconds > 0


def test_stages_say_how_weights_are_found() -> None:
    layer = layer_of()
    assert "w at element" in dump_stage(layer.plan, "form", "grad_x1")
    assert "rows of w are found by element" in dump_stage(layer.plan, "sweep")
    assert "tpgen.form" in dump_stage(layer.plan, "code", strategy="kernel")
    request = resolve_request(layer)
    program = request.module(request.emit_program())
    x, w, element = draw_example_arguments(request, request.emit_program().arguments)
    assert w.shape == (ELEMENTS, layer.weight_numel)
    torch.testing.assert_close(program(x, w, element), by_rows_of(layer, x, w, element))
    with pytest.raises(EmitError, match="elements: no index chooses weights of this plan"):
        dump_stage(make_linear_plan(*ENDS), "form", elements=2)
    assert isinstance(request, Request)


def by_rows_of(layer: Linear, x: Tensor, w: Tensor, index: Tensor) -> Tensor:
    return Linear.from_plan(layer.plan.remade(shared_weights=False), strategy="einsum")(x, w[index])


@pytest.mark.parametrize("strategy", ["grouped", "kernel"])
@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, "index: weights of 3 elements need the element of every row"),
        ({"index": INDEX[1:]}, "index: must have a row for each of the 9 rows of features, got 8"),
        ({"index": INDEX + 1}, "index: elements run from 0 to 2, got 1 to 3"),
        ({"index": INDEX.int()}, r"index: must be one-hot \(rows, 3\), or int64 \(rows,\)"),
        ({"index": 0}, "index: must be a tensor, got int"),
        ({"index": torch.ones(9, 3)}, "index: every row must have a single one and zeros"),
        (
            {"index": INDEX, "weight": torch.zeros(2, 64)},
            r"weight: each element has its own, so for 3 elements the shape must be \(3, 64\), got \(2, 64\)",
        ),
    ],
)
def test_bad_input(strategy: str, keywords: dict[str, Any], message: str) -> None:
    layer = layer_of(strategy=strategy)
    with pytest.raises(InputError, match=message):
        layer(features(layer, ROWS), **keywords)


def test_bad_construction() -> None:
    with pytest.raises(PlanError, match="num_elements must be 1 or more"):
        Linear(*ENDS, num_elements=0)
    by_element = make_linear_plan(*ENDS, shared_weights="element")
    for plan, keywords in ((by_element, {"internal_weights": True}), (make_linear_plan(*ENDS), {"num_elements": 2})):
        with pytest.raises(PlanError, match="num_elements: give it for a plan with weights of elements"):
            Linear.from_plan(plan, **keywords)
    for keywords in ({"num_elements": 2, "shared_weights": False}, {"shared_weights": "element"}):
        with pytest.raises(PlanError, match="leave shared_weights out"):
            Linear(*ENDS, **keywords)
    with pytest.raises(InputError, match="index: this layer has no elements"):
        Linear(*ENDS)(torch.zeros(2, 20), index=INDEX[:2])
    assert "64 weights, 3 elements" in str(layer_of())
