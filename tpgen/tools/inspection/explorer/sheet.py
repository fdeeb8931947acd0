"""The explorer's sheet of a product."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from itertools import groupby
from string import Template
from typing import Any

from pygments.lexers import get_lexer_by_name
from pygments.token import Comment, Keyword, Name, Number, String, _TokenType
from typing_extensions import Unpack

from tpgen.base.drawing.path_map import css_properties, draw_path_map
from tpgen.base.errors import TpgenError
from tpgen.base.text import duration
from tpgen.tools.inspection.costs.explain import explain
from tpgen.tools.inspection.costs.explanation import (
    ExplainedOptions,
    Explanation,
    PathExplanation,
    describe_product_totals,
)
from tpgen.tools.inspection.costs.node_costs import compute_joint_graph_costs, compute_node_costs
from tpgen.tools.inspection.costs.roofline_picture import draw_roofline_svg
from tpgen.tools.inspection.stages.calls import Inspected, resolve_request
from tpgen.tools.inspection.stages.compiled_origins import trace_joint_graph_of_request
from tpgen.tools.inspection.stages.origins import Origin, TracedStage
from tpgen.tools.inspection.stages.provenance import trace_stage
from tpgen.tools.inspection.stages.request import Request

TITLES = {
    "plan": "plan",
    "form": "form",
    "graph": "fx graph",
    "code": "code",
    "script": "TorchScript",
    "joint": "joint graph",
    "inductor": "Inductor",
    "sweep": "sweep",
    "placement": "placement",
    "cpp": "C++",
    "cpp_backward": "C++ backward",
    "cuda": "CUDA",
    "cuda_backward": "CUDA backward",
    "ptx": "PTX",
}
_CHUNK = 64  # lines that a browser lays out together, once they come into view
_FOLDED = {"prelude"}  # parts that are the same for every product
_LONG = 8  # lines of such a part that are worth a fold


@dataclass(frozen=True)
class _StagePane:
    stage: TracedStage
    remark: str = ""
    notes: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether the page shows the pane at first."""
        return self.stage.name in ("code", "joint", "cpp") and not self.stage.missing


@dataclass(frozen=True)
class ProductSheet:
    """Explorer's section on a product: title, and HTML parts by name."""

    title: str
    parts: Mapping[str, str]

    def html(self, name: str, template: Template) -> str:
        """Fill the HTML template."""
        return template.substitute(self.parts, name=escape(name), title=escape(self.title))


def _write_tab_html(pane: _StagePane) -> str:
    name, missing = pane.stage.name, ' class="missing"' if pane.stage.missing else ""
    title = escape(pane.stage.missing or pane.remark)
    return (
        f'<button data-pane="pane-{name}" aria-pressed="{str(pane.is_open).lower()}" title="{title}"{missing}>'
        f"{TITLES[name]}</button>"
    )


def _write_pane_html(pane: _StagePane, path_count: int) -> str:
    stage = pane.stage
    missing = f'<span class="missing-reason">{escape(stage.missing)}</span>'
    body = missing if stage.missing else "".join(_write_pane_body_html(pane, path_count))
    return (
        f'<section class="pane" id="pane-{stage.name}"{"" if pane.is_open else " hidden"}><h2>{TITLES[stage.name]}'
        f'<span>{escape(pane.remark)}</span><output></output></h2><pre class="code">{body}</pre></section>'
    )


def _write_pane_body_html(pane: _StagePane, path_count: int) -> Iterator[str]:
    stage = pane.stage
    html = highlight_lines("\n".join(stage.lines), stage.language)
    notes = [pane.notes.get(next(iter(text.split()), "")) for text in stage.lines]  # by the value that a line names
    lines = [_write_line_html(*line, path_count) for line in zip(html, stage.origins, notes, strict=True)]
    # long parts that are the same for every product are folded
    for folded, run in groupby(range(len(lines)), key=lambda n: stage.origins[n].shared in _FOLDED):
        numbers = list(run)
        chunks = [numbers[n : n + _CHUNK] for n in range(0, len(numbers), _CHUNK)]
        # with the number of the first line: a browser skips chunks out of view, so large pages open fast
        body = "".join(
            f'<span style="--from:{chunk[0]};--lines:{len(chunk)}">{"".join(lines[n] for n in chunk)}</span>'
            for chunk in chunks
        )
        if folded and len(numbers) >= _LONG:
            part = stage.origins[numbers[0]].shared
            body = f"<details><summary>{escape(part)}, {len(numbers)} lines</summary>{body}</details>"
        yield body


def _write_line_html(html: str, origin: Origin, note: object, path_count: int) -> str:
    said = "" if note is None else f' data-n="{escape(str(note))}"'
    if len(origin.instructions) == path_count > 1:  # all paths
        return f'<b data-p="*"{said}>{html}</b>'
    if origin.instructions:
        return f'<b data-p="{" ".join(map(str, origin.instructions))}"{said}>{html}</b>'
    return f'<b title="{escape(origin.shared)}"{said}>{html}</b>'


# What each column shows of a path, and how it writes it; a column of nothing is left out.
_BARS: dict[str, tuple[Callable[[PathExplanation], float | None], Callable[[float], str]]] = {
    "FLOP per row": (lambda p: p.flops, lambda value: f"{value:,.0f}"),
    "bytes per row": (lambda p: p.bytes, lambda value: f"{value:,.0f}"),
    "time alone": (lambda p: p.seconds, duration),
}


def draw_cost_bars(explanation: Explanation) -> str:
    """An HTML table of paths with bars of costs."""
    shown = {
        name: (value, text)
        for name, (value, text) in _BARS.items()
        if any(value(path) is not None for path in explanation.paths)
    }
    if not shown:
        return ""
    most = {name: max(value(path) or 0 for path in explanation.paths) or 1 for name, (value, _) in shown.items()}
    head = "".join(f"<th>{name}</th>" for name in ("path", "couples", *shown))
    rows = []
    for path in explanation.paths:
        cells = "".join(
            f'<td><s style="width:{100 * (value(path) or 0) / most[name]:.0f}%"></s>'
            f"<span>{text(value(path) or 0)}</span></td>"
            for name, (value, text) in shown.items()
        )
        rows.append(
            f'<tr data-p="{path.index}" style="{css_properties(path.index)}"><td><em>{path.index}</em></td>'
            f"<td>{escape(path.couples)}</td>{cells}</tr>"
        )
    return f'<table id="bars"><tr>{head}</tr>{"".join(rows)}</table>'


# The first that a token is in names its class; most tokens (names, signs) have none, which keeps the page small.
_CLASSES: dict[_TokenType, str] = {
    Comment.Preproc: "k",
    Comment: "c",
    Keyword: "k",
    Number: "m",
    String: "s",
    Name.Function: "f",
    Name.Builtin: "f",
}


def highlight_lines(text: str, language: str) -> list[str]:
    """Highlight source text: each line as HTML.

    >>> highlight_lines("return 1 < 2", "python")
    ['<i class=k>return</i> <i class=m>1</i> &lt; <i class=m>2</i>']
    """
    if language == "text":
        return [escape(line, quote=False) for line in text.split("\n")]
    lines, last = [""], ""
    for kind, value in get_lexer_by_name(language, stripnl=False, ensurenl=False).get_tokens(text):
        name = next((css for token, css in _CLASSES.items() if kind in token), "")
        for n, part in enumerate(value.split("\n")):
            if n:
                lines.append("")
                last = ""
            shown = escape(part, quote=False)
            if name and name == last:
                lines[-1] = lines[-1].removesuffix("</i>") + f"{shown}</i>"
            else:
                lines[-1] += f"<i class={name}>{shown}</i>" if name and part else shown
            last = name if part else last
    return lines


# A kernel's graph is one call, so its graph panes show the same product as this strategy writes it.
READABLE = "einsum"
_GRAPHS = ("plan", "form", "graph", "code", "script", "joint")
_KERNELS = ("sweep", "placement", "cpp", "cpp_backward", "cuda", "cuda_backward", "ptx")
_ON_DEVICE = ("sweep", "placement", "cpp", "cpp_backward")  # kernels for a GPU can be written anywhere
_NO_INDUCTOR = "left out; --inductor (inductor=True) adds it, for which it compiles for seconds"


def make_product_sheet(
    subject: Inspected, rows: int, measure: bool, inductor: bool, **options: Unpack[ExplainedOptions]
) -> ProductSheet:
    """Make the explorer's section on a product, linear layer, polynomial or plan."""
    asked: dict[str, Any] = {name: value for name, value in options.items() if name not in ("ceilings", "nodes", "gpu")}
    request = replace(resolve_request(subject, **asked), rows=rows)
    found = explain(subject, rows=rows, measure=measure, **options)
    panes = _make_stage_panes(request, inductor)
    written = f"{found.strategy}: {found.reason}; {found.dtype}, {found.device}, {found.backend}"
    machine = {"strategy": written, **describe_product_totals(found)}.items()
    paths = [{"index": path.index, "facts": _describe_path_facts(path)} for path in found.paths]
    data = {"paths": paths, "costliest": _costliest_path_index(found), "noun": found.noun}
    parts = {
        "digest": found.digest,
        "tabs": "".join(map(_write_tab_html, panes)),
        "panes": "".join(_write_pane_html(pane, len(paths)) for pane in panes),
        "diagram": draw_path_map(request.plan.map, interactive=True),
        "machine": f"<dl>{''.join(f'<dt>{escape(k)}</dt><dd>{escape(v)}</dd>' for k, v in machine)}</dl>",
        "bars": draw_cost_bars(found),
        "roofline": draw_roofline_svg(found, interactive=True),
        "data": json.dumps(data).replace("</", "<\\/"),
    }
    return ProductSheet(f"{found.product}: {found.strategy}, {len(found.paths)} {found.noun}s", parts)


def _make_stage_panes(request: Request, inductor: bool) -> list[_StagePane]:
    # graphs in the strategy asked for, or a readable one where that is one call; kernels wherever there can be any
    readable = replace(request, strategy=READABLE) if request.strategy == "kernel" else request
    traced = {name: trace_stage(name, readable) for name in (*_GRAPHS, *(["inductor"] if inductor else []))}
    traced.setdefault("inductor", TracedStage("inductor", missing=_NO_INDUCTOR))
    notes = _costs_of_graph_nodes_by_stage(readable)
    remark = f"as strategy {readable.strategy} writes it"
    graphs = [_StagePane(s, "" if n in ("plan", "form") else remark, notes.get(n, {})) for n, s in traced.items()]
    written = replace(request, strategy="kernel")
    kernels = {name: trace_stage(name, written) for name in _KERNELS}
    reason = request.why_auto_takes_no_kernel()
    if reason:
        kernels |= {name: TracedStage(name, missing=reason) for name in _ON_DEVICE}
    return graphs + [_StagePane(stage, "as strategy kernel writes it") for stage in kernels.values()]


def _costs_of_graph_nodes_by_stage(request: Request) -> dict[str, Mapping[str, object]]:
    try:
        has_rows_of_nodes = compute_node_costs(request)
        return {
            **dict.fromkeys(("graph", "code", "script"), has_rows_of_nodes),
            "joint": compute_joint_graph_costs(trace_joint_graph_of_request(request)),
        }
    except TpgenError:
        return {}


def _costliest_path_index(explanation: Explanation) -> int | None:
    # chosen at first; times on a busy machine do not count
    timed = not (explanation.ceilings and explanation.ceilings.warning)
    largest = max(explanation.paths, key=lambda p: ((timed and p.seconds) or 0.0, p.flops), default=None)
    return largest.index if largest else None


def _describe_path_facts(path: PathExplanation) -> dict[str, str]:
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
