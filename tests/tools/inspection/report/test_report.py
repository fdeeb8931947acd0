"""Compile reports: what each part says of modules whose compilation is known, and that one broken part is one."""

import json
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import tpgen
from tpgen.kernels.build.compiler import find_compiler
from tpgen.planner.problems import PROBLEMS
from tpgen.tools.inspection.report import sections
from tpgen.tools.inspection.report.compile_report import ReportError, compile_report
from tpgen.tools.inspection.report.sections import SECTIONS, SectionMaker
from tpgen.tools.inspection.report.values import describe_error
from tpgen.tools.inspection.stages.dump import draw_example_arguments
from tpgen.tools.inspection.stages.request import Request

QUICK = ("graphs", "guards", "recompilations", "joint", "partition")


class Breaking(nn.Module):
    """A graph break in the middle."""

    def forward(self, x):
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return y * 3


def product(strategy: str = "grouped") -> tpgen.TensorProduct:
    return tpgen.FullyConnectedTensorProduct("2x0e+1o", "0e+1o", "1o", strategy=strategy)


def inputs(rows: int = 10) -> list[torch.Tensor]:
    return [torch.randn(rows, 5), torch.randn(rows, 4)]


@pytest.fixture(scope="module")
def report():
    torch.manual_seed(0)
    return compile_report(product(), inputs(), sections=QUICK)


def test_a_report_prints_and_is_json(report) -> None:
    assert report.names == QUICK
    assert not report.missing
    text = str(report)
    assert text.startswith("Compile report of FullyConnectedTensorProduct(")
    assert "inputs: float32[10, 5], float32[10, 4]" in text
    assert text.index("Verdict\n-------\ngraphs") < text.index(SECTIONS["graphs"].title)
    assert text == report.full
    assert all(SECTIONS[name].title in text for name in QUICK)
    read = json.loads(report.to_json())
    assert list(read["sections"]) == list(QUICK)
    with pytest.raises(tpgen.TpgenError, match=r"'gards':.*'guards'"):
        _ = report["gards"]
    assert read["sections"]["graphs"]["data"]["breaks"] == []
    assert read["verdict"] == report.verdict


def test_a_report_of_everything_prints_its_verdict_alone(report) -> None:
    text = str(replace(report, shown=()))
    assert len(text.splitlines()) <= 14
    assert report.verdict["graphs"] == "1, no breaks"
    assert report.verdict["compilations"] == "for 4 shapes: 4 static, 3 automatic, 2 dynamic"
    assert report.verdict["to do"].startswith("compile with dynamic=True where shapes vary: 2 compilations, not 3")
    assert str(report["joint"]) not in text


class Gathering(nn.Module):
    def forward(self, edges, x):
        return x[edges[0]] + x[edges[1]]


def test_indices_are_never_resized() -> None:
    edges, x = torch.tensor([[0, 1, 1], [1, 0, 0]]), torch.randn(2, 3)
    found = compile_report(Gathering(), [edges, x], sections=["recompilations"])["recompilations"]
    assert len(found.data["calls"]) == 1
    assert "the inputs hold integers, which may be indices" in found.text
    given = compile_report(Gathering(), [edges, x], sections=["recompilations"], varied=[[edges, torch.randn(5, 3)]])
    assert len(given["recompilations"].data["calls"]) == 2
    assert "the inputs hold integers" not in given["recompilations"].text


def test_a_product_is_one_graph(report) -> None:
    assert report["graphs"].text.startswith("graphs: 1, graph breaks: 0")
    assert report["graphs"].data["graphs"][0]["operations"] > 10


def test_guards_say_what_must_hold(report) -> None:
    assert "L['x']: the dtype" in report["guards"].text
    assert "L['self'].weight_numel == 3" in report["guards"].text
    assert report["guards"].data["counts"]["TENSOR_MATCH"] >= 3


def test_static_shapes_compile_each_time_and_dynamic_ones_once(report) -> None:
    data = report["recompilations"].data
    assert [len(data[name]) for name in ("static", "automatic", "dynamic")] == [4, 3, 2]
    assert data["static"][1]["reason"] == "tensor 'x' size mismatch at index 0. expected 10, actual 11"
    assert data["dynamic"][1]["call"] == 3  # a single row is compiled for itself
    assert not data["static"][0]["reason"]


def test_the_joint_graph_has_shapes_and_is_cut_in_two_ways(report) -> None:
    assert 'f32[10, 5]"' in report["joint"].data["code"]
    default, min_cut = report["partition"].data["partitions"]
    assert (default["partitioner"], min_cut["partitioner"]) == ("default", "min-cut")
    assert not default["recomputed"]
    assert 0 < min_cut["bytes"] <= default["bytes"]
    assert sum(s["bytes"] for s in default["saved"] if not s["is_input"]) == default["bytes"]


def test_a_kernel_saves_its_inputs_alone() -> None:
    if find_compiler() is None:
        pytest.skip("needs a C++ compiler")
    partition = compile_report(product("kernel"), inputs(), sections=["partition"])["partition"]
    assert [p["bytes"] for p in partition.data["partitions"]] == [0, 0]


def test_graph_breaks_have_a_reason_and_a_line() -> None:
    found = compile_report(Breaking(), [torch.ones(3, 2)], sections=["graphs"])["graphs"]
    assert found.text.startswith("graphs: 2, graph breaks: 1")
    assert "if y.sum() > 0:" in found.data["breaks"][0]["where"][-1]
    assert "jump" in found.data["breaks"][0]["reason"]


def test_a_module_without_source() -> None:
    namespace: dict = {"nn": nn}
    lines = ("class Made(nn.Module):", " def forward(self, x):", "  if x.sum() > 0: x = -x", "  return x * 2")
    code = "\n".join(lines)
    exec(compile(code, "made", "exec"), namespace)
    found = compile_report(namespace["Made"](), [torch.ones(3, 2)], sections=["graphs"])["graphs"]
    assert "made:3 in forward: source not available" in found.data["breaks"][0]["where"][-1]


def test_numerics_against_float64() -> None:
    (row, compiled) = compile_report(product(), inputs(), sections=["backends"], inductor=False, repeats=1)[
        "backends"
    ].data["backends"]
    assert (row["backend"], compiled["backend"]) == ("eager", "aot_eager")
    for found in (row, compiled):
        assert found["error"] < 1e-6
        assert found["gradient_error"] < 1e-6
        assert found["forward_seconds"] > 0


@pytest.mark.skipif(find_compiler() is None, reason="Inductor needs a C++ compiler on a CPU")
def test_inductor_kernels_come_with_their_source() -> None:
    section = compile_report(nn.Sigmoid(), [torch.randn(4, 3)], sections=["kernels"])["kernels"]
    assert not section.missing
    assert len(section.data["programs"]) == 2  # forward and backward
    assert all("kernel(" in kernel["source"] for kernel in section.data["kernels"])


def test_a_part_that_fails_is_missing_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(subject):
        warnings.warn("look out", stacklevel=1)
        raise RuntimeError("no such tool\nand more")

    monkeypatch.setitem(sections.SECTIONS, "guards", SectionMaker("Guards", broken))
    report = compile_report(nn.ReLU(), [torch.ones(2, 2)], sections=["guards", "partition", "kernels"], inductor=False)
    assert report.missing == {
        "guards": "RuntimeError: no such tool",
        "kernels": "left out, as inductor=False asks",
    }
    assert report["guards"].warnings == ("look out",)
    assert "not available: RuntimeError: no such tool\ntorch warned: look out" in str(report)
    assert report["partition"].text


def test_what_has_no_backward_says_so() -> None:
    class Integers(nn.Module):
        def forward(self, x):
            return x + 1

    report = compile_report(Integers(), [torch.ones(2, 2, dtype=torch.int64)], sections=["joint", "partition"])
    assert "so there is no backward" in report.missing["joint"]


@pytest.mark.parametrize(
    "module, given, options, message",
    [
        (
            nn.ReLU(),
            [torch.ones(1)],
            {"sections": ["gards"]},
            r"unknown section 'gards': did you mean 'guards'\? Known sections: backends, ",
        ),
        (nn.ReLU(), [torch.ones(1)], {"repeats": 0}, "how often each backend is timed and must be positive, got 0"),
        (torch.relu, [torch.ones(1)], {}, "takes an nn.Module, got builtin.*wrap a function in a module"),
        (nn.ReLU(), torch.ones(1), {}, r"in a list or tuple, got Tensor: write compile_report\(module, \[x, y\]\)"),
        (
            nn.Linear(2, 2),
            [torch.ones(3)],
            {},
            r"Linear fails on these inputs before .*give inputs that it takes: float",
        ),
    ],
)
def test_what_cannot_be_reported(module, given, options: dict, message: str) -> None:
    with pytest.raises(ReportError, match=message):
        compile_report(module, given, **options)


def test_the_public_name_is_imported_when_asked_for() -> None:
    assert tpgen.compile_report is compile_report
    with pytest.raises(AttributeError, match="no attribute 'compile_reports'"):
        _ = tpgen.compile_reports


def test_given_shapes_and_other_arguments() -> None:
    class Scaled(nn.Module):
        def forward(self, x, factor):
            return x * factor

    report = compile_report(
        Scaled(), [torch.ones(3), 2], sections=["recompilations"], varied=[[torch.ones(4), 2], [torch.ones(4), 3]]
    )
    data = report["recompilations"].data
    assert data["calls"] == [("float32[3]", "int"), ("float32[4]", "int"), ("float32[4]", "int")]
    assert "factor" in data["static"][2]["reason"]


def test_a_backend_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class InternalTorchDynamoError(RuntimeError):
        """Named as Dynamo's own."""

    def compiled(module, config):
        if config.backend == "aot_eager":
            raise InternalTorchDynamoError("NotImplementedError")
        return module

    monkeypatch.setattr(sections, "compile_program", compiled)
    report = compile_report(nn.ReLU(), [torch.ones(2, 2)], sections=["backends"], inductor=False, repeats=1)
    section = report["backends"]
    assert [row["backend"] for row in section.data["backends"]] == ["eager"]
    assert "aot_eager fails: InternalTorchDynamoError: NotImplementedError; " in section.text
    assert "report on trace_network(module)" in section.data["missing"]["aot_eager"]


def test_an_error_without_words_says_where() -> None:
    def refused() -> None:
        raise NotImplementedError

    with pytest.raises(NotImplementedError) as caught:
        refused()
    line = caught.traceback[-1].lineno + 1
    assert describe_error(caught.value) == f"NotImplementedError: no reason given at test_report.py:{line} in refused"


@pytest.mark.parametrize("problem", ["mace-large", "tetris-1"])
def test_larger_products_have_a_partition(problem: str) -> None:
    plan = PROBLEMS[problem].plan
    product = tpgen.TensorProduct.from_plan(plan, internal_weights=False, strategy="einsum")
    given = draw_example_arguments(Request(plan, rows=3), ("x1", "x2", "w"))
    report = compile_report(product, given, sections=["partition"])
    assert not report.missing
    default, min_cut = report["partition"].data["partitions"]
    assert 0 < min_cut["bytes"] <= default["bytes"]
