"""Query `torch.compile` about a module; some queries reset Dynamo."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tpgen.base import _torch
from tpgen.compiler.backends import compile_program
from tpgen.compiler.config import Config

Module = Callable[..., Any]
_ADDRESS = re.compile(r"(?<![\d.])\d{9,}\b")  # ids of objects, which differ in every process


@dataclass(frozen=True)
class _CountedGraph:
    operations: int
    code: str


@dataclass(frozen=True)
class _GraphBreak:
    reason: str
    where: tuple[str, ...]  # frames, the innermost last


@dataclass(frozen=True)
class Guard:
    """Condition for reusing a compiled graph."""

    source: str
    kinds: tuple[str, ...]
    checks: tuple[str, ...]


@dataclass(frozen=True)
class Capture:
    """Dynamo's graphs, graph breaks and guards of one call."""

    graphs: tuple[_CountedGraph, ...]
    breaks: tuple[_GraphBreak, ...]
    guards: tuple[Guard, ...]
    programs: tuple[Any, ...] = field(default=(), repr=False, compare=False)  # the graphs as modules of torch's


@dataclass(frozen=True)
class Compilation:
    """A compilation by `torch.compile`; ``reason`` is the failed guard, empty at first."""

    call: int
    function: str
    reason: str


def capture_graphs(module: Module, inputs: Sequence[Any]) -> Capture:
    """Dynamo's graphs, breaks and guards of one call.

    >>> found = capture_graphs(torch.nn.ReLU(), [torch.zeros(2)])
    >>> len(found.graphs), found.breaks
    (1, ())
    """
    found = _torch.dynamo_explain(module)(*inputs)
    graphs = tuple(
        _CountedGraph(len(operations), graph.print_readable(print_output=False).strip())
        for graph, operations in zip(found.graphs, found.ops_per_graph or [], strict=True)
    )
    breaks = tuple(
        _GraphBreak(_cut_advice_from_break_reason(b.reason), tuple(_describe_stack_frame(f) for f in b.user_stack))
        for b in found.break_reasons
    )
    guards = dict.fromkeys(
        Guard(g.name, tuple(g.guard_types), tuple(_without_object_ids(c) for c in g.code_list))
        for g in found.out_guards or []
        if g.guard_types and g.code_list
    )
    return Capture(graphs, breaks, tuple(guards), tuple(found.graphs))


def list_recompilations(
    module: Module, calls: Iterable[Sequence[Any]], dynamic: bool | None
) -> tuple[Compilation, ...]:
    """Compilations that calls trigger, each with the failed guard.

    >>> relu = torch.nn.ReLU()
    >>> [c.call for c in list_recompilations(relu, [[torch.zeros(n)] for n in (2, 3, 4)], dynamic=None)]
    [0, 1]
    """
    torch.compiler.reset()
    run = compile_program(module, Config(backend="aot_eager", dynamic=dynamic))  # type: ignore[arg-type]
    found = []
    for number, inputs in enumerate(calls):
        _torch.clear_compilations()
        run(*inputs)
        found += [
            Compilation(number, f"{m.co_name}", _extract_failed_guard(m.recompile_reason))
            for m in _torch.compilations()
            if m.co_name is not None and m.is_forward is not False
        ]
    torch.compiler.reset()
    return tuple(found)


def collect_inductor_sources(
    module: Module, inputs: Sequence[Any], step: Callable[[Module, Sequence[Any]], Any]
) -> list[str]:
    """Inductor's sources for ``step`` with the compiled module, per graph and direction."""
    torch.compiler.reset()
    run = compile_program(module, Config(backend="inductor"))  # type: ignore[arg-type]
    _, sources = _torch.run_and_get_code(step, run, inputs)
    torch.compiler.reset()
    return [source.strip() for source in sources]


def _describe_stack_frame(frame: Any) -> str:
    line = (frame.line or "").strip() or "source not available"
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}: {line}"


def _cut_advice_from_break_reason(reason: str) -> str:
    lines = [line.rstrip() for line in reason.strip().splitlines() if line.strip()]
    kept = [
        line for line in lines if not line.lstrip().startswith(("For more details", "Developer debug", "User code"))
    ]
    return "\n".join(kept)


def _extract_failed_guard(reason: str | None) -> str:
    # Dynamo's text starts with the number of the compilation and ends with advice
    if not reason:
        return ""
    first = reason.splitlines()[0]
    return _without_object_ids(
        re.sub(r"^\d+/\d+(_\d+)?: ", "", first).split(" (user code shown")[0].split("  # ")[0].strip()
    )


def _without_object_ids(check: str) -> str:
    return _ADDRESS.sub("…", check)
