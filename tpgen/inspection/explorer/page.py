"""Write the page: a template, its style and its script from the package, and what was found about a product."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from typing_extensions import Unpack

from tpgen.errors import TpgenError
from tpgen.inspection.costs.explain import ExplainedOptions, Explanation, PathExplanation, explain_product
from tpgen.inspection.costs.explain_text import totals
from tpgen.inspection.explorer.drawing import bars, diagram, roofline
from tpgen.inspection.explorer.highlight import highlighted
from tpgen.inspection.stages.origins import Origin, TracedStage
from tpgen.inspection.stages.provenance import provenance
from tpgen.inspection.subject import Subject, request_of
from tpgen.kernels.operators.targets import kernel_supported
from tpgen.text import duration

# A kernel's graph is one call, so its graph panes show the same product as this strategy writes it.
READABLE = "einsum"
_TITLES = {
    "plan": "plan",
    "form": "form",
    "graph": "fx graph",
    "code": "code",
    "script": "TorchScript",
    "joint": "joint graph",
    "inductor": "Inductor",
    "sweep": "sweep",
    "cpp": "C++",
    "cpp_backward": "C++ backward",
}
_OPEN = ("code", "joint", "cpp")  # beside the costs, open at first
_CHUNK = 64  # lines that a browser lays out together, once they come into view
_NO_INDUCTOR = "left out; --inductor (inductor=True) adds it, for which it compiles for seconds"


@dataclass(frozen=True)
class Pane:
    """A stage on the page, and a remark beside its title."""

    stage: TracedStage
    remark: str


def write_explorer(
    subject: Subject,
    path: str | Path,
    *,
    rows: int = 1000,
    measure: bool = False,
    inductor: bool = False,
    **options: Unpack[ExplainedOptions],
) -> Path:
    """Write the explorer of a product or a plan into one HTML file, and return its path.

    ``measure`` runs the product and each path alone; ``inductor`` adds its output, for which it compiles for seconds.
    ``options`` are those of `tpgen.inspection.costs.explain.explain`.  A stage that cannot be had is on the page with
    the reason.
    """
    path = Path(path)
    if path.is_dir():
        raise TpgenError(
            f"the explorer is one file and {str(path)!r} is a folder: name a file in it, like explorer.html"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(explorer_page(subject, rows, measure, inductor, **options), encoding="utf-8")
    return path


def explorer_page(
    subject: Subject,
    rows: int = 1000,
    measure: bool = False,
    inductor: bool = False,
    **options: Unpack[ExplainedOptions],
) -> str:
    """The page as text; see `write_explorer`."""
    found = explain_product(subject, rows=rows, measure=measure, **options)
    asked: dict[str, Any] = {name: value for name, value in options.items() if name not in ("ceilings", "nodes")}
    panes = _panes(subject, inductor, asked)
    opened = [pane.stage.name for pane in panes if pane.stage.name in _OPEN and not pane.stage.missing]
    here = files("tpgen.inspection.explorer")
    return Template(here.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"{found.product}: {found.strategy}, {len(found.paths)} paths"),
        digest=found.digest,
        css=here.joinpath("explorer.css").read_text(encoding="utf-8"),
        script=here.joinpath("explorer.js").read_text(encoding="utf-8"),
        tabs="".join(_tab(pane, pane.stage.name in opened) for pane in panes),
        panes="".join(_pane(pane, pane.stage.name in opened, len(found.paths)) for pane in panes),
        diagram=diagram(request_of(subject, **asked).plan),
        machine=_machine(found),
        bars=bars(found),
        roofline=roofline(found),
        data=json.dumps({"paths": [_facts(p) for p in found.paths], "costliest": _costliest(found)}).replace(
            "</", "<\\/"
        ),
    )


def _panes(subject: Subject, inductor: bool, options: dict[str, Any]) -> list[Pane]:
    """Graphs in the strategy asked for, or a readable one where that is one call; C++ wherever there can be any."""
    request = request_of(subject, **options)
    strategy = READABLE if request.strategy == "kernel" else request.strategy
    graphs = ["plan", "form", "graph", "code", "script", "joint", *(["inductor"] if inductor else [])]
    traced = dict(provenance(subject, graphs, **{**options, "strategy": strategy}).stages)
    traced.setdefault("inductor", TracedStage("inductor", missing=_NO_INDUCTOR))
    kernels = provenance(subject, ["sweep", "cpp", "cpp_backward"], **{**options, "strategy": "kernel"}).stages
    panes = []
    for stage in (*traced.values(), *kernels.values()):
        own = stage.name in kernels
        written = "kernel" if own else strategy
        remark = "" if stage.name in ("plan", "form") else f"as strategy {written} writes it"
        reason = kernel_supported(request.plan, request.layout, request.dtype, request.device) if own else None
        panes.append(Pane(TracedStage(stage.name, missing=reason) if reason else stage, remark))
    return panes


def _tab(pane: Pane, opened: bool) -> str:
    name, missing = pane.stage.name, ' class="missing"' if pane.stage.missing else ""
    title = escape(pane.stage.missing or pane.remark)
    return (
        f'<button data-pane="pane-{name}" aria-pressed="{str(opened).lower()}" title="{title}"{missing}>'
        f"{_TITLES[name]}</button>"
    )


def _pane(pane: Pane, opened: bool, paths: int) -> str:
    stage = pane.stage
    if stage.missing:
        body = f'<span class="missing-reason">{escape(stage.missing)}</span>'
    else:
        html = highlighted("\n".join(stage.lines), stage.language)
        lines = [_line(text, origin, paths) for text, origin in zip(html, stage.origins, strict=True)]
        body = "".join(_chunk(lines[n : n + _CHUNK], n) for n in range(0, len(lines), _CHUNK))
    return (
        f'<section class="pane" id="pane-{stage.name}"{"" if opened else " hidden"}><h2>{_TITLES[stage.name]}'
        f'<span>{escape(pane.remark)}</span><output></output></h2><pre class="code">{body}</pre></section>'
    )


def _chunk(lines: list[str], first: int) -> str:
    """Some lines, with the number of the first: a browser skips chunks out of view, so large pages open fast."""
    return f'<span style="--from:{first};--lines:{len(lines)}">{"".join(lines)}</span>'


def _line(html: str, origin: Origin, paths: int) -> str:
    """A line with the paths it serves; ``*`` stands for all of them."""
    if len(origin.instructions) == paths > 1:
        return f'<b data-p="*">{html}</b>'
    if origin.instructions:
        return f'<b data-p="{" ".join(map(str, origin.instructions))}">{html}</b>'
    return f'<b title="{escape(origin.shared)}">{html}</b>'


def _costliest(found: Explanation) -> int | None:
    """The path that takes the most time, or the most operations where no time was measured: chosen at the start."""
    largest = max(found.paths, key=lambda p: (p.seconds or 0.0, p.flops), default=None)
    return largest.index if largest else None


def _facts(path: PathExplanation) -> dict:
    """What the page says about a chosen path."""
    weight = f"{path.weight[0]}:{path.weight[1]} as {'×'.join(map(str, path.weight_shape))}" if path.weight else "none"
    facts = {
        "couples": f"{path.in1} x {path.in2} → {path.out}, mode {path.mode}",
        "weights": weight,
        "coefficient": f"{path.coefficient:.6g} = "
        + " × ".join(f"{value:.4g} ({name})" for name, value in path.factors.items()),
        "coupling": f"{path.nonzeros} of {path.dense} entries, {100 * path.density:.0f} %",
        "per row": f"{path.flops:,} FLOP, {path.bytes:,} bytes",
        "written as": f"{path.strategy}: {path.how}",
    }
    if path.seconds is not None:
        facts["alone"] = f"{duration(path.seconds)} for the batch"
    return {"index": path.index, "facts": facts}


def _machine(found: Explanation) -> str:
    """The head and the totals of the explanation, as a list."""
    written = f"{found.strategy}: {found.reason}; {found.dtype}, {found.device}, {found.backend}"
    facts = {"strategy": written, **totals(found)}
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items()) + "</dl>"
