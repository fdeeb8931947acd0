"""The statements of a sweep against the slow definition: every mode, weights, every set of open slots."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor

from tests.forms import reference_form
from tests.interpreter import interpret
from tests.kernels.plans import VARIANTS, mode_plan, operands
from tpgen.form.form import Form, form_of
from tpgen.kernels.placement.planning import CHANNEL_LETTER
from tpgen.kernels.sweep.statements import Accumulate, Component, Define, Load, TableEntry
from tpgen.kernels.sweep.sweep import Sweep, make_sweep, path_terms
from tpgen.kernels.sweep.terms import BETWEEN, SLOTS, S

SETS = [slots for n in range(1, 5) for slots in combinations(SLOTS, n)]


def sweeps(form: Form, mode: str, opened: tuple[str, ...]) -> list[Sweep]:
    """By rows, and by each letter that channels of the mode may run over."""
    terms = path_terms(form)
    channels = [(letter,) * len(terms) for letter in CHANNEL_LETTER.get(mode, "")]
    return [make_sweep(terms, opened, letters) for letters in (None, *channels)]


def wanted(form: Form, given: dict[str, Tensor], name: str, rows: int) -> Tensor:
    others = {o: x for o, x in given.items() if o != name and form.operand(o).dim}
    return reference_form(form.open(name), others, rows)


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("mode, weighted, shared", VARIANTS)
def test_sweeps_compute_the_form(mode: str, weighted: bool, shared: bool, layout: str) -> None:
    form = form_of(mode_plan(mode, weighted, shared, 3, 2), layout)
    given = operands(form.plan, 4)
    slots = {name: wanted(form, given, name, 4) for name in SLOTS if form.operand(name).dim}
    for opened in SETS:
        for sweep in sweeps(form, mode, opened):
            found = interpret(sweep, form, given)
            for name in set(opened) & set(slots):
                torch.testing.assert_close(found[name], slots[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode, weighted, shared", VARIANTS)
def test_statements_read_what_stands_before_them(mode: str, weighted: bool, shared: bool) -> None:
    form = form_of(mode_plan(mode, weighted, shared, 3, 2))
    for opened in SETS:
        for sweep in sweeps(form, mode, opened):
            check_order(sweep)


def read_by_some_slot(component: Component, sweep: Sweep) -> bool:
    return component.operand not in sweep.opened or len(sweep.opened) > 1


def check_order(sweep: Sweep) -> None:
    """Values are named before they are read, components read before they are used, one path at a time."""
    entries = {s.target for table in sweep.tables for s in table}
    for path in sweep.paths:
        known: set = set(entries)
        made: set = set()
        for statement in (s for stage in path.stages for s in stage.statements):
            assert path.term.path in statement.paths
            if isinstance(statement, Load):
                between = statement.target.operand in BETWEEN
                assert statement.target in made if between else read_by_some_slot(statement.target, sweep)
                known.add(statement.target)
                continue
            read = set(statement.factors)
            assert read <= known, f"{statement} reads {read - known}"
            if isinstance(statement, Define):
                assert statement.target not in known, f"{statement} names a value again"
                known.add(statement.target)
            else:
                assert isinstance(statement, Accumulate)
                assert statement.target.operand in (*sweep.opened, *BETWEEN, S)
                made.add(statement.target)
                known |= {c for c in made if c.operand == S}


def test_a_table_that_nothing_reads_is_not_made() -> None:
    form = form_of(mode_plan("uvu", True, True, 3, 2))
    sweep = make_sweep(path_terms(form), ("x2",), ("u",) * len(form.terms))
    assert not any(sweep.tables)
    assert not [value for s in sweep.statements for value in s.factors if isinstance(value, TableEntry)]
