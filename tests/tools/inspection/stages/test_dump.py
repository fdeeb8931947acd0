"""Every stage of every direction has text, and what cannot be dumped says so."""

import pytest
import torch

from tpgen.base.errors import EmitError
from tpgen.emitter.emit import DIRECTIONS, emit_plan
from tpgen.nn.linear import Linear
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, elementwise
from tpgen.planner.problems import POLYNOMIALS
from tpgen.planner.product import make_plan
from tpgen.tools.inspection.stages.dump import STAGES, default_stage, dump_files, dump_stage, example_arguments
from tpgen.tools.inspection.stages.request import KERNEL, Request, product_directions

ON_A_GPU = ("cuda", "ptx", "sass")  # of products that keep channels: test_cuda.py
WITHOUT_COMPILING = [stage for stage in STAGES if stage not in ("inductor", *ON_A_GPU)]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan("4x0e+2x1o", "1o", "2x1o+2x1e", [(0, 0, 0, "uvw", True), (1, 0, 1, "uvu", True)])


STAGES_AND_DIRECTIONS = [
    (s, d) for s in WITHOUT_COMPILING for d in DIRECTIONS if d != "right" or STAGES[s].shows != KERNEL
]


@pytest.mark.parametrize("stage, direction", STAGES_AND_DIRECTIONS)
def test_every_stage_of_every_direction_has_text(plan: Plan, stage: str, direction: str) -> None:
    text = dump_stage(plan, stage, direction, strategy="grouped")
    assert text.strip()
    assert text == dump_stage(plan, stage, direction, strategy="grouped"), "a dump is the same every time"


@pytest.mark.parametrize(
    "stage, fragment",
    [
        ("plan", "coefficient"),
        ("form", "einsum('zui,zvj,uv,ijk->zuk', x1, x2, w, _w3j_1_1_1)"),
        ("graph", "contraction"),
        ("code", "def forward(self, x1"),
        ("script", "graph(%self"),
    ],
)
def test_a_stage_shows_what_it_is_for(plan: Plan, stage: str, fragment: str) -> None:
    assert fragment in dump_stage(plan, stage, strategy="einsum")


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
    arguments = example_arguments(request, emission.arguments)
    assert emission.module()(*arguments).shape == (3, plan.irreps_out.dim)
    assert all(map(torch.equal, arguments, example_arguments(request, emission.arguments)))


def test_an_unknown_stage_lists_the_known_ones(plan: Plan) -> None:
    with pytest.raises(
        EmitError,
        match="unknown stage 'asm'; known stages: plan, form, graph, code, script, inductor, sweep, placement, cpp",
    ):
        dump_stage(plan, "asm")


def test_an_unknown_direction_lists_the_known_ones(plan: Plan) -> None:
    with pytest.raises(EmitError, match=r"'left'.*grad_x1"):
        dump_stage(plan, "code", "left")


def test_a_product_without_weights_has_no_gradient_for_them() -> None:
    unweighted = elementwise("2x1o", "2x1o")
    assert product_directions(unweighted) == ("forward", "right", "grad_x1", "grad_x2", "conv")
    with pytest.raises(EmitError, match=r"no weights, so it has no direction 'grad_w'; its directions: forward, right"):
        dump_stage(unweighted, "graph", "grad_w")


KERNELS = ("forward", "grad_x1", "grad_x2", "grad_w", "conv", "backward", "conv_backward")


def test_cpp_is_the_kernel_of_a_direction() -> None:
    plan = channelwise("4x1o", "1o", "0e+1e")
    texts = dump_files(plan, ["cpp"], ["all"])
    assert list(texts) == [f"cpp.{d}.cpp" for d in KERNELS]
    assert "// path 0: 4x1o x 1x1o -> 4x0e (uvu)" in texts["cpp.forward.cpp"]
    with pytest.raises(EmitError, match="stage 'cpp' has no direction 'right'"):
        dump_stage(plan, "cpp", "right")


def test_kernels_of_all_gradients_and_of_convolutions_are_shown() -> None:
    plan = channelwise("4x1o", "1o", "0e+1e")
    texts = dump_files(plan, ["cpp"], ["conv", "backward", "conv_backward"])
    assert "// opens out with x1 @ src, out @ dst\n" in texts["cpp.conv.cpp"]
    assert "// opens x1, x2, w\n" in texts["cpp.backward.cpp"]
    assert "// opens x1, x2, w with x1 @ src, out @ dst\n" in texts["cpp.conv_backward.cpp"]
    assert "// opens x1, x2\n" in dump_stage(elementwise("2x1o", "2x1o"), "cpp", "backward")
    with pytest.raises(EmitError, match=r"'code'.*'backward'"):
        dump_stage(plan, "code", "backward")


def test_what_a_reader_sees_first() -> None:
    plan = channelwise("4x1o", "1o", "0e+1e")
    assert [default_stage(plan, strategy=s) for s in ("kernel", "grouped")] == ["cpp", "code"]
    assert default_stage(plan, "right", strategy="kernel") == "code"


def test_what_a_kernel_computes_and_where_come_before_its_text() -> None:
    plan = channelwise("4x1o", "1o", "0e+1e")
    sweep, placement = (dump_stage(plan, stage, "grad_x2") for stage in ("sweep", "placement"))
    assert sweep.startswith("sweep: opens x2\n  path 0: 4x1o x 1x1o -> 4x0e (uvu)")
    assert placement.split(" placement: opens x2; ")[0] in ("channel", "batch")  # as the machine's vectors are


# --- linear layers, and one function for all plans --------------------------------------------------------------------


def linear_plan() -> Plan:
    return make_linear_plan("4x0e+2x1o", "3x0e+2x1o", biases=True)


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


@pytest.mark.parametrize(
    "stage, direction, fragment",
    [
        ("form", "grad_w", "path 1: 0.707107 * einsum('zui,zwk,ik->uw', x1, out, _eye_3)"),
        ("graph", "forward", "<{digest}>"),
        ("code", "forward", "def forward(self, x1 : torch.Tensor, w : torch.Tensor)"),
        (
            "sweep",
            "backward",
            "path 1: 2x1o -> 2x1o, times 0.707107\n    x1[u] += sum_w out[w] W[u, w]\n    W[u, w] +=",
        ),
        ("placement", "backward", "path 1: 2 x 2 weights; a matrix product over rows and 3 components"),
        ("cpp", "backward", "// opens x1, w\n"),
    ],
)
def test_what_a_stage_of_a_linear_layer_shows(stage: str, direction: str, fragment: str) -> None:
    plan = linear_plan()
    assert fragment.format(digest=plan.digest) in dump_stage(plan, stage, direction, strategy="kernel")


def test_the_programs_of_a_linear_layer_that_are_shown_run() -> None:
    layer = Linear("4x0e+2x1o", "3x0e+2x1o", f_in=2, f_out=3, strategy="grouped")
    assert dump_stage(layer.plan, "code", strategy="grouped") == layer._emission("forward").code.strip()
    request = Request(layer.plan, strategy="grouped", rows=5)
    emission = request.emission()
    assert request.module(emission)(*example_arguments(request, emission.arguments)).shape == (5, 3 * 9)


def test_a_graph_that_is_one_kernel_leaves_the_products_json_out(plan: Plan) -> None:
    text = dump_stage(plan, "graph", strategy="kernel")
    assert f"<{plan.digest}>" in text
    assert "check_index" not in text
    assert max(map(len, text.split("\n"))) < 200


def test_one_function_takes_all_kinds_of_plans() -> None:
    polynomial = POLYNOMIALS["harmonics"].plan
    assert dump_stage(polynomial, "sweep", "forward").startswith("x one -> out: ")
    assert list(dump_files(polynomial, ["plan", "cpp"], ["backward"])) == ["plan.txt", "cpp.backward.cpp"]


@pytest.mark.parametrize(
    "stage, direction, message",
    [
        (
            "code",
            "right",
            "is a linear layer, so it has no direction 'right'; its directions: forward, grad_x1, grad_w",
        ),
        ("cpp", "conv_backward", "is a linear layer, so it has no direction 'conv_backward'"),
        ("code", "backward", "stage 'code' has no direction 'backward'"),
        ("code", "all", "give dump_stage one direction"),
    ],
)
def test_directions_that_a_linear_layer_lacks(stage: str, direction: str, message: str) -> None:
    with pytest.raises(EmitError, match=message):
        dump_stage(linear_plan(), stage, direction)


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(EmitError, match=r"stages are those of a Plan, not of Linear; its attribute plan is one"):
        dump_stage(Linear("1x0e", "1x0e"), "code")  # type: ignore[arg-type]
    with pytest.raises(EmitError, match=r"not of str$"):
        dump_stage("article", "code")  # type: ignore[arg-type]
    with pytest.raises(EmitError, match="of a polynomial: unknown option 'layout'; known options: strategy, backend"):
        dump_stage(POLYNOMIALS["harmonics"].plan, "code", layout="ir_mul")
