"""Explanations of polynomials: the numbers are those of plan, form and sweep, and what is left out says so."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import tpgen
from tests.polynomials import mixed, symmetric
from tpgen.errors import TpgenError
from tpgen.form.polynomial import form_of
from tpgen.inspection.costs.explain_polynomial import PolynomialExplanation, explain_polynomial
from tpgen.inspection.costs.roofline import Ceilings
from tpgen.planner.polynomial_problems import POLYNOMIALS

CEILINGS = Ceilings(1e10, 1e11)


def test_paths_are_those_of_the_plan() -> None:
    plan = mixed()
    found = explain_polynomial(plan, strategy="einsum", ceilings=CEILINGS)
    assert [p.entries for p in found.paths] == [len(path) for paths in plan.paths for path in paths]
    assert {p.term for p in found.paths} == {"a a y", "a b", "y y"}
    assert [p.weight for p in found.paths][-1] == ""
    assert found.paths[-1].dense == 81
    assert found.paths[-1].density == found.paths[-1].entries / 81


def test_bytes_are_each_operand_once() -> None:
    found = explain_polynomial(mixed(), rows=10, channels=4, strategy="einsum", dtype=torch.float64, ceilings=CEILINGS)
    weights = sum(o.dim for o in mixed().weights)
    assert found.bytes == 8 * (10 * (4 * 4 + 3 * 4 + 9 + 4 * 4) + 4 * weights)


def test_operations_are_those_of_the_sweep() -> None:
    plan = POLYNOMIALS["harmonics"].plan
    found = explain_polynomial(plan, rows=100, channels=1, ceilings=CEILINGS)
    made = tpgen.Polynomial({"x": "1x1o"}, "1x0e", [("x", "x")], weights="none")
    assert found.flops == 100 * found.operations["forward"]
    assert made.explain(ceilings=CEILINGS).operations["forward"] == made.sweep().operations
    assert found.monomials == len(form_of(plan).monomials)
    assert found.bound == "memory"
    assert found.predicted_seconds == found.bytes / 1e10


def test_a_module_brings_what_it_is() -> None:
    made = tpgen.SymmetricContraction("8x0e+8x1o", "8x0e", 2, num_elements=3, strategy="einsum").double()
    found = tpgen.explain(made, rows=5, ceilings=CEILINGS)
    assert isinstance(found, PolynomialExplanation)
    assert (found.channels, found.elements, found.dtype, found.strategy) == (8, 3, "float64", "einsum")
    assert found.reason == "asked for"
    text = str(found)
    for fragment in ("5 rows of 8 channels, 3 elements", "w0_2[0]", "chained couplings", "nothing; measure=True"):
        assert fragment in text
    fields = json.loads(found.to_json())
    assert fields["forward_seconds"] is None
    assert fields["paths"][0]["term"] == "x x"


@pytest.mark.parametrize("elements", [1, 2])
def test_measured(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpgen.inspection.costs.explain_polynomial._SECONDS", 0.001)
    found = explain_polynomial(
        symmetric(degree=2), rows=4, channels=2, elements=elements, strategy="einsum", measure=True, ceilings=CEILINGS
    )
    assert found.forward_seconds
    assert found.backward_seconds
    assert "forward+backward" in str(found)


def test_a_busy_machine_is_named() -> None:
    busy = replace(CEILINGS, scatter=0.3)
    texts = [str(explain_polynomial(symmetric(degree=2), strategy="einsum", ceilings=c)) for c in (CEILINGS, busy)]
    assert ["up to 30 % longer: the machine is busy" in text for text in texts] == [False, True]


@pytest.mark.parametrize("what", ["rows", "channels", "elements"])
def test_an_empty_batch_is_refused(what: str) -> None:
    with pytest.raises(TpgenError, match=f"{what}: a batch has one or more, got 0"):
        explain_polynomial(mixed(), **{what: 0})
