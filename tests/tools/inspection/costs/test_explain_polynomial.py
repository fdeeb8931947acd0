"""Explanations of polynomials: the numbers are those of plan, form and sweep, and what is left out says so."""

from __future__ import annotations

import json

import pytest
import torch

import tpgen
from tests.polynomials import mixed
from tpgen.base.errors import TpgenError
from tpgen.form.polynomial import make_scalar_form
from tpgen.planner.problems import POLYNOMIALS
from tpgen.tools.inspection.costs.explain import explain
from tpgen.tools.inspection.costs.explain_network import explain_network
from tpgen.tools.inspection.costs.explanation import Explanation
from tpgen.tools.inspection.costs.roofline import Ceilings
from tpgen.tools.inspection.stages.provenance import provenance

CEILINGS = Ceilings(1e10, 1e11)


def test_terms_are_those_of_the_plan() -> None:
    plan = mixed()
    found = explain(plan, strategy="einsum", ceilings=CEILINGS)
    assert [p.entries for p in found.paths] == [
        tuple(path.nonzeros for path in paths) for paths in plan.by_instruction.values()
    ]
    assert {" ".join(filter(None, (p.in1, p.in2, p.in3))) for p in found.paths} == {"a a y", "a b", "y y"}
    assert (found.paths[-1].weight, found.paths[-1].dense) == (None, 3 * 81)
    assert found.paths[-1].density == found.paths[-1].nonzeros / 243
    assert found.noun == "term"


def test_bytes_are_each_operand_once() -> None:
    found = explain(mixed(), rows=10, channels=4, strategy="einsum", dtype=torch.float64, ceilings=CEILINGS)
    weights = sum(o.dim for o in mixed().weights)
    assert found.bytes == 8 * (10 * (4 * 4 + 3 * 4 + 9 + 4 * 4) + 4 * weights)


def test_operations_are_those_of_the_sweep() -> None:
    plan = POLYNOMIALS["harmonics"].plan
    found = explain(plan, rows=100, channels=1, ceilings=CEILINGS)
    made = tpgen.Polynomial({"x": "1x1o"}, "1x0e", [("x", "x")], weights="none")
    assert found.flops == 100 * found.operations["forward"]
    assert made.explain(ceilings=CEILINGS).operations["forward"] == made.sweep().operations
    assert found.monomials == len(make_scalar_form(plan).monomials)
    assert found.bound == "memory"
    assert found.predicted_seconds == found.bytes / 1e10


def test_a_module_brings_what_it_is() -> None:
    made = tpgen.SymmetricContraction("8x0e+8x1o", "8x0e", 2, num_elements=3, strategy="einsum").double()
    found = tpgen.explain(made, rows=5, ceilings=CEILINGS)
    assert isinstance(found, Explanation)
    assert (found.channels, found.elements, found.dtype, found.strategy) == (8, 3, "float64", "einsum")
    assert found.reason == "asked for"
    text = str(found)
    for fragment in ("5 rows of 8 channels, 3 elements", "w0_2 0:", "chained couplings", "nothing; measure=True"):
        assert fragment in text
    fields = json.loads(found.to_json())
    assert fields["forward_seconds"] is None
    assert (fields["paths"][0]["in1"], fields["paths"][0]["in2"]) == ("x", "x")


def test_memory_is_that_of_a_call() -> None:
    shared = tpgen.Polynomial({"x": "4x0e+4x1o"}, "4x0e", [("x", "x")], strategy="einsum")
    assert shared.memory(10) == tpgen.estimate_memory(shared, torch.empty(10, 16))
    made = tpgen.SymmetricContraction("8x0e+8x1o", "8x0e", 2, num_elements=3, strategy="einsum")
    assert made.memory(10) == tpgen.estimate_memory(made, torch.empty(10, 8, 4), torch.zeros(10, dtype=torch.int64))
    with pytest.raises(TpgenError, match="nodes=3 is for a TensorProductConv"):
        made.memory(10, nodes=3)


def test_a_network_tells_of_its_polynomials() -> None:
    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.contraction = tpgen.SymmetricContraction("8x0e", "8x0e", 2, num_elements=3, strategy="einsum")

        def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return self.contraction(x, index) + self.contraction(x=x, y=index)

    found = explain_network(Network(), [torch.zeros(7, 8, 1), torch.zeros(7, dtype=torch.int64)], ceilings=CEILINGS)
    (one,) = found.products
    assert (one.module, one.calls, one.explanation.rows, one.explanation.channels) == ("contraction", 2, 7, 8)
    assert one.flops == 2 * one.explanation.flops


def test_terms_are_traced_through_graphs() -> None:
    plan = POLYNOMIALS["small-contraction"].plan
    found = provenance(plan, ["plan", "form", "graph", "code", "script", "joint"], strategy="einsum", rows=3)
    assert all(stage.explained == 1.0 for stage in found.stages.values())
    graph = found.stage("graph")
    for n in range(len(plan.terms)):
        own = [graph.lines[line - 1] for line in graph.lines_of(n)]
        assert any(f"_coupling_{n}" in text for text in own)
        assert not any(f"_coupling_{m}" in text for m in range(len(plan.terms)) if m != n for text in own)
