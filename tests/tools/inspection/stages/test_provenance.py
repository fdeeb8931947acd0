"""Provenance: complete on every named problem, and right: what an instruction wrote goes with the instruction."""

import json
import re
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch

from tests.cases import CASES, Case
from tests.machine import needs_compiler
from tpgen.base.errors import EmitError, TpgenError
from tpgen.kernels.build.compiler import find_compiler
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected
from tpgen.planner.problems import PROBLEMS
from tpgen.planner.product import make_plan
from tpgen.tools.inspection.stages import dump, request
from tpgen.tools.inspection.stages.calls import resolve_request
from tpgen.tools.inspection.stages.dump import dump_stage
from tpgen.tools.inspection.stages.origins import Origin, TracedStage
from tpgen.tools.inspection.stages.provenance import TRACED_STAGES, Provenance, provenance

TEXTS = ("plan", "form", "graph", "code")
KERNELS = ("cpp", "cpp_backward")
CUDA = ("cuda", "cuda_backward")
CUDA_PARTS = {
    *("placement", "prelude", "tables", "a step", "function group", "function gather", "which warp does what"),
    *("rows fetched", "rows delivered", "the kernel"),
}
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


@pytest.mark.parametrize("problem", PROBLEMS)
def test_nodes_of_a_problem_serve_instructions(problem: str) -> None:
    """What serves none has a name: the signature, and zeros where no path writes."""
    for strategy in STRATEGIES:
        stage = provenance(PROBLEMS[problem].plan, strategy=strategy, stages=["graph"]).stage("graph")
        named = [o for o in stage.origins if o.shared in ("title", "signature", "output: zeros where no path writes")]
        assert stage.traced >= 0.99 * (len(stage.lines) - len(named)), strategy
        assert stage.traced >= 0.8 * len(stage.lines) or strategy == "kernel"


@needs_compiler
@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_line_of_a_kernel_is_explained(problem: str) -> None:
    found = provenance(PROBLEMS[problem].plan, strategy="kernel", stages=(*TEXTS, "sweep", *KERNELS))
    for stage in found.stages.values():
        assert not stage.missing
        assert stage.explained >= 0.99, stage.name
    for name in KERNELS:
        assert set(found.stage(name).shared) <= {
            *("schedule", "prelude", "driver"),
            *(f"function {part}" for part in ("tabulate", "row", "tile", "finish")),
        }


@pytest.mark.parametrize("problem", ["mace-medium", "mixed-mul", "nequip-lips", "article"])
def test_every_line_of_a_cuda_kernel_is_explained(problem: str) -> None:
    """And what a path's line reads are segments of that path."""
    plan = PROBLEMS[problem].plan
    segments = {p.index: {("x1", p.in1.index), ("out", p.out.index)} for p in plan.paths}
    found = provenance(plan, strategy="kernel", stages=CUDA)
    for stage in found.stages.values():
        assert stage.explained == 1.0
        assert stage.traced > len(stage.lines) / 3
        assert set(stage.shared) <= CUDA_PARTS
        for text, origin in zip(stage.lines, stage.origins, strict=True):
            read = {(o, int(n)) for o, n in re.findall(r"\b(?:d_)?(x1|out)_(\d+)_\d+\b", text)}
            assert all(read <= segments[i] for i in origin.instructions), text
            assert not read or origin.instructions, text


def test_what_has_no_cuda_kernel_says_why() -> None:
    half = provenance(small(), strategy="kernel", stages=CUDA, dtype=torch.float16)
    assert all("kernels compute in float32" in stage.missing for stage in half.stages.values())
    large = fully_connected("64x0e", "16x0e", "64x0e", shared_weights=False)
    found = provenance(large, strategy="kernel", stages=CUDA)
    assert all("bytes of shared memory" in stage.missing for stage in found.stages.values())
    graph = provenance(small(), strategy="einsum", stages=CUDA)
    assert all("runs as a graph" in stage.missing for stage in graph.stages.values())


@pytest.mark.parametrize("problem", ["mace-medium"])
def test_script_and_joint_graph_are_explained(problem: str) -> None:
    found = provenance(PROBLEMS[problem].plan, strategy="einsum", stages=["script", "joint"])
    for stage in found.stages.values():
        assert stage.explained >= 0.99, stage.name
        assert stage.traced > len(stage.lines) / 2, stage.name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_instruction_is_found_in_every_stage(strategy: str) -> None:
    found = provenance(small(), strategy=strategy, stages=[name for name in TRACED_STAGES if name not in ("inductor",)])
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


def test_statements_of_a_sweep_serve_the_paths_that_they_are_for() -> None:
    found = provenance(PROBLEMS["mace-medium"].plan, strategy="kernel", stages=["sweep"])
    stage = found.stage("sweep")
    assert stage.shared == ("title",)
    for path in PROBLEMS["mace-medium"].plan.paths:
        lines = [stage.lines[n - 1] for n in found.trace_forward(path.index)["sweep"]]
        assert any(line.startswith(f"  path {path.index}: ") for line in lines)
        assert any("out[" in line and "+=" in line for line in lines)


@pytest.mark.parametrize("problem", ["mace-medium", "article"])
def test_each_path_has_a_place(problem: str) -> None:
    plan = PROBLEMS[problem].plan
    found = provenance(plan, strategy="kernel", stages=["placement"])
    stage = found.stage("placement")
    assert "\n".join(stage.lines) == dump_stage(plan, "placement", strategy="kernel")
    assert stage.shared == ("vectors, blocks, scratch",)
    assert stage.explained == 1.0
    for path in plan.paths:
        lines = [stage.lines[n - 1] for n in found.trace_forward(path.index)["placement"]]
        assert sum(line.startswith(f"  path {path.index}: ") for line in lines) == 1
        assert all(line.startswith((f"  path {path.index}: ", "  T")) for line in lines)


def test_rows_that_an_index_selects_are_explained() -> None:
    for strategy in ("einsum", "grouped", "unrolled"):
        found = provenance(small(), strategy=strategy, direction="conv", stages=["graph", "code", "joint"])
        for stage in found.stages.values():
            assert stage.explained == 1.0, str(found)
            assert "operands: rows that an index selects" in stage.shared


def test_lines_of_an_unknown_kind_are_unexplained(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scripted:
        code = "def forward(self,\n    x1: Tensor) -> Tensor:\n  print(x1)\n  return x1"

    monkeypatch.setattr(request, "script_module", lambda module: Scripted)
    stage = provenance(small(), ["script"], strategy="einsum").stage("script")
    assert [bool(origin) for origin in stage.origins] == [True, True, False, True]
    assert stage.explained == 0.75

    text = "import torch\nstrange(1)\ncpp_fused_0 = async_compile.cpp_pybinding([], '''\n  import\n''')\nx = 1"
    written = replace(dump.STAGES["inductor"], write=lambda request: text)
    monkeypatch.setitem(dump.STAGES, "inductor", written)
    stage = provenance(small(), ["inductor"], strategy="einsum").stage("inductor")
    assert [bool(origin) for origin in stage.origins] == [True, False, False, False, False, True]


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


@dataclass(frozen=True)
class Numbered:
    """Texts of a plan's stages, with the numbers that paths had before one was deleted."""

    plan: Plan
    deleted: int | None = None

    def before(self, index: int) -> int:
        return index + (self.deleted is not None and index >= self.deleted)

    def lines(self, stage: TracedStage) -> Counter:
        """Every line that serves instructions, with these."""
        found: Counter = Counter()
        for text, origin in zip(stage.lines, stage.origins, strict=True):
            if origin.instructions:
                shown = self.cpp(text, origin) if stage.language == "cpp" else self.python(text, stage.name)
                found[tuple(map(self.before, origin.instructions)), re.sub(r"\s+", " ", shown).strip()] += 1
        return found

    def python(self, text: str, stage: str) -> str:
        """Without releases (``x = None``), origins in the graph, and what depends on the number of segments."""
        if stage == "form":
            return re.sub(r"path (\d+)", lambda m: f"path {self.before(int(m[1]))}", text)
        text = re.sub(r";.*= None|\s[a-z]+\s+(all|[\d,]+)$", "", text)
        if re.search(r"\b(split_with_sizes|cat)\b|^\s*_\d+ = \[", text):
            text = re.sub(r"\[.*?\]", "", text)
        if re.match(r"\s*w_\d+\b", text):  # which piece of the weights it is, its name says
            text = re.sub(r"(split_with_sizes\w*(?:, |\[))\d+", r"\1", text)
        if stage == "joint":  # a sum with one summand less is that summand: its readers read another name
            text = re.sub(
                rf"\b{self.plan.weight_numel}\b", "all weights", re.sub(r"(?<=[( ])[a-z]\w*(?=[,)])", "", text)
            )
        return re.sub(r"\b[A-Za-z_]\w*", self.name, text)

    def name(self, word: re.Match) -> str:
        """Segments and couplings as they are, weights by their path; other names without path and counter."""
        if re.fullmatch(r"_w3j_\d_\d_\d|x[12]_\d+", word[0]):
            return word[0]
        if weight := re.fullmatch(r"w_(\d+)", word[0]):
            weighted = [path.index for path in self.plan.paths if path.weight]
            return f"w of path {self.before(weighted[int(weight[1])])}"
        return re.sub(r"^path\d+_|_\d+$", "", word[0])

    def cpp(self, text: str, origin: Origin) -> str:
        """Weights count from their path's first, scratch from the first on the line; who begins a sum is no matter."""
        text = re.sub(r"store\(a_", "add(a_", re.sub(r"T\[i, k\] of path \d+", "T", text))
        text = re.sub(r"path([ _])(\d+)", lambda m: f"path{m[1]}{self.before(int(m[2]))}", text)
        starts = [path.weight.start for path in self.plan.paths if path.index in origin.instructions and path.weight]
        text = relative(
            text,
            r"\b(?:(?:w|d_w) \+ \(?|weights(?:\[| \+ )|[pq]_w, R, n, )(\d+)",
            starts[0] if len(starts) == 1 else None,
        )
        for scratch in ("T", "s_w", "a_w", "s_x1", "s_x2", "s_out", "a_x1", "a_x2", "a_out", "t_x1", "t_x2"):
            text = relative(text, rf"\b{scratch} \+ \(?(\d+)")
        return text


def relative(text: str, pattern: str, first: int | None = None) -> str:
    """The numbers that a pattern finds, less the first of them."""
    found = [int(m[1]) for m in re.finditer(pattern, text)]
    start = first if first is not None else min(found, default=0)
    return re.sub(pattern, lambda m: m[0].removesuffix(m[1]) + str(int(m[1]) - start), text)


@pytest.mark.parametrize(
    "stage", [*TEXTS[1:], "script", *(pytest.param(name, marks=needs_compiler) for name in KERNELS)]
)
@pytest.mark.parametrize("problem", ["article", "mace-medium", "diffdock-l1"])
def test_deleting_an_instruction_takes_its_lines_and_no_others(problem: str, stage: str) -> None:
    check_deletions(unnormalised(PROBLEMS[problem].plan), stage, "kernel" if stage in KERNELS else "einsum")


@pytest.mark.parametrize("strategy", STRATEGIES[:3])
def test_so_it_is_in_the_joint_graph(strategy: str) -> None:
    # no width is another's: what changes with the number of weights is known by it
    check_deletions(unnormalised(channelwise("3x0e+5x1o", "0e+1o", "0e+1o")), "joint", strategy)


def check_deletions(plan: Plan, stage: str, strategy: str) -> None:
    """What did not serve the deleted instruction is there still; all else that is there served it and others before."""
    before = Numbered(plan).lines(provenance(plan, strategy=strategy, stages=[stage], rows=7).stage(stage))
    for deleted in range(len(plan.instructions)):
        kept = Counter({line: count for line, count in before.items() if deleted not in line[0]})
        shared = Counter()
        for (served, text), count in before.items():
            if deleted in served:
                shared[tuple(i for i in served if i != deleted), text] += count
        left = without(plan, deleted)
        after = Numbered(left, deleted).lines(provenance(left, strategy=strategy, stages=[stage], rows=7).stage(stage))
        assert not kept - after, f"lost with instruction {deleted}"
        assert not after - kept - shared, f"gained without instruction {deleted}"


@pytest.mark.parametrize("problem", PROBLEMS)
def test_lines_read_what_their_paths_couple(problem: str) -> None:
    """Couplings and segments are named in the code; the plan says whose they are."""
    plan = PROBLEMS[problem].plan
    stage = provenance(plan, strategy="einsum", stages=["code"]).stage("code")
    paths = {path.index: path for path in plan.paths}
    read = 0
    for text, origin in zip(stage.lines, stage.origins, strict=True):
        for path in (paths[i] for i in origin.instructions):
            couplings = [tuple(map(int, found)) for found in re.findall(r"\b_w3j_(\d)_(\d)_(\d)\b", text)]
            segments = {*re.findall(r"\b(x1|x2)_(\d+)\b", text)}
            assert all(ls == path.ls for ls in couplings), (path.index, text)
            assert segments <= {("x1", str(path.in1.index)), ("x2", str(path.in2.index))}, (path.index, text)
            read += len(couplings) + len(segments)
    assert read


# --- stages, errors, values -------------------------------------------------------------------------------------------


def test_a_stage_that_a_strategy_does_not_have_says_so() -> None:
    found = provenance(small(), strategy="einsum", stages=["graph", "cpp"])
    with pytest.raises(EmitError, match=r"'cpp'.*'einsum'.*graph.*strategy='kernel'"):
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
    ],
)
def test_errors_say_what_there_is(call: object, message: str) -> None:
    with pytest.raises(TpgenError, match=message):
        call(small())  # type: ignore[operator]


def test_a_module_brings_its_options() -> None:
    product = TensorProduct.from_plan(small(), strategy="grouped", layout="ir_mul").double()
    request = resolve_request(product)
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
