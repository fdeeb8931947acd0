"""Provenance: complete on every named problem, and right: what an instruction wrote goes with the instruction."""

import json
import re
from collections import Counter

import pytest
import torch

from tests.cases import CASES, Case
from tests.machine import needs_compiler
from tpgen.errors import EmitError, TpgenError
from tpgen.inspection.origins import TracedStage
from tpgen.inspection.provenance import STAGES, Provenance, provenance
from tpgen.inspection.subject import request_of
from tpgen.kernels.compiler import find_compiler
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan, make_plan
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import PROBLEMS

TEXTS = ("plan", "form", "graph", "code")
KERNELS = ("cpp", "cpp_backward")
STRATEGIES = ("einsum", "grouped", "unrolled", "kernel")


def small() -> Plan:
    return channelwise("8x0e+8x1o", "0e+1o", "0e+1o")


# --- completeness -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_line_of_a_problem_is_explained(problem: str) -> None:
    for strategy in STRATEGIES[:3]:
        found = provenance(PROBLEMS[problem].plan, strategy=strategy, stages=TEXTS[-2:])
        for stage in found.stages.values():
            assert stage.explained >= 0.99, (strategy, stage.name)


@needs_compiler
@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_line_of_a_kernel_is_explained(problem: str) -> None:
    found = provenance(PROBLEMS[problem].plan, strategy="kernel", stages=(*TEXTS, *KERNELS))
    for stage in found.stages.values():
        assert not stage.missing
        assert stage.explained >= 0.99, stage.name
    for name in KERNELS:
        assert set(found.stage(name).shared) <= {
            *("schedule", "prelude", "driver"),
            *(f"function {part}" for part in ("tabulate", "row", "tile", "finish")),
        }


@pytest.mark.parametrize("problem", ["mace-medium"])
def test_script_and_joint_graph_are_explained(problem: str) -> None:
    found = provenance(PROBLEMS[problem].plan, strategy="einsum", stages=["script", "joint"])
    for stage in found.stages.values():
        assert stage.explained >= 0.99, stage.name
        assert stage.traced > len(stage.lines) / 2, stage.name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_instruction_is_found_in_every_stage(strategy: str) -> None:
    found = provenance(small(), strategy=strategy, stages=[name for name in STAGES if name not in ("inductor",)])
    for path in small().paths:
        for name, lines in found.trace_forward(path.index).items():
            assert lines, (path.index, name)
            assert all(path.index in found.trace_back(name, line) for line in lines)


@pytest.mark.parametrize("direction", ["right", "grad_x1", "grad_x2", "grad_w"])
def test_other_directions_are_explained(direction: str) -> None:
    found = provenance(small(), strategy="grouped", direction=direction, stages=[*TEXTS, "script", "cpp"])
    assert all(stage.explained == 1.0 for stage in found.stages.values())
    assert "runs as a graph" in found.stages["cpp"].missing


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_mode_is_explained(case: Case) -> None:
    for strategy, layout in (("einsum", "mul_ir"), ("unrolled", "ir_mul"), ("kernel", "mul_ir")):
        stages = [*TEXTS, *(KERNELS if strategy == "kernel" and find_compiler() else ())]
        found = provenance(case.plan, strategy=strategy, layout=layout, stages=stages)
        assert all(stage.explained >= 0.99 for stage in found.stages.values()), str(found)


# --- no line is attributed to a wrong path ----------------------------------------------------------------------------


def without(plan: Plan, index: int) -> Plan:
    """The plan without one instruction; ``none`` leaves the coefficients of the others as they are."""
    kept = [i[:6] for n, i in enumerate(plan.instructions) if n != index]
    return make_plan(
        plan.irreps_in1, plan.irreps_in2, plan.irreps_out, kept,
        irrep_normalization=plan.irrep_normalization, path_normalization="none", shared_weights=plan.shared_weights,
    )  # fmt: skip


def unnormalised(plan: Plan) -> Plan:
    return without(plan, -1)


def lines_by_path(stage: TracedStage, deleted: int | None = None) -> dict[int, Counter]:
    """What each instruction alone wrote, offsets and counters left out; numbered as before the deletion."""
    found: dict[int, Counter] = {}
    for text, origin in zip(stage.lines, stage.origins, strict=True):
        if len(origin.instructions) == 1:
            (index,) = origin.instructions
            if deleted is not None and index >= deleted:
                index += 1
            found.setdefault(index, Counter())[plain(text)] += 1
    return found


def plain(text: str) -> str:
    """A line without offsets, counters and releases (``x = None``): these shift where another path is gone."""
    text = re.sub(r"path\d+_", "", re.sub(r"\s+", " ", re.sub(r";.*= None|  // .*", "", text)))
    return re.sub(r"_?\d+", "", text)


@pytest.mark.parametrize(
    "stage", [*TEXTS[1:], "script", *(pytest.param(name, marks=needs_compiler) for name in KERNELS)]
)
@pytest.mark.parametrize("problem", ["article", "mace-medium", "diffdock-l1"])
def test_deleting_an_instruction_takes_its_lines_and_no_others(problem: str, stage: str) -> None:
    check_deletions(unnormalised(PROBLEMS[problem].plan), stage, "kernel" if stage in KERNELS else "einsum")


@pytest.mark.parametrize("strategy", STRATEGIES[:3])
def test_so_it_is_in_the_joint_graph(strategy: str) -> None:
    check_deletions(unnormalised(small()), "joint", strategy)


def check_deletions(plan: Plan, stage: str, strategy: str) -> None:
    before = lines_by_path(provenance(plan, strategy=strategy, stages=[stage]).stage(stage))
    for deleted in range(len(plan.instructions)):
        traced = provenance(without(plan, deleted), strategy=strategy, stages=[stage]).stage(stage)
        after = lines_by_path(traced, deleted)
        assert set(after) == set(before) - {deleted}
        for index, lines in after.items():
            # what two paths shared may now be one's own, and the first to write a sum begins it: a line more, not less
            gone = before[index] - lines
            assert gone.total() <= 0.1 * before[index].total() + 1, (deleted, index, gone)
        shared = Counter(plain(t) for t, o in zip(traced.lines, traced.origins, strict=True) if not o.instructions)
        everything = sum(after.values(), shared)
        own = Counter(t for t in before[deleted] if f"path_{deleted}(" in t or f"path {deleted}:" in t)
        assert not own & everything


# --- stages, errors, values -------------------------------------------------------------------------------------------


def test_a_stage_that_a_strategy_does_not_have_says_so() -> None:
    found = provenance(small(), strategy="einsum", stages=["graph", "cpp"])
    with pytest.raises(EmitError, match=r"no stage 'cpp' here: strategy 'einsum' runs as a graph.*strategy='kernel'"):
        found.trace_back("cpp", 1)
    assert "cpp" not in found.trace_forward(0)
    assert "cpp          none: strategy 'einsum'" in str(found)


def test_a_kernel_that_cannot_be_is_a_missing_stage() -> None:
    found = provenance(small(), strategy="kernel", dtype=torch.float16, stages=["cpp", "plan"])
    assert "not in float16" in found.stages["cpp"].missing
    assert found.stage("plan").lines


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda p: provenance(p, stages=["assembly"]), "unknown stage 'assembly'; known stages: plan, form"),
        (lambda p: provenance(p, direction="up"), "unknown direction 'up'"),
        (lambda p: provenance(p, stages=["plan"]).trace_back("form", 1), "unknown stage 'form'; known stages: plan"),
        (lambda p: provenance(p, stages=["form"]).trace_back("form", 99), "has lines 1 to 5, not 99"),
        (lambda p: provenance(p, stages=["form"]).trace_forward(9), "instructions 0 to 3, not 9"),
        (lambda p: provenance("8x0e"), "give a tpgen TensorProduct or a Plan, not str"),
    ],
)
def test_errors_say_what_there_is(call: object, message: str) -> None:
    with pytest.raises(TpgenError, match=message):
        call(small())  # type: ignore[operator]


def test_a_module_brings_its_options() -> None:
    product = TensorProduct.from_plan(small(), strategy="grouped", layout="ir_mul").double()
    request = request_of(product)
    assert (request.strategy, request.layout[0], request.dtype) == ("grouped", "ir_mul", torch.float64)
    assert provenance(product, stages=["graph"]).strategy == "grouped"


def test_json_holds_every_line() -> None:
    found = provenance(small(), strategy="einsum", stages=["form", "cpp"])
    read = json.loads(found.to_json())
    assert [line["instructions"] for line in read["stages"]["form"]["lines"]] == [[], [0], [1], [2], [3]]
    assert "runs as a graph" in read["stages"]["cpp"]["missing"]
    assert isinstance(found, Provenance)


@needs_compiler
def test_the_kernels_of_inductor_have_instructions() -> None:
    plan = channelwise("4x0e+4x1o", "0e", "0e+1o")
    stage = provenance(plan, strategy="unrolled", stages=["inductor"]).stage("inductor")
    assert stage.explained == 1.0
    calls = [o for text, o in zip(stage.lines, stage.origins, strict=True) if re.match(r"\s+cpp_fused_\w+\(", text)]
    assert calls
    assert all(origin.instructions for origin in calls)
    assert all(stage.lines_of(path.index) for path in plan.paths)
    torch.compiler.reset()
