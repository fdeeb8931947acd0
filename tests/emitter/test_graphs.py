"""What an emitted graph looks like: valid, shared, and every node says why it is there."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import fx

from tests.cases import CASES, MIXED, STRATEGIES, Case
from tpgen.emitter.emit import DIRECTIONS, Emission, emit_form, emit_plan
from tpgen.emitter.graph_writer import GraphWriter
from tpgen.emitter.strategies import STRATEGIES as KNOWN
from tpgen.form.form import form_of
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise
from tpgen.planner.product import make_plan

by_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
ARGUMENTS = {
    "forward": ("x1", "x2", "w"),
    "right": ("x2", "w"),
    "grad_x1": ("x2", "w", "g"),
    "grad_x2": ("x1", "w", "g"),
    "grad_w": ("x1", "x2", "g"),
    "conv": ("x1", "x2", "w", "src", "dst", "num_dst"),
}


def every_graph(plan: Plan) -> list[Emission]:
    return [emit_plan(plan, direction, strategy) for direction in DIRECTIONS for strategy in KNOWN]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_graphs_are_well_formed(case: Case) -> None:
    for emission in every_graph(case.plan):
        graph = emission.graph
        graph.lint()
        nodes = list(graph.nodes)
        assert {n.op for n in nodes} <= {"placeholder", "get_attr", "call_function", "call_method", "output"}
        assert nodes[-1].op == "output"
        assert all(n.users for n in nodes if n.op not in ("placeholder", "output"))
        kinds = {n.target: n.type for n in nodes if n.op == "placeholder"}
        assert kinds == {name: int if name == "num_dst" else torch.Tensor for name in emission.arguments}
        assert {n.target for n in nodes if n.op == "get_attr"} == set(emission.constants)


ROLES = (
    *("broadcast", "gather", "scatter", "slice", "coupling", "contraction"),
    *("weight", "sum", "reshape", "kernel", "stream"),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_node_says_whom_it_serves_and_how(case: Case) -> None:
    asked = set(range(len(case.plan.instructions)))
    for emission in every_graph(case.plan):
        for node in emission.graph.nodes:
            origin = node.meta["tpgen"]
            assert origin.role in ROLES, node
            assert set(origin.instructions) <= asked
            assert list(origin.instructions) == sorted(set(origin.instructions))
        served = {i for node in emission.graph.nodes for i in node.meta["tpgen"].instructions}
        assert served == asked or not (case.weighted or "grad_w" not in emission.title)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_node_serves_what_its_users_serve(case: Case) -> None:
    """Provenance is sound: whoever is served by a node is served by what that node reads.

    Each addition of a sum serves all that is summed, so its inputs need not.
    """
    for emission in every_graph(case.plan):
        for node in emission.graph.nodes:
            wanted = set(node.meta["tpgen"].instructions)
            inputs = [set(n.meta["tpgen"].instructions) for n in node.all_input_nodes]
            if wanted and inputs:
                assert all(not served or served & wanted for served in inputs), node
                if node.meta["tpgen"].role == "sum":
                    continue
                assert any(not served for served in inputs) or wanted <= set().union(*inputs), node


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_node_is_written_twice(case: Case) -> None:
    for emission in every_graph(case.plan):
        keys = Counter(
            (n.op, n.target, repr(n.args), repr(n.kwargs)) for n in emission.graph.nodes if n.op != "placeholder"
        )
        assert max(keys.values()) == 1


def test_shared_intermediates_are_written_once() -> None:
    """Every path of a channelwise product reads the same few segments: each is split off and viewed once."""
    plan = channelwise("4x0e + 4x1o", "0e + 1o + 2e", "0e + 1o + 2e", shared_weights=True)
    assert len(plan.paths) == 7
    graph = emit_plan(plan, "forward", "einsum").graph
    splits = [n for n in graph.nodes if "split" in str(n.target)]
    assert len(splits) == 3  # x1, x2, w
    x1 = next(n for n in splits if len(n.args[1]) == 2)
    assert len(x1.users) == 2
    served = {n.args[1]: n.meta["tpgen"].instructions for n in x1.users}
    assert served[0] == tuple(i for i, a in enumerate(plan.instructions) if a.i_in1 == 0)
    assert served[1] == tuple(i for i, a in enumerate(plan.instructions) if a.i_in1 == 1)


@pytest.mark.parametrize("strategy", ["einsum", "unrolled"])
def test_deleting_an_instruction_deletes_the_nodes_that_serve_it_alone(strategy: str) -> None:
    """... and the addition that joined it to the others of its output."""
    paths = [
        (0, 0, 0, "uvu", False),
        (1, 1, 0, "uvu", False),
        (2, 2, 0, "uvu", False),
        (0, 1, 1, "uvu", False),
        (1, 0, 1, "uvu", False),
        (1, 2, 1, "uvu", False),
    ]

    def graph(instructions: list) -> fx.Graph:
        irreps = ("3x0e+3x1o+3x2e", "2x0e+2x1o+2x2e", "3x0e+3x1o")
        plan = make_plan(*irreps, instructions, path_normalization="none", irrep_normalization="none")
        return emit_plan(plan, "forward", strategy).graph

    def operations(nodes) -> Counter:
        return Counter((n.op, str(n.target)) for n in nodes)

    whole = graph(paths)
    for index in range(len(paths)):
        alone = operations(n for n in whole.nodes if n.meta["tpgen"].instructions == (index,))
        less = operations(graph(paths[:index] + paths[index + 1 :]).nodes)
        joins = operations(whole.nodes) - alone - less
        assert sum(joins.values()) == 1
        assert "add" in next(iter(joins))[1]
        assert not less - operations(whole.nodes)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_placeholders(direction: str) -> None:
    for strategy in STRATEGIES:
        assert emit_plan(make_plan(*MIXED), direction, strategy).arguments == ARGUMENTS[direction]


def test_program_of_a_gradient_of_right_takes_its_cotangent() -> None:
    plan = make_plan(*MIXED)
    form = form_of(plan).merge("x1", "out").open("x2")
    assert emit_form(form).arguments == ("g", "w")


def test_unweighted_programs_keep_the_argument_for_weights() -> None:
    plan = make_plan("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", False)])
    assert emit_plan(plan).arguments == ("x1", "x2", "w")


@by_strategy
def test_layouts_need_no_transposing_copy_of_inputs(strategy: str) -> None:
    """Both layouts are axes of one view: neither permutes an operand where a product broadcasts it."""
    plan = channelwise("4x0e + 4x1o", "0e + 1o", "0e + 1o")
    for layout in ("mul_ir", "ir_mul"):
        graph = emit_plan(plan, "forward", strategy, layout).graph
        assert not [n for n in graph.nodes if n.target in ("contiguous", "clone")]


@by_strategy
def test_prints_as_a_table(strategy: str) -> None:
    emission = emit_plan(make_plan("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)]), "forward", strategy)
    title, header, *rows = str(emission).splitlines()
    assert title.startswith("forward of ")
    assert title.endswith(strategy)
    assert header.split() == ["node", "op", "target", "arguments", "role", "instructions"]
    assert len(rows) == len(emission.graph.nodes)
    assert all(row.split()[-1] in ("all", "0") for row in rows)


def test_the_code_of_an_emission_runs_as_it_reads() -> None:
    emission = emit_plan(make_plan("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)]))
    namespace = emission.graph.python_code("self").globals
    exec(emission.code, namespace)
    module = emission.module()
    given = [torch.randn(3, 6), torch.randn(3, 3), torch.randn(2)]
    assert torch.equal(namespace["forward"](module, *given), module(*given))


# --- the writer -------------------------------------------------------------------------------------------------------


def test_the_writer_keeps_equal_numbers_of_different_kind_apart() -> None:
    writer = GraphWriter()
    x = writer.placeholder("x")
    assert (x * 2).node is not (x * 2.0).node
    assert (x * 0.0).node is not (x * -0.0).node
    assert (x * 2.0).node is (x * 2.0).node
    assert (x + 1.0).node is not (x * 1.0).node
    assert x.sum(0).node is not x.sum(0, keepdim=True).node


def test_the_writer_shares_nothing_across_what_it_forgot() -> None:
    writer = GraphWriter()
    x = writer.placeholder("x")
    before = x * 2.0
    writer.forget()
    assert (x * 2.0).node is not before.node


def test_a_node_that_serves_all_goes_on_serving_all() -> None:
    writer = GraphWriter()
    x = writer.placeholder("x")
    with writer.serving((), "slice"):
        shared = x * 2.0
    with writer.serving(3, "contraction"):
        assert (x * 2.0).node is shared.node
    assert shared.node.meta["tpgen"].instructions == ()
    with writer.serving(1, "contraction"):
        one = x * 3.0
    with writer.serving((), "slice"):
        assert (x * 3.0).node is one.node
    assert one.node.meta["tpgen"].instructions == ()


def test_what_nothing_reads_is_dropped_with_its_constants() -> None:
    writer = GraphWriter()
    x = writer.placeholder("x")
    y = writer.placeholder("y")
    values = torch.ones(2).numpy()
    _ = y * writer.constant("_unread", values)
    out = x * writer.constant("_read", values)
    graph = writer.finish(out)
    assert list(writer.constants) == ["_read"]
    assert [n.op for n in graph.nodes] == ["placeholder", "placeholder", "get_attr", "call_function", "output"]


def test_other_values_under_a_name_that_is_taken_get_another_name() -> None:
    writer = GraphWriter()
    first, same, other = (writer.constant("c", np.full(2, value)) for value in (1.0, 1.0, 2.0))
    assert (first.node.target, same.node.target, other.node.target) == ("c", "c", "c_1")
    assert writer.constants["c_1"].tolist() == [2.0, 2.0]


def calls(emission: Emission) -> Counter:
    return Counter(getattr(node.target, "__name__", node.target) for node in emission.graph.nodes)


def test_unrolled_writes_small_matrix_products_out() -> None:
    """A call of a product of a few numbers costs more than the numbers; a large one is a call."""
    small, large = (make_plan(f"{mul}x1o", "1x1o", f"{mul}x1e", [(0, 0, 0, "uvw", True)]) for mul in (2, 16))
    assert calls(emit_plan(small, "forward", "unrolled"))["einsum"] == 0
    assert calls(emit_plan(large, "forward", "unrolled"))["einsum"] == 1


def test_grouped_ends_the_gradient_of_input_2_with_one_matrix_product() -> None:
    plan = channelwise("8x1o+8x2e", "1o+2e", "1o+2e", shared_weights=False)
    found = calls(emit_plan(plan, "grad_x2", "grouped"))
    assert found["matmul"] == 1
    assert not [name for name in found if name.startswith("_w3j")]
