"""Origins of lines, up to TorchScript."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch import fx

from tpgen.emitter.graph_writer import NodeOrigin
from tpgen.tools.inspection.stages.request import Request

# Roles of nodes that prepare operands or assemble the result, where no path reads them or writes what they join.
SHARED_ROLES = {
    "broadcast": "operands: broadcast and flattened",
    "gather": "operands: rows that an index selects",
    "scatter": "output: rows summed where an index says",
    "slice": "operands: split into segments",
    "sum": "output: zeros where no path writes",
    "reshape": "output: assembled",
    "stream": "streams",
}
_FRAMING = ("broadcast", "slice", "reshape")
_ENDS = ("placeholder", "output")
_SIGNATURE = "signature"
_ASSIGNED = re.compile(r"\s*(\w+)(?: : [^=]+)? = ")
_NAME = re.compile(r"\w+")
# A head of a function, also over several lines as TorchScript writes it, and what fx declares above it.
_HEAD = re.compile(
    r"def forward\(|torch\.fx\._symbolic_trace\.wrap\(|\s+\w+: (Optional\[)?Tensor\]?(,|\) -> [\w\[\], ]+:)$"
)


@dataclass(frozen=True)
class Origin:
    """Product instructions that a line serves, or a named part that all paths share."""

    instructions: tuple[int, ...] = ()
    shared: str = ""

    def __bool__(self) -> bool:
        return bool(self.instructions or self.shared)

    def __str__(self) -> str:
        return ",".join(map(str, self.instructions)) or self.shared or "unexplained"


BLANK = Origin(shared="layout")


@dataclass(frozen=True)
class TracedStage:
    """A stage's lines with origins; or ``missing``, the reason for no stage."""

    name: str
    language: str = "text"
    lines: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    missing: str = ""

    @property
    def explained(self) -> float:
        """Share of lines with an origin."""
        return sum(map(bool, self.origins)) / len(self.origins) if self.origins else 1.0

    @property
    def traced(self) -> int:
        """Number of lines that serve instructions."""
        return sum(bool(origin.instructions) for origin in self.origins)

    @property
    def shared(self) -> tuple[str, ...]:
        """Names of shared parts, in order."""
        return tuple(dict.fromkeys(o.shared for o in self.origins if o.shared and o != BLANK))

    def lines_of(self, instruction: int) -> tuple[int, ...]:
        """Numbers (from 1) of lines that serve an instruction."""
        return tuple(n for n, origin in enumerate(self.origins, 1) if instruction in origin.instructions)


def pair_lines_with_origins(lines: Iterable[tuple[str, tuple[int, ...]]], shared: str) -> list[tuple[str, Origin]]:
    """Pair lines with origins: instructions, else the part ``shared``."""
    return [(text, Origin(paths, "" if paths else shared)) for text, paths in lines]


def find_node_origins(graph: fx.Graph) -> dict[fx.Node, Origin]:
    """Product instructions that each node of an emitted graph serves."""
    written: dict[fx.Node, NodeOrigin] = {n: n.meta["tpgen"] for n in graph.nodes if "tpgen" in n.meta}
    served = {n: set(written[n].instructions if n in written else ()) for n in graph.nodes}
    # a node that prepares operands serves its readers' paths; one that assembles the output, its inputs' paths
    framing = [n for n, o in written.items() if not served[n] and n.op not in _ENDS and o.role in _FRAMING]
    for node in reversed(framing):
        served[node].update(*(served[reader] for reader in node.users))
    for node in framing:
        if not served[node]:  # nothing but the output reads it
            served[node].update(*(served[source] for source in node.all_input_nodes))
    shared = {n: _SIGNATURE if n.op in _ENDS else SHARED_ROLES.get(o.role, "") for n, o in written.items()}
    return {n: Origin(tuple(sorted(paths)), "" if paths else shared.get(n, "")) for n, paths in served.items()}


def merge_origins(origins: Iterable[Origin]) -> Origin:
    """Merge origins: all instructions, else the first shared part.

    >>> str(merge_origins([Origin((2,)), Origin(shared="streams"), Origin((0, 2))]))
    '0,2'
    """
    kept = list(origins)
    instructions = tuple(sorted({i for origin in kept for i in origin.instructions}))
    return Origin(instructions) if instructions else next((o for o in kept if o), Origin())


TracedLines = Iterable[tuple[str, Origin]]


def trace_plan_lines(request: Request) -> TracedLines:
    """Pair lines of the plan's table with product instructions."""
    whole = Origin(shared="title, header and totals")
    found = request.plan.lines()
    return [(text, BLANK if not text else whole if path is None else Origin((path,))) for text, path in found]


def trace_form_lines(request: Request) -> TracedLines:
    """Pair lines of the multilinear form with product instructions."""
    return pair_lines_with_origins(request.form_lines, _SIGNATURE)


def trace_graph_lines(request: Request) -> TracedLines:
    """Pair lines of the fx graph's table with product instructions."""
    emission = request.emit_program()
    title, header, *rows = str(emission).split("\n")
    head = [(title, Origin(shared="title")), (header, Origin(shared="title"))]
    return [*head, *zip(rows, find_node_origins(emission.graph).values(), strict=True)]


def trace_code_lines(request: Request) -> TracedLines:
    """Pair lines of the fx graph's Python source with product instructions."""
    emission = request.emit_program()
    return _pair_python_lines_with_origins(emission.code, emission.graph)


def trace_script_lines(request: Request) -> TracedLines:
    """Pair lines of TorchScript's code with product instructions."""
    emission = request.emit_program()
    return _pair_python_lines_with_origins(request.scripted(emission).code, emission.graph)


def _pair_python_lines_with_origins(code: str, graph: fx.Graph) -> list[tuple[str, Origin]]:
    # a line has the origin of the node whose name the line assigns
    lines = code.strip().split("\n")
    given = {node.name: (node, origin) for node, origin in find_node_origins(graph).items()}
    assigned = [found[1] if (found := _ASSIGNED.match(text)) else "" for text in lines]
    inlined = [origin for name, (node, origin) in given.items() if node.op.startswith("call") and name not in assigned]
    origins: list[Origin] = []
    for text, name in zip(lines, assigned, strict=True):
        if name in given:
            origins.append(given[name][1])
        elif text.strip().startswith("return "):
            origins.append(merge_origins([*inlined, Origin(shared=_SIGNATURE)]))
        else:
            origins.append(Origin(shared=_SIGNATURE) if _HEAD.match(text) else Origin())
    for n in reversed(range(len(lines))):
        if not origins[n] and assigned[n]:  # readers stand below
            readers = [m for m in range(n + 1, len(lines)) if assigned[n] in _NAME.findall(lines[m])]
            origins[n] = merge_origins(origins[m] for m in readers)
    return list(zip(lines, origins, strict=True))
