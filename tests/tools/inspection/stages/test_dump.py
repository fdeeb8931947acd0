"""Every stage of every direction has text, and what cannot be dumped says so."""

from collections.abc import Callable

import pytest
import torch

from tests.machine import needs_nvrtc
from tests.polynomials import mixed
from tpgen.base.errors import TpgenError
from tpgen.emitter.emit import DIRECTIONS, emit_plan
from tpgen.nn.linear import Linear
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, elementwise
from tpgen.planner.problems import POLYNOMIALS
from tpgen.planner.product import make_plan
from tpgen.tools.inspection.stages.dump import (
    STAGES,
    choose_default_stage,
    draw_example_arguments,
    dump_files,
    dump_stage,
)
from tpgen.tools.inspection.stages.request import KERNEL, Request, list_product_directions

ON_A_GPU = ("cuda", "ptx", "sass")  # of products that keep channels: test_cuda.py
WITHOUT_COMPILING = [stage for stage in STAGES if stage not in ("inductor", *ON_A_GPU)]


def product_plan() -> Plan:
    return make_plan("4x0e+2x1o", "1o", "2x1o+2x1e", [(0, 0, 0, "uvw", True), (1, 0, 1, "uvu", True)])


def linear_plan() -> Plan:
    return make_linear_plan("4x0e+2x1o", "3x0e+2x1o", biases=True)


VECTORS = channelwise("4x1o", "1o", "0e+1e")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return product_plan()


STAGES_AND_DIRECTIONS = [
    (s, d) for s in WITHOUT_COMPILING for d in DIRECTIONS if d != "right" or STAGES[s].shows != KERNEL
]


@pytest.mark.parametrize("stage, direction", STAGES_AND_DIRECTIONS)
def test_every_stage_of_every_direction_has_text(plan: Plan, stage: str, direction: str) -> None:
    text = dump_stage(plan, stage, direction, strategy="grouped")
    assert text.strip()
    assert text == dump_stage(plan, stage, direction, strategy="grouped"), "a dump is the same every time"


def test_directions_differ_where_a_stage_has_them(plan: Plan) -> None:
    for name in WITHOUT_COMPILING:
        directions = [d for d in DIRECTIONS if d != "right" or STAGES[name].shows != KERNEL]
        texts = {dump_stage(plan, name, direction, strategy="grouped") for direction in directions}
        assert len(texts) == (len(directions) if STAGES[name].by_direction else 1)


def test_layout_and_strategy_reach_the_text(plan: Plan) -> None:
    assert dump_stage(plan, "form", layout="ir_mul") != dump_stage(plan, "form")
    assert dump_stage(plan, "code", strategy="unrolled") != dump_stage(plan, "code", strategy="einsum")


def test_auto_is_decided_for_the_backend_asked_for() -> None:
    # in float16, which generated kernels do not have
    vectors = make_plan("8x1o", "1o", "8x1e", [(0, 0, 0, "uvu", True)])
    for backend, strategy in (("eager", "grouped"), ("inductor", "unrolled")):
        text = dump_stage(vectors, "code", backend=backend, dtype=torch.float16)
        assert text == dump_stage(vectors, "code", strategy=strategy)


def test_inductor_shows_generated_code() -> None:
    tiny = make_plan("4x0e", "0e", "4x0e", [(0, 0, 0, "uvu", False)])
    text = dump_stage(tiny, "inductor", strategy="unrolled", rows=4)
    assert "def call(" in text or "class Runner" in text


def test_the_code_that_is_shown_is_the_code_that_runs(plan: Plan) -> None:
    request = Request(plan, rows=3)
    emission = emit_plan(plan)
    arguments = draw_example_arguments(request, emission.arguments)
    assert emission.module()(*arguments).shape == (3, plan.irreps_out.dim)
    assert all(map(torch.equal, arguments, draw_example_arguments(request, emission.arguments)))


def test_a_product_without_weights_has_no_gradient_for_them() -> None:
    unweighted = elementwise("2x1o", "2x1o")
    assert list_product_directions(unweighted) == ("forward", "right", "grad_x1", "grad_x2", "conv")


KERNELS = ("forward", "grad_x1", "grad_x2", "grad_w", "conv", "backward", "conv_backward")


def test_cpp_is_the_kernel_of_a_direction() -> None:
    texts = dump_files(VECTORS, ["cpp"], ["all"])
    assert list(texts) == [f"cpp.{d}.cpp" for d in KERNELS]
    assert "// path 0: 4x1o x 1x1o -> 4x0e (uvu)" in texts["cpp.forward.cpp"]


def test_kernels_of_all_gradients_and_of_convolutions_are_shown() -> None:
    texts = dump_files(VECTORS, ["cpp"], ["conv", "backward", "conv_backward"])
    assert "// opens out with x1 @ src, out @ dst\n" in texts["cpp.conv.cpp"]
    assert "// opens x1, x2, w\n" in texts["cpp.backward.cpp"]
    assert "// opens x1, x2, w with x1 @ src, out @ dst\n" in texts["cpp.conv_backward.cpp"]
    assert "// opens x1, x2\n" in dump_stage(elementwise("2x1o", "2x1o"), "cpp", "backward")


def test_what_a_reader_sees_first() -> None:
    assert [choose_default_stage(VECTORS, strategy=s) for s in ("kernel", "grouped")] == ["cpp", "code"]
    assert choose_default_stage(VECTORS, "right", strategy="kernel") == "code"


def test_what_a_kernel_computes_and_where_come_before_its_text() -> None:
    sweep, placement = (dump_stage(VECTORS, stage, "grad_x2") for stage in ("sweep", "placement"))
    assert sweep.startswith("sweep: opens x2\n  path 0: 4x1o x 1x1o -> 4x0e (uvu)")
    assert placement.split(" placement: opens x2; ")[0] in ("channel", "batch")  # as the machine's vectors are


# --- linear layers, and one function for all plans --------------------------------------------------------------------


def test_a_linear_layer_has_every_stage_but_those_of_a_gpu() -> None:
    texts = dump_files(linear_plan(), WITHOUT_COMPILING, ["all"])
    graphs, kernels = ("forward", "grad_x1", "grad_w"), ("forward", "grad_x1", "grad_w", "backward")
    named = {
        f"{name}.{direction}.{STAGES[name].suffix}"
        for name in WITHOUT_COMPILING
        if STAGES[name].by_direction
        for direction in (kernels if STAGES[name].shows == KERNEL else graphs)
    }
    assert set(texts) == {"plan.txt", *named}
    assert all(text.strip() for text in texts.values())
    assert len(set(texts.values())) == len(texts)


GRAPH, KERNEL_OF = {"strategy": "einsum"}, {"strategy": "kernel"}
SHOWN: list[tuple[Callable[[], Plan], str, str, dict, str]] = [
    (product_plan, "plan", "forward", GRAPH, "coefficient"),
    (product_plan, "form", "forward", GRAPH, "einsum('zui,zvj,uv,ijk->zuk', x1, x2, w, _w3j_1_1_1)"),
    (product_plan, "graph", "forward", GRAPH, "contraction"),
    (product_plan, "code", "forward", GRAPH, "def forward(self, x1"),
    (product_plan, "script", "forward", GRAPH, "graph(%self"),
    (linear_plan, "form", "grad_w", KERNEL_OF, "path 1: 0.707107 * einsum('zui,zwk,ik->uw', x1, out, _eye_3)"),
    (linear_plan, "graph", "forward", KERNEL_OF, "<{digest}>"),
    (linear_plan, "code", "forward", KERNEL_OF, "def forward(self, x1 : torch.Tensor, w : torch.Tensor)"),
    (
        *(linear_plan, "sweep", "backward", KERNEL_OF),
        "path 1: 2x1o -> 2x1o, times 0.707107\n    x1[u] += sum_w out[w] W[u, w]\n    W[u, w] +=",
    ),
    (linear_plan, "placement", "backward", KERNEL_OF, "path 1: 2 x 2 weights; a matrix product over rows and 3"),
    (linear_plan, "cpp", "backward", KERNEL_OF, "// opens x1, w\n"),
    (mixed, "plan", "forward", GRAPH, "a    a    y    1x1o  independent couplings"),
    (mixed, "form", "forward", GRAPH, "a0 a0"),
    (mixed, "graph", "forward", GRAPH, "contraction"),
    (mixed, "code", "forward", GRAPH, "def forward(self, a : torch.Tensor, b : torch.Tensor, y :"),
    (mixed, "sweep", "forward", GRAPH, "prologue:"),
    (mixed, "placement", "forward", GRAPH, "a task: up to 64 rows of one element, one vector of"),
    (mixed, "cpp", "forward", GRAPH, "static void row("),
    (mixed, "cuda", "forward", GRAPH, "DEVICE void row("),
    pytest.param(mixed, "ptx", "forward", GRAPH, ".visible .entry tpgen_kernel", marks=needs_nvrtc),
]


@pytest.mark.parametrize("made, stage, direction, options, fragment", SHOWN)
def test_a_stage_shows_what_it_is_for(made, stage: str, direction: str, options: dict, fragment: str) -> None:
    plan = made()
    assert fragment.format(digest=plan.digest) in dump_stage(plan, stage, direction, **options)


def test_the_programs_of_a_linear_layer_that_are_shown_run() -> None:
    layer = Linear("4x0e+2x1o", "3x0e+2x1o", f_in=2, f_out=3, strategy="grouped")
    assert dump_stage(layer.plan, "code", strategy="grouped") == layer._emit_program("forward").code.strip()
    request = Request(layer.plan, strategy="grouped", rows=5)
    emission = request.emit_program()
    assert request.module(emission)(*draw_example_arguments(request, emission.arguments)).shape == (5, 3 * 9)


def test_a_graph_that_is_one_kernel_leaves_the_products_json_out(plan: Plan) -> None:
    text = dump_stage(plan, "graph", strategy="kernel")
    assert f"<{plan.digest}>" in text
    assert "check_index" not in text
    assert max(map(len, text.split("\n"))) < 200


def test_one_function_takes_all_kinds_of_plans() -> None:
    polynomial = POLYNOMIALS["harmonics"].plan
    assert dump_stage(polynomial, "sweep", "forward").startswith("x one -> out: ")
    assert list(dump_files(polynomial, ["plan", "cpp"], ["backward"])) == ["plan.txt", "cpp.backward.cpp"]


LAYER = "is a linear layer, so it has no direction"


@pytest.mark.parametrize(
    "made, stage, direction, options, message",
    [
        (product_plan, "asm", "forward", {}, "unknown stage 'asm'; known stages: plan, form, graph, code, script, ind"),
        (product_plan, "code", "left", {}, r"'left'.*grad_x1"),
        (product_plan, "code", "all", {}, "give dump_stage one direction"),
        (product_plan, "code", "backward", {}, r"stage 'code' has no direction 'backward'"),
        (lambda: VECTORS, "cpp", "right", {}, "stage 'cpp' has no direction 'right'"),
        (
            lambda: elementwise("2x1o", "2x1o"),
            "graph",
            "grad_w",
            {},
            r"no weights.* 'grad_w'; its directions: ",
        ),
        (linear_plan, "code", "right", {}, f"{LAYER} 'right'; its directions: forward, grad_x1, grad_w"),
        (linear_plan, "cpp", "conv_backward", {}, f"{LAYER} 'conv_backward'"),
        (mixed, "code", "backward", {}, r"'code'.*'backward'"),
        (mixed, "sweep", "right", {}, "not a call: 'right'; calls are forward, backward, second, or one in full"),
        (mixed, "code", "forward", {"strategy": "grouped"}, "unknown strategy 'grouped'"),
        (mixed, "code", "forward", {"layout": "ir_mul"}, "unknown option 'layout'; known options: strategy, backend"),
        (lambda: Linear("1x0e", "1x0e"), "code", "forward", {}, "a Plan, not of Linear; its attribute plan is one"),
        (lambda: "article", "code", "forward", {}, r"not of str$"),
    ],
)
def test_what_cannot_be_dumped_says_why(made, stage: str, direction: str, options: dict, message: str) -> None:
    with pytest.raises(TpgenError, match=message):
        dump_stage(made(), stage, direction, **options)
