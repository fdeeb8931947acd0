"""Steps of `make gpu` that ask other libraries, networks and tools, with stand-ins for all of them."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import gpu_convolutions, gpu_networks, gpu_report, gpu_steps, gpu_tools
from benchmarks.gpu_clock import Clock, copy_bandwidth
from benchmarks.gpu_convolutions import Graph, convolution_rows, convolution_table
from benchmarks.gpu_networks import network_rows, network_table
from benchmarks.networks import Case
from tests.machine import needs_compiler
from tpgen.form.form import Layout
from tpgen.form.reference import reference_product
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise
from tpgen.tools.bench import contenders
from tpgen.tools.verification.subject import change_layout

PLAN = channelwise("4x0e+4x1o", "0e+1o", "0e+1o", shared_weights=False)


def definition(x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor, nodes: int) -> Tensor:
    rows = reference_product(PLAN, x[src], y, w)
    return rows.new_zeros(nodes, rows.shape[1]).index_add(0, dst, rows)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_convolutions.PROBLEMS, "small", SimpleNamespace(plan=PLAN, suite="channelwise"))


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenEquivariance, which takes receivers first, and cuEquivariance, which takes tensors and indices by number."""
    oeq, cue, cuet = (ModuleType(name) for name in ("openequivariance", "cuequivariance", "cuequivariance_torch"))

    class Fused(nn.Module):
        def forward(self, x: Tensor, y: Tensor, w: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
            return definition(x, y, w, cols, rows, len(x))

    class Described:
        def __init__(self, *_: object) -> None:
            self.polynomial = None

        def flatten_coefficient_modes(self) -> Described:
            return self

        squeeze_modes = flatten_coefficient_modes

    class Polynomial(nn.Module):
        def forward(self, given: list[Tensor], src: Any, like: Any, dst: Any) -> list[Tensor]:
            w, x, y = given
            irreps = PLAN.irreps_in1, PLAN.irreps_in2
            x, y = (change_layout(t, i, "ir_mul", "mul_ir") for t, i in zip((x, y), irreps, strict=True))
            out = definition(x, y, w, src[1], dst[0], len(like[0]))
            return [change_layout(out, PLAN.irreps_out, "mul_ir", "ir_mul")]

    cue.Irreps, cue.descriptors = Described, SimpleNamespace(channelwise_tensor_product=Described)  # type: ignore[attr-defined]
    cuet.SegmentedPolynomial = lambda polynomial, math_dtype, method: Polynomial()  # type: ignore[attr-defined]
    oeq.TPProblem, oeq.Irreps = (lambda *_, **__: None), str  # type: ignore[attr-defined]
    oeq.TensorProductConv = lambda problem, torch_op, deterministic: Fused()  # type: ignore[attr-defined]
    for module in (oeq, cue, cuet):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(contenders, "find_spec", lambda name: name)


@needs_compiler
@pytest.mark.parametrize("wrong", [False, True])
def test_a_library_is_timed_where_it_is_right(
    wrong: bool, named: None, libraries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends of the edges in the library's order: taken the wrong way round they are found out."""
    if wrong:

        def turned(plan: Plan, layout: Layout, device: str) -> Any:
            conv = gpu_convolutions.openequivariance(plan, layout, device)
            return lambda x, y, w, src, dst, nodes: conv(x, y, w, dst, src, nodes)

        monkeypatch.setitem(gpu_convolutions.CONVOLUTIONS, "openequivariance", ("mul_ir", turned))
    rows = {row["library"]: row for row in convolution_rows("small", 40, "cpu", 1e-3)}
    right = {library for library, row in rows.items() if "reason" not in row}
    assert right == {*gpu_convolutions.CONVOLUTIONS} - ({"openequivariance"} if wrong else set())
    assert ("off by" in rows["openequivariance"].get("reason", "")) == wrong
    assert "step, fresh edges" in convolution_table([*rows.values()]).splitlines()[0]


def test_fresh_edges_are_new_tensors() -> None:
    graph, seen = Graph(PLAN, 40, "mul_ir", "cpu"), list[int]()

    def conv(x: Tensor, y: Tensor, w: Tensor, src: Tensor, dst: Tensor, nodes: int) -> Tensor:
        seen.append(dst.data_ptr())
        return definition(x, y, w, src, dst, nodes)

    for fresh in (False, False, True):
        graph.forces(conv, fresh)
    assert seen[0] == seen[1] != seen[2]


def test_steps_of_networks_are_compared_with_stock(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    batch, edges = {"x": torch.ones(4, 3), "edge_index": torch.zeros(2, 120)}, set()

    def run(model: Any, training: bool) -> dict[str, Tensor]:
        edges.add(batch["edge_index"].shape[1])
        return {"forces": batch["x"] * model.weight}

    case = Case(Model(), run, batch, 120)

    def broken(project: str, model: nn.Module) -> nn.Module:
        with torch.no_grad():
            model.weight.mul_(2)  # type: ignore[operator]
        return model

    monkeypatch.setattr(gpu_networks, "find_spec", lambda name: None if name == "cuequivariance_torch" else name)
    monkeypatch.setitem(gpu_networks.SIZES, "mace", {"small": lambda atoms, dtype: case})
    monkeypatch.setattr(
        gpu_networks,
        "WAYS",
        gpu_networks.WAYS | dict.fromkeys(("converted", "program"), gpu_networks.stock) | {"broken": broken},
    )
    rows = list(network_rows("mace", 4, "cpu", 1e-3))
    said = [None, "not installed: cuequivariance_torch", None, None, None, "is wrong"]
    assert [row.get("reason") for row in rows] == said
    assert rows[4]["way"] == "program, edges change"
    assert edges == {118, 119, 120}
    assert batch["edge_index"].shape == (2, 120)
    assert all(row["seconds"] > 0 for row in rows if "reason" not in row)
    assert "not installed" in network_table(rows)


@pytest.mark.parametrize(
    ("code", "passed"), [(0, True), (gpu_tools._FOUND, False), (1, None), (subprocess.TimeoutExpired("x", 1), None)]
)
def test_tools_watch_small_problems(code: Any, passed: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = list[list[str]]()

    def run(command: list[str], **_: Any) -> Any:
        commands.append(command)
        if isinstance(code, Exception):
            raise code
        return SimpleNamespace(returncode=code, stdout="a race\n", stderr="")

    monkeypatch.setattr(gpu_tools.shutil, "which", lambda name: None if name == "ncu" else f"/bin/{name}")
    monkeypatch.setattr(gpu_tools.subprocess, "run", run)
    report = gpu_report.Report("cpu")
    gpu_steps.tools(report, None, Clock(60))  # type: ignore[arg-type]
    assert [check["passed"] for check in report.checks] == ([] if passed is None else [passed] * 2)
    assert len(report.left_out) == (3 if passed is None else 1)
    assert [command[0] for command in commands] == ["/bin/compute-sanitizer"] * 2
    assert all(command[-2:] == ["benchmarks.gpu_tools", "cpu"] for command in commands)
    assert report.tools["ncu"] == "ncu is not on PATH"


@needs_compiler
def test_the_small_problems_run(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = {"mace-contraction": gpu_tools.POLYNOMIALS["harmonics"]}
    monkeypatch.setattr(gpu_tools, "POLYNOMIALS", problems)
    monkeypatch.setattr(gpu_tools, "fully_connected", lambda *_, **__: PLAN)
    gpu_tools.main(["cpu"])


def test_a_copy_is_of_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "zeros", None)
    assert copy_bandwidth("cpu") > 0
