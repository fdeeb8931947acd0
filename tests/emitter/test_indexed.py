"""Forms with any operands: rows selected by an index, terms without a coupling."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.cases import CASES, STRATEGIES, Case, assert_close, operands
from tests.forms import reference_form
from tpgen.emitter.emit import emit_form
from tpgen.form.form import FlatOperand, Form, LetteredSegment, Term, conv_form, form_of
from tpgen.form.reference import reference_product
from tpgen.planner.modes import MATRIX
from tpgen.planner.plan import SHARED
from tpgen.planner.product import make_plan

NODES, EDGES = 4, 7
by_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def edges() -> dict[str, Tensor]:
    """Repeated edges, self-loops, and a node without any."""
    return {"src": torch.randint(NODES, (EDGES,)), "dst": torch.randint(1, NODES, (EDGES,))}


def graph_operands(case: Case) -> dict[str, Tensor]:
    nodes, rows = operands(case.plan, NODES), operands(case.plan, EDGES)
    return {
        "x1": nodes["x1"],
        "x2": rows["x2"],
        "w": rows["w"],
        "out": torch.randn(NODES, case.plan.irreps_out.dim).double(),
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_convolution_is_gather_product_and_sum(case: Case) -> None:
    at, given = edges(), graph_operands(case)
    cotangent = given.pop("out")
    messages = reference_product(case.plan, given["x1"][at["src"]], given["x2"], given["w"])
    want = cotangent.new_zeros(cotangent.shape).index_add(0, at["dst"], messages)
    assert_close(reference_form(conv_form(case.plan), given, EDGES, at, NODES), want)


@pytest.mark.parametrize("case", CASES, ids=str)
@by_strategy
def test_every_open_slot_of_a_convolution(case: Case, strategy: str) -> None:
    at, given = edges(), graph_operands(case)
    form = conv_form(case.plan)
    for slot in form.slots:
        if given[slot[0]].numel() == 0:
            continue
        opened = form.open(*slot)
        rest = {name: x for name, x in given.items() if name != slot[0]}
        want = reference_form(opened, rest, EDGES, at, NODES)
        sizes = [NODES] if opened.index(slot) else []
        module = emit_form(opened, strategy).module().double()
        assert_close(module(*rest.values(), *at.values(), *sizes), want)


@by_strategy
def test_open_slots_of_a_convolution_in_one_program(strategy: str) -> None:
    case = next(c for c in CASES if c.mode == "uvu" and not c.shared)
    at, given = edges(), graph_operands(case)
    form = conv_form(case.plan)
    forms = (form.open("x1"), form.open("w"), form.open("out"))
    program = emit_form(forms, strategy)
    assert program.arguments == ("x1", "x2", "w", "g", "src", "dst", "num_src", "num_dst")
    results = program.module().double()(*given.values(), *at.values(), NODES, NODES)
    for opened, result in zip(forms, results, strict=True):
        rest = {name: x for name, x in given.items() if (name,) != opened.opened}
        assert_close(result, reference_form(opened, rest, EDGES, at, NODES))


def test_the_text_of_a_form_says_which_rows_an_index_selects() -> None:
    form = conv_form(make_plan("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)]))
    assert str(form).startswith("out[2x0e] of x1, x2, w, x1 at src, out at dst\n")
    assert form.indices == ("src", "dst")


@by_strategy
def test_a_term_may_have_no_constant_and_no_second_input(strategy: str) -> None:
    """A linear layer: ``out[w, k] = sum_u W[u, w] x[u, k]``."""
    x = FlatOperand("x1", ((0, 6),), text="2x1o")
    w, out = FlatOperand("w", ((0, 8),), SHARED, "8"), FlatOperand("out", ((0, 12),), text="4x1o")
    term = Term(
        0,
        "2x1o -> 4x1o",
        MATRIX,
        (LetteredSegment("x1", 0, "uk"), LetteredSegment("w", 0, "uw"), LetteredSegment("out", 0, "wk")),
        (),
        (("u", 2), ("w", 4), ("k", 3)),
        1.5,
    )
    form = Form((x, w, out), (term,), (("x1",), ("w",), ("out",)), ("out",), make_plan("0e", "0e", "0e", []), ())
    given = {"x1": torch.randn(5, 6).double(), "w": torch.randn(8).double(), "out": torch.randn(5, 12).double()}
    want = 1.5 * torch.einsum("zuk,uw->zwk", given["x1"].reshape(5, 2, 3), given["w"].reshape(2, 4)).reshape(5, 12)
    assert_close(emit_form(form, strategy).module().double()(given["x1"], given["w"]), want)
    for slot in form.slots:
        rest = {name: v for name, v in given.items() if name != slot[0]}
        got = emit_form(form.open(*slot), strategy).module().double()(*rest.values())
        assert_close(got, reference_form(form.open(*slot), rest, 5))


def test_reading_leaves_the_terms_that_read_a_slot() -> None:
    form = form_of(make_plan("2x1o", "1o", "2x0e+2x1e", [(0, 0, 0, "uvu", True), (0, 0, 1, "uvu", False)]))
    assert [t.path for t in form.keep_terms_that_read(("w",)).terms] == [0]
    assert form.keep_terms_that_read(("x1",), ("out",)) == form
