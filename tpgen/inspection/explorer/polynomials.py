"""The sheet of a polynomial: its explanation, and its stages with the lines of each of its terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tpgen.drawing.path_map import PathMap, Route, diagram
from tpgen.emitter.polynomial import emit_polynomial
from tpgen.errors import TpgenError
from tpgen.form.sampling import random_polynomial_operands
from tpgen.inspection.costs.explain_polynomial import PolynomialExplanation, explain_polynomial, polynomial_facts
from tpgen.inspection.costs.node_costs import costs_of
from tpgen.inspection.costs.roofline_picture import roofline
from tpgen.inspection.explorer.sheet import Pane, Sheet
from tpgen.inspection.stages.dump_polynomial import dump_polynomial
from tpgen.inspection.stages.origins import Origin, TracedStage, traced_stage
from tpgen.inspection.stages.polynomial_origins import (
    trace_polynomial_form,
    trace_polynomial_plan,
    trace_polynomial_sweep,
)
from tpgen.nn.polynomial_module import PolynomialModule
from tpgen.planner.polynomial_plan import PolynomialPlan

PolynomialSubject = PolynomialModule | PolynomialPlan
_ALL = "all segments"


def polynomial_sheet(subject: PolynomialSubject, rows: int, measure: bool, **options: Any) -> Sheet:
    """The sheet of a polynomial; its terms stand where a product has its paths."""
    found = explain_polynomial(subject, rows=rows, measure=measure, **options)
    plan = subject if isinstance(subject, PolynomialPlan) else subject.plan
    entries = [sum(len(path) for path in paths) for paths in plan.paths]
    return Sheet(
        title=f"{found.polynomial}: {found.strategy}, {len(plan.terms)} terms",
        digest=found.digest,
        panes=tuple(replace(p, first=("plan", "form", "sweep")) for p in _panes(plan, found)),
        facts=tuple({"index": n, "facts": _facts(plan, n, entries[n])} for n in range(len(plan.terms))),
        costliest=max(range(len(plan.terms)), key=entries.__getitem__, default=None),
        totals={"strategy": f"{found.strategy}: {found.reason}", **polynomial_facts(found)},
        diagram=diagram(_map(plan, entries), interactive=True),
        roofline=roofline(found, (), interactive=True),
        bars="",
        noun="term",
    )


def _map(plan: PolynomialPlan, entries: list[int]) -> PathMap:
    names = [o.name for o in plan.inputs]
    outs = tuple(map(str, plan.out.irreps))
    routes = []
    for n, term in enumerate(plan.terms):
        begins = tuple(("in", names.index(name)) for name in dict.fromkeys(term.inputs))
        reached = len(outs) if term.i_out is None else term.i_out
        routes.append(Route(n, begins, (("out", reached),), f"term {n}: {_couples(plan, n)}", entries[n]))
    ends = outs + ((_ALL,) if any(term.i_out is None for term in plan.terms) else ())
    return PathMap({"in": tuple(names)}, {"out": ends}, tuple(routes), "entries")


def _couples(plan: PolynomialPlan, n: int) -> str:
    term = plan.terms[n]
    reached = _ALL if term.i_out is None else str(plan.out.irreps[term.i_out])
    return f"{' × '.join(term.inputs)} → {reached}"


def _facts(plan: PolynomialPlan, n: int, entries: int) -> dict[str, str]:
    term = plan.terms[n]
    weights = "none" if term.weight is None else f"{term.weight}: {plan.operand(term.weight).dim}"
    constant = "a table" if term.table is not None else f"{term.basis} couplings"
    return {
        "couples": _couples(plan, n),
        "weights": weights,
        "constant": f"{constant}: {len(plan.paths[n])} paths, {entries:,} entries that are not zero",
    }


def _panes(plan: PolynomialPlan, found: PolynomialExplanation) -> list[Pane]:
    """Graphs as a strategy that can be read; what a kernel does, wherever it could be written."""
    dtype = getattr(torch, found.dtype)
    strategy = "einsum" if found.strategy == "kernel" else found.strategy
    graphs = dump_polynomial(plan, ["graph", "code"], strategy=strategy, dtype=dtype, device=found.device)
    notes = _notes(plan, found, strategy, dtype)
    whole = Origin(shared="all terms")
    panes = [Pane(trace_polynomial_plan(plan)), Pane(trace_polynomial_form(plan))]
    for name, text in zip(("graph", "code"), graphs.values(), strict=True):
        language = "python" if name == "code" else "text"
        stage = traced_stage(name, language, [(line, whole) for line in text.split("\n")])
        panes.append(Pane(stage, f"as strategy {strategy} writes it", notes))
    kernels: dict[str, Callable[[], TracedStage]] = {
        "sweep": lambda: trace_polynomial_sweep(plan),
        "placement": lambda: _text(plan, "placement", "forward", "text", dtype),
        "cpp": lambda: _text(plan, "cpp", "forward", "cpp", dtype),
        "cpp_backward": lambda: _text(plan, "cpp", "backward", "cpp", dtype),
    }
    return panes + [Pane(_or_why(name, stage), "as strategy kernel writes it") for name, stage in kernels.items()]


def _or_why(name: str, stage: Callable[[], TracedStage]) -> TracedStage:
    try:
        return stage()
    except TpgenError as error:
        return TracedStage(name, missing=str(error))


def _text(plan: PolynomialPlan, stage: str, call: str, language: str, dtype: torch.dtype) -> TracedStage:
    """A stage whose lines serve all terms: products of components are shared between them."""
    (text,) = dump_polynomial(plan, [stage], [call], dtype=dtype).values()
    name = stage if call == "forward" else f"{stage}_{call}"
    return traced_stage(name, language, [(line, Origin(shared="all terms")) for line in text.rstrip().split("\n")])


def _notes(plan: PolynomialPlan, found: PolynomialExplanation, strategy: str, dtype: torch.dtype) -> dict[str, object]:
    indexed = found.elements > 1
    program = emit_polynomial(plan, strategy, indexed).module().to(dtype=dtype)

    def operands() -> list[torch.Tensor]:
        drawn = random_polynomial_operands(plan, found.rows, found.channels, found.elements, dtype=dtype)
        return [*drawn, *([torch.zeros(found.rows, dtype=torch.int64)] if indexed else [])]

    return dict(costs_of(program, operands))
