"""Rewrites change what an einsum costs, never what it means."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.cases import CASES, LAYOUTS, ROWS, Case, assert_close
from tpgen.form.contraction import BATCH, Contraction, Coupling, Delta, Factor, plan_pairwise_contractions
from tpgen.form.form import Form, Layout, form_of, right_form
from tpgen.form.rewrites import drop_scalar_leg, drop_unit_axes, simplify_contraction, unify_deltas


def directions(case: Case, layout: Layout) -> list[Form]:
    """All forms of the family: every slot of the product open, every slot of right open."""
    form, right = form_of(case.plan, layout), right_form(case.plan, layout)
    return [form.open(*g) for g in form.slots] + [right.open(*g) for g in right.slots]


def random_operands(c: Contraction) -> dict[str, Tensor]:
    return {
        f.source: torch.randn(((ROWS,) if BATCH in f.letters else ()) + c.shape(f.letters), dtype=torch.float64)
        for f in c.factors
        if isinstance(f.source, str)
    }


def evaluate(c: Contraction, named: dict[str, Tensor]) -> Tensor:
    """The contraction with torch.einsum, flat; named operands are reshaped to the axes that are left."""
    tensors = []
    for f in c.factors:
        if isinstance(f.source, str):
            tensors.append(named[f.source].reshape(((ROWS,) if BATCH in f.letters else ()) + c.shape(f.letters)))
        else:
            tensors.append(torch.tensor(f.source.array()))
    # a rewrite may leave an axis of size one to the output alone
    covered = {a for f in c.factors for a in f.letters}
    output = "".join(a for a in c.output if a in covered)
    assert c.size(c.output) == c.size(output)
    equation = ",".join(f.letters for f in c.factors) + "->" + output
    return c.coefficient * torch.einsum(equation, *tensors).flatten()


@pytest.mark.parametrize("case, layout", list(product(CASES, LAYOUTS[::2])), ids=str)
def test_rewrites_preserve_meaning(case: Case, layout: Layout) -> None:
    for form in directions(case, layout):
        for term in form.live_terms:
            c = form.contraction(term)
            named = random_operands(c)
            want = evaluate(c, named)
            for rewrite in (drop_scalar_leg, unify_deltas, drop_unit_axes, simplify_contraction):
                assert_close(evaluate(rewrite(c), named), want)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_left_to_rewrite(case: Case) -> None:
    for form in directions(case, "mul_ir"):
        for term in form.live_terms:
            simple = simplify_contraction(form.contraction(term))
            assert simplify_contraction(simple) == simple
            coupling = simple.find(Coupling)
            assert coupling is None or 0 not in (term.coupling.l1, term.coupling.l2, term.coupling.l3)


@pytest.mark.parametrize("ls", [(0, 0, 0), (0, 2, 2), (3, 0, 3), (4, 4, 0)])
def test_a_coupling_with_a_scalar_leg_is_a_delta(ls: tuple[int, int, int]) -> None:
    dims = [2 * l + 1 for l in ls]  # noqa: E741
    sizes = tuple(zip("ijk", dims, strict=True))
    c = drop_scalar_leg(Contraction((Factor(Coupling(*ls), "ijk"),), "ijk", sizes))
    delta = c.find(Delta)
    assert delta is not None
    scalar = next(a for a, dim in sizes if dim == 1)
    got = c.coefficient * np.asarray(delta.source.array())  # type: ignore[union-attr]
    want = Coupling(*ls).array().squeeze(axis="ijk".index(scalar))
    assert np.abs(got - want).max() < 1e-15


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pairwise_steps_compute_the_contraction(case: Case) -> None:
    for form in directions(case, "mul_ir"):
        for term in form.live_terms:
            c = simplify_contraction(form.contraction(term))
            named = random_operands(c)
            operands = [
                named[f.source] if isinstance(f.source, str) else torch.tensor(f.source.array()) for f in c.factors
            ]
            remaining = list(zip(operands, [f.letters for f in c.factors], strict=True))
            for step in plan_pairwise_contractions(tuple(f.letters for f in c.factors), c.output, c.sizes):
                assert len(step.positions) <= 2
                taken = [remaining[p] for p in step.positions]
                remaining = [x for p, x in enumerate(remaining) if p not in step.positions]
                equation = ",".join(letters for _, letters in taken) + "->" + step.letters
                remaining.append((torch.einsum(equation, *(x for x, _ in taken)), step.letters))
            ((result, letters),) = remaining
            assert letters == c.output
            assert_close(c.coefficient * result.flatten(), evaluate(c, named))


def test_the_order_of_contraction_is_the_same_for_any_large_batch() -> None:
    """It is planned once, for `PLANNING_ROWS`: planning for other batches finds nothing cheaper in operations."""
    import opt_einsum

    for case in CASES[::3]:
        for form in directions(case, "mul_ir")[:4]:
            for term in form.live_terms:
                c = simplify_contraction(form.contraction(term))
                letters = tuple(f.letters for f in c.factors)
                chosen = [step.positions for step in plan_pairwise_contractions(letters, c.output, c.sizes)]
                for rows in (32, 1000, 100_000):
                    sizes = {BATCH: rows, **dict(c.sizes)}
                    shapes = [tuple(sizes[a] for a in x) for x in letters]
                    cost = [
                        opt_einsum.contract_path(c.equation, *shapes, shapes=True, optimize=path)[1].opt_cost
                        for path in (chosen, "optimal")
                    ]
                    assert cost[0] <= cost[1]


def test_an_axis_of_size_one_that_a_coupling_has_stays() -> None:
    c = Contraction((Factor("x1", "zi"), Factor(Coupling(0, 1, 1), "ijk")), "zjk", (("i", 1), ("j", 3), ("k", 3)))
    assert drop_unit_axes(c) == c
    assert drop_unit_axes(drop_scalar_leg(c)).equation == "z,jk->zjk"


def test_prints_as_an_einsum() -> None:
    c = Contraction((Factor("x1", "zi"), Factor(Coupling(1, 1, 0), "ijk")), "zjk", (), 0.5)
    assert str(c) == "0.5 * einsum('zi,ijk->zjk', x1, _w3j_1_1_0)"
