"""Where each line of a written stage comes from: the stages up to TorchScript.

A line serves instructions, or it belongs to a part with a name that all paths share (the broadcast of batch
dimensions, the signature of a function).  A line that is neither is *unexplained*; see `TracedStage.explained`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tpgen.compiler.backends import script
from tpgen.emitter.emit import DIRECTIONS
from tpgen.emitter.graph_writer import Provenance as NodeProvenance
from tpgen.inspection.dump import Request

# Roles of nodes that prepare operands or assemble the result for every path at once.
SHARED_ROLES = {
    "broadcast": "operands: broadcast and flattened",
    "slice": "operands: split into segments",
    "sum": "output: zeros where no path writes",
    "reshape": "output: assembled",
    "stream": "streams",
}
_ASSIGNED = re.compile(r"\s*(\w+)(?: : [^=]+)? = ")
_NAME = re.compile(r"\w+")
_TEMPORARY = re.compile(r"_\d+")


@dataclass(frozen=True)
class Origin:
    """What a line was written for: instructions, or else the name of a shared part (empty: unexplained)."""

    instructions: tuple[int, ...] = ()
    shared: str = ""

    def __bool__(self) -> bool:
        return bool(self.instructions or self.shared)

    def __str__(self) -> str:
        return ",".join(map(str, self.instructions)) or self.shared or "unexplained"


BLANK = Origin(shared="layout")


@dataclass(frozen=True)
class TracedStage:
    """One stage as lines, an origin for each; or the reason in words why there is no such stage."""

    name: str
    language: str = "text"
    lines: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    missing: str = ""

    @property
    def explained(self) -> float:
        """Share of the lines that serve instructions or belong to a named shared part."""
        return sum(map(bool, self.origins)) / len(self.origins) if self.origins else 1.0

    @property
    def traced(self) -> int:
        """Number of lines that serve instructions."""
        return sum(bool(origin.instructions) for origin in self.origins)

    @property
    def shared(self) -> tuple[str, ...]:
        """Names of the shared parts, in order."""
        return tuple(dict.fromkeys(o.shared for o in self.origins if o.shared and o != BLANK))

    def lines_of(self, instruction: int) -> tuple[int, ...]:
        """Numbers, from 1, of the lines that serve an instruction."""
        return tuple(n for n, origin in enumerate(self.origins, 1) if instruction in origin.instructions)


def traced_stage(name: str, language: str, pairs: Iterable[tuple[str, Origin]]) -> TracedStage:
    """A stage from its lines with their origins."""
    kept = list(pairs)
    origins = tuple(BLANK if not text.strip() and not origin else origin for text, origin in kept)
    return TracedStage(name, language, tuple(text for text, _ in kept), origins)


def node_origin(meta: Mapping) -> Origin:
    """The origin of an fx node that the emitter wrote."""
    found: NodeProvenance | None = meta.get("tpgen")
    if found is None:
        return Origin()
    return Origin(found.instructions) if found.instructions else Origin(shared=SHARED_ROLES.get(found.role, ""))


def merged(origins: Iterable[Origin]) -> Origin:
    """Every instruction of several origins; where there is none, the first shared part.

    >>> str(merged([Origin((2,)), Origin(shared="streams"), Origin((0, 2))]))
    '0,2'
    """
    kept = list(origins)
    instructions = tuple(sorted({i for origin in kept for i in origin.instructions}))
    return Origin(instructions) if instructions else next((o for o in kept if o), Origin())


def trace_plan(request: Request) -> TracedStage:
    """The table of the plan: a row for each path."""
    rows = {str(path.index): Origin((path.index,)) for path in request.plan.paths}
    lines, in_table = [], False
    for text in str(request.plan).split("\n"):
        first = text.split()[0] if text.split() else ""
        origin = rows.get(first, Origin()) if in_table else Origin()
        lines.append((text, origin or Origin(shared="title, header and totals")))
        in_table = (in_table and bool(first)) or first == "path"
    return traced_stage("plan", "text", lines)


def trace_form(request: Request) -> TracedStage:
    """The multilinear form: one einsum for each path."""
    head, *terms = str(DIRECTIONS[request.direction](request.plan, request.layout)).split("\n")
    pairs = [(head, Origin(shared="signature"))]
    for text in terms:
        found = re.match(r"\s*path (\d+):", text)
        pairs.append((text, Origin((int(found[1]),)) if found else Origin()))
    return traced_stage("form", "text", pairs)


def trace_graph(request: Request) -> TracedStage:
    """The table of the fx graph: a line for each node."""
    emission = request.emission()
    title, header, *rows = str(emission).split("\n")
    head = [(title, Origin(shared="title")), (header, Origin(shared="title"))]
    nodes = [(text, node_origin(node.meta)) for text, node in zip(rows, emission.graph.nodes, strict=True)]
    return traced_stage("graph", "text", [*head, *nodes])


def trace_code(request: Request) -> TracedStage:
    """The fx graph as Python source."""
    emission = request.emission()
    return traced_stage("code", "python", _by_name(emission.code.strip().split("\n"), emission.graph.nodes))


def trace_script(request: Request) -> TracedStage:
    """TorchScript's code of the program."""
    emission = request.emission()
    scripted = script(request.module(emission))
    return traced_stage("script", "python", _by_name(scripted.code.strip().split("\n"), emission.graph.nodes))


def _by_name(lines: list[str], nodes: Iterable) -> list[tuple[str, Origin]]:
    """Lines of Python by the node whose name they assign.

    TorchScript keeps the names.  A temporary (``_0``) belongs to the line that reads it; what has no line of its own
    was written into the return.
    """
    given = {node.name: node for node in nodes}
    assigned = [found[1] if (found := _ASSIGNED.match(text)) else "" for text in lines]
    inlined = [node_origin(n.meta) for name, n in given.items() if n.op.startswith("call") and name not in assigned]
    origins: list[Origin] = []
    for text, name in zip(lines, assigned, strict=True):
        if name in given:
            origins.append(node_origin(given[name].meta))
        elif text.strip().startswith("return "):
            origins.append(merged([*inlined, Origin(shared=SHARED_ROLES["reshape"])]))
        elif _TEMPORARY.fullmatch(name):
            origins.append(Origin())
        else:
            origins.append(Origin(shared="signature"))
    for n in reversed(range(len(lines))):
        if not origins[n]:  # readers stand below
            readers = [m for m in range(n + 1, len(lines)) if assigned[n] in _NAME.findall(lines[m])]
            origins[n] = merged(origins[m] for m in readers)
    return list(zip(lines, origins, strict=True))
