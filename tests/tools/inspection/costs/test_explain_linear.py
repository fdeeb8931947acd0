"""A linear layer, explained: its paths, its totals from the plan, and times where it is measured."""

from __future__ import annotations

from pathlib import Path

import tpgen
from tpgen.planner.linear import make_linear_plan
from tpgen.tools.inspection.costs.roofline import Ceilings
from tpgen.tools.inspection.stages.provenance import TRACED_STAGES, provenance

GIVEN = Ceilings(bandwidth=1e10, flops=1e11)
PLAN = make_linear_plan("8x0e+4x1o+0x2e", "16x0e+4x1o+2x2e", biases=True)


def test_totals_are_those_of_the_plan() -> None:
    found = tpgen.explain(PLAN, rows=10, strategy="einsum", ceilings=GIVEN)
    assert found.flops == 10 * (PLAN.flops + PLAN.bias_numel) == 10 * (2 * 8 * 16 + 3 * 2 * 4 * 4 + 16)
    assert found.bytes == 4 * (10 * (20 + 38) + 8 * 16 + 4 * 4 + 16)
    assert [path.coefficient for path in found.paths] == [path.coefficient for path in PLAN.paths]
    assert [(path.in1, path.out, path.weight) for path in found.paths] == [
        ("8x0e", "16x0e", (0, 128)),
        ("4x1o", "4x1o", (128, 144)),
    ]
    assert found.dropped == 1
    assert found.bound == "memory"


def test_a_layer_explains_itself() -> None:
    layer = tpgen.Linear("8x0e", "4x0e", strategy="einsum")
    assert layer.explain(rows=10, ceilings=GIVEN) == tpgen.explain(layer, rows=10, ceilings=GIVEN)


def test_channels_and_weights_of_each_row_count() -> None:
    channels = make_linear_plan("2x0e", "3x0e", f_in=4, f_out=5)
    found = tpgen.explain(channels, rows=10, ceilings=GIVEN, strategy="einsum")
    assert found.flops == 10 * 2 * 4 * 5 * 2 * 3
    assert found.bytes == 4 * (10 * (4 * 2 + 5 * 3) + 4 * 5 * 6)
    assert "4 -> 5 channels" in str(found)
    rows = tpgen.explain(make_linear_plan("2x0e", "3x0e", shared_weights=False), rows=10, ceilings=GIVEN)
    assert rows.bytes == 4 * 10 * (2 + 3 + 6)
    assert rows.paths[0].bytes == 4 * (2 + 3 + 6)


def test_columns_that_a_linear_layer_lacks_are_left_out(tmp_path: Path) -> None:
    found = tpgen.explain(PLAN, rows=10, ceilings=GIVEN)
    head = str(found).split("\n")[4].split()
    assert head[:4] == ["path", "in1", "out", "weights"]
    assert not {"in2", "mode", "coupling", "="} & set(head)
    found.plot(tmp_path / "linear.png")
    assert (tmp_path / "linear.png").stat().st_size > 1000


def test_every_line_of_a_linear_layer_is_explained() -> None:
    stages = [name for name in TRACED_STAGES if name not in ("inductor", "ptx")]
    graphs = provenance(PLAN, stages[:6], strategy="einsum")
    kernels = provenance(PLAN, stages[6:], strategy="kernel")
    for stage in (*graphs.stages.values(), *kernels.stages.values()):
        assert stage.missing or stage.explained >= 0.99, stage.name
    for path in PLAN.paths:
        assert all(graphs.trace_forward(path.index).values())
        assert kernels.trace_forward(path.index)["sweep"]
