"""The sheet of a product: its explanation, and every stage with the lines of its paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from typing_extensions import Unpack

from tpgen.drawing.path_map import diagram
from tpgen.errors import TpgenError
from tpgen.inspection.costs.explain import explain
from tpgen.inspection.costs.explained import PathExplanation
from tpgen.inspection.costs.explanation import ExplainedOptions, Explanation, totals
from tpgen.inspection.costs.node_costs import node_costs, traced_costs
from tpgen.inspection.costs.roofline_picture import roofline
from tpgen.inspection.explorer.sheet import Pane, Sheet, bars
from tpgen.inspection.stages.calls import Inspected, request_of
from tpgen.inspection.stages.compiled_origins import joint_of_request
from tpgen.inspection.stages.origins import TracedStage
from tpgen.inspection.stages.provenance import trace
from tpgen.inspection.stages.request import Request
from tpgen.text import duration

# A kernel's graph is one call, so its graph panes show the same product as this strategy writes it.
READABLE = "einsum"
_GRAPHS = ("plan", "form", "graph", "code", "script", "joint")
_KERNELS = ("sweep", "placement", "cpp", "cpp_backward", "cuda", "cuda_backward", "ptx")
_ON_DEVICE = ("sweep", "placement", "cpp", "cpp_backward")  # kernels for a GPU can be written anywhere
_NO_INDUCTOR = "left out; --inductor (inductor=True) adds it, for which it compiles for seconds"


def product_sheet(
    subject: Inspected, rows: int, measure: bool, inductor: bool, **options: Unpack[ExplainedOptions]
) -> Sheet:
    """The sheet of a subject of inspection; see `tpgen.inspection.explorer.page.write_explorer`."""
    asked: dict[str, Any] = {name: value for name, value in options.items() if name not in ("ceilings", "nodes", "gpu")}
    request = replace(request_of(subject, **asked), rows=rows)
    found = explain(subject, rows=rows, measure=measure, **options)
    written = f"{found.strategy}: {found.reason}; {found.dtype}, {found.device}, {found.backend}"
    return Sheet(
        title=f"{found.product}: {found.strategy}, {len(found.paths)} {found.noun}s",
        digest=found.digest,
        panes=tuple(_panes(request, inductor)),
        facts=tuple({"index": path.index, "facts": _facts(path)} for path in found.paths),
        costliest=_costliest(found),
        totals={"strategy": written, **totals(found)},
        diagram=diagram(request.plan.map, interactive=True),
        roofline=roofline(found, interactive=True),
        bars=bars(found),
        noun=found.noun,
    )


def _panes(request: Request, inductor: bool) -> list[Pane]:
    """Graphs in the strategy asked for, or a readable one where that is one call; kernels wherever there can be any."""
    readable = replace(request, strategy=READABLE) if request.strategy == "kernel" else request
    traced = {name: trace(name, readable) for name in (*_GRAPHS, *(["inductor"] if inductor else []))}
    traced.setdefault("inductor", TracedStage("inductor", missing=_NO_INDUCTOR))
    notes = _notes(readable)
    remark = f"as strategy {readable.strategy} writes it"
    graphs = [Pane(s, "" if n in ("plan", "form") else remark, notes.get(n, {})) for n, s in traced.items()]
    written = replace(request, strategy="kernel")
    kernels = {name: trace(name, written) for name in _KERNELS}
    reason = request.why_no_kernel()
    if reason:
        kernels |= {name: TracedStage(name, missing=reason) for name in _ON_DEVICE}
    return graphs + [Pane(stage, "as strategy kernel writes it") for stage in kernels.values()]


def _notes(request: Request) -> dict[str, Mapping[str, object]]:
    """By stage, what is known of the values that its lines name; nothing where the program cannot be written."""
    try:
        of_nodes = node_costs(request)
        return {
            **dict.fromkeys(("graph", "code", "script"), of_nodes),
            "joint": traced_costs(joint_of_request(request)),
        }
    except TpgenError:
        return {}


def _costliest(found: Explanation) -> int | None:
    """The path that takes the most time, or the most operations where none was measured well: chosen at the start."""
    timed = not (found.ceilings and found.ceilings.warning)
    largest = max(found.paths, key=lambda p: ((timed and p.seconds) or 0.0, p.flops), default=None)
    return largest.index if largest else None


def _facts(path: PathExplanation) -> dict[str, str]:
    """Facts of a chosen path."""
    shape = "" if path.constant else f" as {'×'.join(map(str, path.weight_shape))}"
    facts = {
        "couples": path.couples + (f", mode {path.mode}" if path.mode else ""),
        "weights": path.weights + shape if path.weight else "none",
        "constant": f"{path.constant}: {len(path.entries)} paths" if path.constant else "",
        "coefficient": f"{path.coefficient:.6g} = "
        + " × ".join(f"{value:.4g} ({name})" for name, value in path.factors.items())
        if path.factors
        else "",
        "coupling": f"{path.nonzeros} of {path.dense} entries, {100 * path.density:.0f} %" if path.dense else "",
        "per row": f"{path.flops:,} FLOP, {path.bytes:,} bytes",
        "written as": f"{path.strategy}: {path.how}",
    }
    if path.seconds is not None:
        facts["alone"] = f"{duration(path.seconds)} for the batch"
    return {name: text for name, text in facts.items() if text}
