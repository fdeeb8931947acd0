"""Explanations: numbers that multiply to the coefficient, costs that add up, text, JSON and pictures."""

import json
import re
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

import tpgen
from tests.polynomials import mixed, symmetric
from tests.tools.cli.calls import VECTORS, run
from tpgen.base.clock import Timing
from tpgen.base.errors import TpgenError
from tpgen.networks.inline import inline_products
from tpgen.networks.tracer import trace_network
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import PROBLEMS
from tpgen.planner.product import make_plan
from tpgen.tools.inspection.costs.explain import explain
from tpgen.tools.inspection.costs.explanation import Explanation
from tpgen.tools.inspection.costs.pictures import draw_couplings, draw_graph, draw_network
from tpgen.tools.inspection.costs.roofline import Ceilings, measure_machine_ceilings
from tpgen.tools.inspection.stages.request import Request

GIVEN = Ceilings(bandwidth=1e10, flops=1e11)


def explained(problem: str, **options: object) -> Explanation:
    return explain(PROBLEMS[problem].plan, ceilings=GIVEN, **options)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_factors_multiply_to_the_coefficient(problem: str) -> None:
    found = explained(problem, strategy="einsum", rows=2)
    for path in found.paths:
        assert prod(path.factors.values()) == pytest.approx(path.coefficient, rel=1e-12)
    assert found.flops == 2 * sum(path.flops for path in found.paths)


def test_every_number_of_a_path() -> None:
    plan = make_plan("4x1o", "1o", "4x1e", [(0, 0, 0, "uvu", True, 4.0)], out_var=[9.0], shared_weights=False)
    (path,) = explain(plan, strategy="einsum", ceilings=GIVEN).paths
    assert path.factors == pytest.approx({"irrep": 3**0.5, "path": 1.0, "variance": 3.0, "weight": 2.0})
    assert (path.in1, path.in2, path.out, path.mode, path.weight) == ("4x1o", "1x1o", "4x1e", "uvu", (0, 4))
    assert (path.nonzeros, path.dense, path.density) == (6, 27, 6 / 27)
    assert path.bytes == 4 * (12 + 3 + 12 + 4)


def test_prediction_follows_the_ceilings() -> None:
    found = explained("mace-large", rows=100)
    assert found.bound == ("memory" if found.intensity < 10 else "arithmetic")
    assert found.predicted_seconds == pytest.approx(max(found.flops / 1e11, found.bytes / 1e10))
    assert f"the ridge is at {GIVEN.ridge:.1f}" in str(found)


def test_shared_weights_count_once() -> None:
    one, two = explained("article", rows=1), explained("article", rows=2)
    plan = PROBLEMS["article"].plan
    assert two.bytes - one.bytes == plan.row_bytes()
    assert one.bytes - plan.row_bytes() == 4 * plan.weight_numel


def test_peak_memory_is_that_of_intermediates_and_result() -> None:
    plan = channelwise("8x0e", "0e", "0e")
    result = 100 * plan.irreps_out.dim * 4
    for strategy in ("einsum", "grouped", "unrolled"):
        found = explain(plan, strategy=strategy, rows=100, ceilings=GIVEN)
        assert result <= found.peak_bytes <= 8 * result
        assert found.training_bytes > found.peak_bytes
        assert explain(plan, strategy=strategy, rows=200, ceilings=GIVEN).peak_bytes == 2 * found.peak_bytes


def linear(channels: int | None, shared: bool) -> tpgen.Linear:
    options = {"f_in": channels, "f_out": channels, "shared_weights": shared}
    return tpgen.Linear("2x0e+1o", "2x0e+1o", biases=True, strategy="einsum", **options)


MEASURED: dict[str, tuple[Callable[[], Any], dict[str, int]]] = {
    "product": (lambda: channelwise("8x0e", "0e", "0e"), {}),
    "product without paths": (lambda: make_plan("2x0e", "1o", "2x1o", []), {}),  # gradients of zeros are zeros
    **{f"layer, {c}, {s}": (partial(linear, c, s), {}) for c in (None, 2) for s in (True, False)},
    **{f"polynomial, {n}": (partial(symmetric, degree=2), {"channels": 2, "elements": n}) for n in (1, 2)},
}


@pytest.mark.parametrize("name", MEASURED)
def test_measuring_fills_in_times(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpgen.tools.inspection.costs.explain.SECONDS", 0.001)
    made, sizes = MEASURED[name]
    found = explain(made(), rows=4, measure=True, strategy="einsum", ceilings=GIVEN, **sizes)
    assert found.strategy == "einsum"
    assert found.forward_seconds
    assert found.backward_seconds
    assert all(path.seconds for path in found.paths)
    assert re.search(r"measured  .* forward, .*; .* forward\+backward", str(found))
    assert ("alone" in str(found)) == bool(found.paths)


def test_ceilings_are_measured_once() -> None:
    first = measure_machine_ceilings()
    assert measure_machine_ceilings() is first
    assert first.bandwidth > 0
    assert first.ridge > 0
    assert "measured" in str(first)


def test_a_module_explains_itself() -> None:
    product = TensorProduct.from_plan(channelwise("8x0e", "0e", "0e"), strategy="grouped").double()
    found = product.explain(ceilings=GIVEN)
    assert (found.strategy, found.reason, found.dtype) == ("grouped", "asked for", "float64")
    assert found == tpgen.explain(product, ceilings=GIVEN)
    assert tpgen.FullyConnectedTensorProduct("1o", "1o", "0e").explain(ceilings=GIVEN).reason != "asked for"


def test_a_path_alone_computes_what_it_does_in_the_whole() -> None:
    plan = PROBLEMS["article"].plan
    for path in plan.paths:
        alone = plan.maker.plan_of_path(plan, path).paths[0]
        assert (alone.ls, alone.mode, alone.sizes) == (path.ls, path.mode, path.sizes)


def test_json_is_complete() -> None:
    found = explained("article", rows=3)
    read = json.loads(found.to_json())
    assert read["paths"][4]["factors"] == found.paths[4].factors
    assert read["predicted_seconds"] == found.predicted_seconds
    assert read["forward_seconds"] is None


def products(count: int) -> torch.nn.ModuleList:
    return torch.nn.ModuleList([tpgen.FullyConnectedTensorProduct("1o", "1o", "0e") for _ in range(count)])


ARTICLE = PROBLEMS["article"].plan


@pytest.mark.parametrize(
    "subject, options, message",
    [
        (torch.nn.Linear(1, 1), {}, "a Linear, a polynomial, or the plan of one, not Linear"),
        ("article", {}, r"not str; a named product is .*find_problem\('article'\).plan"),
        (products(1), {}, r"holds 1 product \(0\): give one, as in network.get_submodule\('0'\)"),
        (products(5), {}, r"holds 5 products \(0, 1, 2, 3, …\)"),
        (ARTICLE, {"foo": 1}, "unknown option 'foo'; known options: layout, strategy"),
        (ARTICLE, {"device": "nowhere"}, "device 'nowhere' cannot be used here"),
        (ARTICLE, {"dtype": "float32"}, r"torch\.dtype like torch\.float32, got 'float32'"),
        (ARTICLE, {"rows": 0}, "rows: the batch that totals are for must have one or more, got 0"),
        (mixed(), {"rows": 0}, "rows: the batch that totals are for must have one or more, got 0"),
        (mixed(), {"channels": 0}, "channels: the batch that totals are for must have one or more, got 0"),
        (mixed(), {"elements": 0}, "elements: the batch that totals are for must have one or more, got 0"),
    ],
)
def test_what_cannot_be_explained_is_an_error(subject: Any, options: dict, message: str) -> None:
    with pytest.raises(TpgenError, match=message):
        explain(subject, **options)


def test_pictures(tmp_path: Path) -> None:
    found = explained("article", strategy="einsum")
    found.plot(tmp_path / "costs.png")
    draw_couplings(PROBLEMS["article"].plan, tmp_path / "couplings.png")
    draw_graph(Request(PROBLEMS["article"].plan, strategy="einsum"), tmp_path / "graph.png")
    network = torch.nn.Sequential(tpgen.TensorSquare("2x1o", strategy="einsum"), torch.nn.ReLU())
    draw_network(inline_products(trace_network(network)), tmp_path / "network.png")
    nothing = make_plan("2x0e", "1o", "2x1o", [])
    draw_couplings(nothing, tmp_path / "no couplings.png")
    draw_graph(Request(nothing, strategy="einsum"), tmp_path / "no paths.png")
    for file in tmp_path.iterdir():
        assert file.read_bytes().startswith(b"\x89PNG"), file
    assert len(list(tmp_path.iterdir())) == 6


def test_the_command(tmp_path: Path) -> None:
    arguments = ["explain", *VECTORS, "--strategy", "einsum"]
    assert "predicted" in run(*arguments).stdout
    read = json.loads(run(*arguments, "--json", "--plot", str(tmp_path / "costs.png")).stdout)
    assert read["paths"][0]["out"] == "4x1e"
    assert (tmp_path / "costs.png").exists()


def test_what_is_measured_is_measured_with_the_ceilings_of_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def turns(calls: dict[str, Callable[[], object]], *given: object) -> dict[str, Timing]:
        asked.append([call.__name__ for call in calls.values()])
        return dict.fromkeys(calls, Timing((1e-3, 1e-3, 2e-3, 2e-3), 1))

    monkeypatch.setattr("tpgen.tools.inspection.costs.roofline.time_in_turns", turns)
    plan = channelwise("4x0e", "0e", "0e")
    found = explain(plan, rows=4, measure=True, strategy="einsum")
    assert len(asked) == 1
    assert len(asked[0]) == 4, "a copy, matrices, the product and its gradients take turns"
    assert found.ceilings
    assert found.ceilings.scatter > 0.3
    assert "times of the same call lie 67 % apart: the machine is busy" in str(found)
    assert "warning " not in str(explain(plan, rows=4, measure=True, strategy="einsum", ceilings=GIVEN))


def test_auto_says_why() -> None:
    product = TensorProduct.from_plan(channelwise("8x0e", "0e", "0e"), strategy="grouped")
    assert product.explain(ceilings=GIVEN, strategy="auto").reason != "asked for"
    assert product.explain(ceilings=GIVEN, strategy="unrolled").reason == "asked for"
