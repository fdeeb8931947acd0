"""What explain predicts for a GPU that is not there."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from tpgen.cli import main
from tpgen.errors import BackendError
from tpgen.inspection.costs.explain import explain
from tpgen.inspection.costs.explain_network import explain_network
from tpgen.inspection.costs.roofline import Ceilings, OnGpu, plan_on
from tpgen.kernels.cuda.chips import NAMED, chip_named, chip_of
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.problems import POLYNOMIALS, PROBLEMS

GIVEN = Ceilings(1e10, 1e11)
CHANNELWISE = [p.name for p in PROBLEMS.values() if p.suite == "channelwise"]


@pytest.mark.parametrize("gpu", ["A100", "H200"])
@pytest.mark.parametrize("problem", CHANNELWISE)
def test_no_pass_beats_the_roofline(problem: str, gpu: str) -> None:
    found = explain(PROBLEMS[problem].plan, rows=40_000, ceilings=GIVEN, gpu=gpu)
    assert found.on_gpu is not None
    passes = found.on_gpu.passes
    least = found.on_gpu.ceilings.seconds(found.flops, found.bytes)
    assert least * 0.99 <= passes["forward"].seconds <= 2 * least
    assert passes["forward"].seconds < passes["backward"].seconds
    assert all(0 < one.share <= 1 for one in passes.values())


def test_it_is_said_beside_the_machines_own_roofline() -> None:
    found = explain(PROBLEMS["mace-medium"].plan, ceilings=GIVEN, gpu="h200")
    assert "\non H200  " in str(found)
    assert str(found).count("predicted, not measured") == 1
    assert "on H200" not in str(explain(PROBLEMS["mace-medium"].plan, ceilings=GIVEN))
    read = json.loads(found.to_json())["on_gpu"]
    assert (read["gpu"], read["measured"], sorted(read["passes"])) == ("H200", False, ["backward", "forward"])


def test_a_convolution_reads_its_nodes_once() -> None:
    conv = TensorProductConv.from_plan(PROBLEMS["mace-medium"].plan, strategy="grouped")
    rows, edges = (
        explain(subject, rows=40_000, ceilings=GIVEN, gpu="H200", **nodes).on_gpu
        for subject, nodes in ((conv.plan, {}), (conv, {"nodes": 2_000}))
    )
    assert edges.passes["forward"].seconds < rows.passes["forward"].seconds / 2


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(name: str) -> None:
    problem = POLYNOMIALS[name]
    sizes = {"elements": problem.elements, "channels": problem.channels}
    small, large = (plan_on("A100", problem.plan, rows, **sizes) for rows in (1_000, 100_000))
    assert small.passes["forward"].seconds < large.passes["forward"].seconds < large.passes["backward"].seconds
    assert all(0 < one.share <= 1 for one in (*small.passes.values(), *large.passes.values()))
    found = explain(problem.plan, rows=1_000, ceilings=GIVEN, gpu="A100", channels=problem.channels)
    assert isinstance(found.on_gpu, OnGpu)
    assert "\non A100 " in str(found)


def test_what_has_no_kernel_there_says_why() -> None:
    mixing = plan_on("A100", PROBLEMS["self-connection"].plan, 1_000)
    assert "no kernel: matrix products of the library are faster" in str(mixing)
    half = plan_on("A100", PROBLEMS["mace-medium"].plan, 1_000, dtype=torch.float16)
    assert "no kernel: kernels compute in float32, float64 or bfloat16, not in float16" in str(half)


def test_linear_layers() -> None:
    narrow, wide = (
        explain(make_linear_plan(irreps, irreps), ceilings=GIVEN, gpu="H200").on_gpu
        for irreps in ("8x0e+4x1o", "512x0e+512x1o")
    )
    assert sorted(narrow.passes) == ["backward", "forward"]
    assert "no kernel: matrix products of the library are faster" in str(wide)


def test_an_unknown_gpu_is_named() -> None:
    with pytest.raises(BackendError, match="unknown GPU 'H2000': did you mean"):
        explain(PROBLEMS["mace-medium"].plan, ceilings=GIVEN, gpu="H2000")
    assert chip_named("a100").flops("float64") == chip_named("A100").flops("float32") / 2


def test_on_the_command_line() -> None:
    result = CliRunner().invoke(main, ["explain", "small-contraction", "--gpu", "H200"], catch_exceptions=False)
    assert "on H200" in result.stdout
    whole = CliRunner().invoke(main, ["explain", "tetris", "--gpu", "H200"], catch_exceptions=False).stdout
    assert "H200 forward" in whole
    assert "% of it in convolutions.1.self_connection" in whole
    assert "they are 15 launches" in whole  # three products have weights that all rows share: their gradient takes two


class Network(torch.nn.Module):
    """A product that is called twice, and one without a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = TensorProduct.from_plan(PROBLEMS["nequip-aspirin"].plan, strategy="grouped")
        self.large = TensorProduct.from_plan(PROBLEMS["self-connection"].plan, strategy="grouped")

    def forward(self, rows: int) -> None:
        for count in (rows, 2 * rows):
            self._call(self.twice, count)
        self._call(self.large, rows)

    def _call(self, product: TensorProduct, rows: int) -> None:
        plan = product.plan
        given = [torch.zeros(rows, plan.irreps_in1.dim), torch.zeros(rows, plan.irreps_in2.dim)]
        product(*given, *([] if product.internal_weights else [torch.zeros(rows, plan.weight_numel)]))


def test_a_network_is_the_sum_of_its_calls_and_says_what_takes_most() -> None:
    found = explain_network(Network(), [10], ceilings=GIVEN, gpu="a100")
    twice, large = found.products
    calls = [plan_on("A100", PROBLEMS["nequip-aspirin"].plan, rows).passes for rows in (10, 20)]
    wanted = {name: sum(passes[name].seconds for passes in calls) for name in calls[0]}
    assert twice.gpu_seconds == pytest.approx(wanted)
    assert (found.gpu, large.gpu_seconds, large.on_gpu) == ("A100", {}, 0.0)
    lines = str(found).splitlines()
    assert "100 % of it in twice" in lines[-3]
    assert lines[-2].startswith("they are 4 launches")
    assert lines[-1].startswith("large on A100: no kernel: matrix products of the library are faster")
    assert json.loads(found.to_json())["products"][0]["gpu_seconds"] == twice.gpu_seconds
    assert "A100 forward" in found._repr_html_()


def test_without_a_gpu_named_a_network_has_no_such_columns() -> None:
    found = explain_network(Network(), [2], ceilings=GIVEN)
    assert "backward" not in str(found)
    with pytest.raises(BackendError, match="unknown GPU 'H2000'"):
        explain_network(Network(), [2], ceilings=GIVEN, gpu="H2000")


@pytest.mark.parametrize("name", NAMED)
def test_every_named_chip_is_no_better_than_the_best_of_its_capability(name: str) -> None:
    chip, best = chip_named(name.lower()), chip_of(NAMED[name].arch)
    assert chip.name == name
    assert chip.flops("float32") <= 1.1 * best.flops("float32")
    assert (chip.shared, chip.block_shared) == (best.shared, best.block_shared)
