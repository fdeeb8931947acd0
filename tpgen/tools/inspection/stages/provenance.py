"""Provenance: instructions of lines, lines of instructions.

>>> from tpgen.planner.presets import channelwise
>>> found = provenance(channelwise("8x0e+8x1o", "0e+1o", "0e+1o"), strategy="einsum", stages=["form", "graph"])
>>> found.trace_back("form", 3)
(1,)
>>> found.trace_forward(1)["form"]
(3,)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial

from typing_extensions import Unpack

from tpgen.base.errors import EmitError, TpgenError, check_known
from tpgen.compiler.config import DirectionOptions
from tpgen.planner.plan import Plan
from tpgen.tools.inspection.stages.calls import Inspected, resolve_request
from tpgen.tools.inspection.stages.compiled_origins import (
    trace_inductor_lines,
    trace_joint_lines,
    trace_kernel_lines,
    trace_placement_lines,
    trace_ptx_lines,
    trace_sweep_lines,
)
from tpgen.tools.inspection.stages.origins import (
    BLANK,
    TracedLines,
    TracedStage,
    trace_code_lines,
    trace_form_lines,
    trace_graph_lines,
    trace_plan_lines,
    trace_script_lines,
)
from tpgen.tools.inspection.stages.request import GRAPHS, Request

# The language of each stage, and its lines with their origins.
TRACED_STAGES: dict[str, tuple[str, Callable[[Request], TracedLines]]] = {
    "plan": ("text", trace_plan_lines),
    "form": ("text", trace_form_lines),
    "graph": ("text", trace_graph_lines),
    "code": ("python", trace_code_lines),
    "script": ("python", trace_script_lines),
    "joint": ("python", trace_joint_lines),
    "inductor": ("python", trace_inductor_lines),
    "sweep": ("text", trace_sweep_lines),
    "placement": ("text", trace_placement_lines),
    **{
        f"{language}{suffix}": ("cpp", partial(trace_kernel_lines, language=language, direction=direction))
        for language in ("cpp", "cuda")
        for direction, suffix in (("forward", ""), ("backward", "_backward"))
    },
    "ptx": ("text", trace_ptx_lines),
}
# Inductor compiles for seconds, and NVRTC has to be there: they are left out unless asked for.
DEFAULT_STAGES = tuple(name for name in TRACED_STAGES if name not in ("inductor", "ptx"))


@dataclass(frozen=True)
class Provenance:
    """Stages of a product's code, with instructions that each line serves."""

    plan: Plan
    strategy: str
    stages: dict[str, TracedStage]

    def stage(self, name: str) -> TracedStage:
        """Stage ``name``; raises `EmitError` if unknown or not written here."""
        check_known("stage", [name], self.stages, EmitError)
        stage = self.stages[name]
        if stage.missing:
            raise EmitError(f"there is no stage {name!r} here: {stage.missing}")
        return stage

    def trace_back(self, stage: str, line: int) -> tuple[int, ...]:
        """Instructions that a line (from 1) serves; empty for a shared line."""
        origins = self.stage(stage).origins
        if not 1 <= line <= len(origins):
            raise EmitError(f"stage {stage!r} has lines 1 to {len(origins)}, not {line}")
        return origins[line - 1].instructions

    def trace_forward(self, instruction: int) -> dict[str, tuple[int, ...]]:
        """Each stage's lines (from 1) that serve an instruction."""
        if not 0 <= instruction < len(self.plan.instructions):
            raise EmitError(f"the product has instructions 0 to {len(self.plan.instructions) - 1}, not {instruction}")
        return {name: stage.lines_of(instruction) for name, stage in self.stages.items() if not stage.missing}

    def to_json(self) -> str:
        """Lines with origins as JSON."""
        stages = {
            name: {"missing": stage.missing}
            if stage.missing
            else {
                "language": stage.language,
                "lines": [{"text": t, **asdict(o)} for t, o in zip(stage.lines, stage.origins, strict=True)],
            }
            for name, stage in self.stages.items()
        }
        return json.dumps({"plan": self.plan.digest, "strategy": self.strategy, "stages": stages})

    def __str__(self) -> str:
        head = f"provenance of plan {self.plan.digest}, strategy {self.strategy}"
        rows = []
        for name, stage in self.stages.items():
            if stage.missing:
                rows.append(f"  {name:13}none: {stage.missing}")
                continue
            rows.append(
                f"  {name:13}{len(stage.lines):5} lines, {stage.traced:5} of instructions, "
                f"{100 * stage.explained:5.1f} % explained; shared: {', '.join(stage.shared) or 'nothing'}"
            )
        return "\n".join([head, *rows])


def provenance(
    subject: Inspected, stages: Iterable[str] = DEFAULT_STAGES, **options: Unpack[DirectionOptions]
) -> Provenance:
    """Pair lines of a product's generated texts with product instructions.

    Raises `EmitError` for an unknown stage, strategy or direction.
    """
    chosen = list(stages)
    check_known("stage", chosen, TRACED_STAGES, EmitError)
    request = resolve_request(subject, **options)
    check_known("direction", [request.direction], request.list_stage_directions(GRAPHS), EmitError)
    return Provenance(request.plan, request.strategy, {name: trace_stage(name, request) for name in chosen})


def trace_stage(name: str, request: Request) -> TracedStage:
    """Pair a stage's lines with product instructions, or give the reason for no stage."""
    language, lines = TRACED_STAGES[name]
    try:
        found = list(lines(request))
    except TpgenError as error:
        return TracedStage(name, missing=str(error))
    origins = tuple(BLANK if not text.strip() and not origin else origin for text, origin in found)
    return TracedStage(name, language, tuple(text for text, _ in found), origins)
