"""Origins of compiled stages' lines."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import fx

from tpgen.base import _torch
from tpgen.base.errors import EmitError
from tpgen.base.remember import remembered
from tpgen.tools.inspection.stages.cuda import compile_to_ptx
from tpgen.tools.inspection.stages.dump import STAGES, draw_example_arguments
from tpgen.tools.inspection.stages.origins import (
    Origin,
    TracedLines,
    find_node_origins,
    merge_origins,
    pair_lines_with_origins,
)
from tpgen.tools.inspection.stages.request import Request

_ACCUMULATED = "gradients: summed where an operand is read more than once"


def trace_joint_lines(request: Request) -> TracedLines:
    """Pair lines of AOTAutograd's joint graph with product instructions."""
    graph = trace_joint_graph_of_request(request)
    origins: dict[fx.Node, Origin] = {}
    pairs = []
    for node in graph.nodes:
        origins[node] = _find_origin_of_joint_node(node, origins)
        pairs.append((_write_node_as_assignment(node), origins[node]))
    return pairs


@remembered("joint graphs of products", entries=2)
def trace_joint_graph_of_request(request: Request) -> fx.Graph:
    """Trace a program's joint forward-backward graph by AOTAutograd."""
    # imported here: it takes a second, and only this stage needs it
    from torch.fx.traceback import preserve_node_meta

    emission = request.emit_program()
    module = request.module(emission)
    # AOTAutograd copies meta["custom"] to the nodes of the joint graph, gradients included
    for node, origin in find_node_origins(module.graph).items():
        node.meta["custom"] = {"tpgen": origin}

    arguments = draw_example_arguments(request, emission.arguments)
    numbers = [x for x in arguments if not isinstance(x, torch.Tensor)]

    def interpret_module(*tensors: torch.Tensor) -> tuple[torch.Tensor]:
        # a copy: the result must not be a view of what the program holds
        return (fx.Interpreter(module).run(*tensors, *numbers).clone(),)

    mode = _torch.FakeTensorMode(allow_non_fake_inputs=True)
    tensors = [mode.from_tensor(x) for x in arguments if isinstance(x, torch.Tensor)]
    given = [x.requires_grad_(x.is_floating_point()) for x in tensors]
    with preserve_node_meta(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported: Any = _torch.export_joint(interpret_module, tuple(given), trace_joint=True)
    return exported.graph


def _find_origin_of_joint_node(node: fx.Node, known_origins: dict[fx.Node, Origin]) -> Origin:
    if node.op in ("placeholder", "output"):
        return Origin(shared="signature")
    found = node.meta.get("custom", {}).get("tpgen")
    if found is not None:
        return found
    if "backward" in str(node.meta.get("partitioner_tag")):
        return merge_origins([*(known_origins[n] for n in node.all_input_nodes), Origin(shared=_ACCUMULATED)])
    # the copy that `trace_joint_graph_of_request` makes of the result; a further one would be unexplained
    return Origin(shared="output: assembled") if node.target is torch.ops.aten.clone.default else Origin()


def _write_node_as_assignment(node: fx.Node) -> str:
    # fx's own format takes three times the room
    if node.op == "output":
        return f"return {node.args[0]}"
    if node.op in ("placeholder", "get_attr"):
        return f"{node.name} = {node.op}"
    # an operator of torch says more of itself (aten.mul.Tensor) than its name does
    target = str(node.target) if hasattr(node.target, "overloadpacket") else getattr(node.target, "__name__", "?")
    arguments = [*map(str, node.args), *(f"{key}={value}" for key, value in node.kwargs.items())]
    return f"{node.name} = {target}({', '.join(arguments)})"


_SOURCE_NODES = re.compile(r"Source Nodes: \[(.*?)\]")
_CALLED = re.compile(r"\b((?:cpp|triton)_\w+)\(|extern_kernels\.")
_DEFINED = re.compile(r"^((?:cpp|triton)_\w+) = ")
_TOP = re.compile(
    r"(class |def |import |from |async_compile\b|del async_compile|if __name__ == |\w+(, \w+)* = (?!async_compile\.)"
    r"|#|\s*$)"
)
_QUOTES = re.compile(r"'''|\"\"\"")
_RUNNER = Origin(shared="Inductor: imports, buffers and runner")


def trace_inductor_lines(request: Request) -> TracedLines:
    """Pair lines of Inductor's code with product instructions."""
    nodes = {node.name: node for node in request.emit_program().graph.nodes}
    with _record_source_comments_by_kernel() as comments:
        text = STAGES["inductor"].write(request)
    kernels = {name: _find_origin_in_inductor_comment(comment, nodes) for name, comment in comments.items()}
    pairs: list[tuple[str, Origin]] = []
    above = current = Origin()
    quoted = False
    for line in text.split("\n"):
        if found := _DEFINED.match(line):
            current = kernels.get(found[1], Origin())
        elif not quoted and not line[:1].isspace():
            current = _RUNNER if _TOP.match(line) else Origin()
        called = _CALLED.search(line) if not found and not quoted else None
        own = _find_origin_in_inductor_comment(line, nodes)
        origin = (above or kernels.get(called[1] or "", Origin())) if called else own or current
        pairs.append((line, origin))
        above = own
        quoted ^= len(_QUOTES.findall(line)) % 2 == 1
    return pairs


def _find_origin_in_inductor_comment(text: str, nodes: dict[str, fx.Node]) -> Origin:
    named = [nodes[n] for found in _SOURCE_NODES.findall(text) for n in found.split(", ") if n in nodes]
    own = [node for node in named if node.meta["tpgen"].instructions]  # and not what assembles the output
    # without nodes that only feed other named nodes
    return merge_origins(Origin(node.meta["tpgen"].instructions) for node in own if not set(node.users) & set(own))


@contextmanager
def _record_source_comments_by_kernel() -> Iterator[dict[str, str]]:
    # by C++ kernel: on a CPU Inductor writes no comment on source nodes
    found: dict[str, str] = {}
    internals: list[Any] = [
        getattr(_torch, name, None)
        for name in ("CppScheduling", "inductor_config", "inductor_graph", "kernel_metadata")
    ]
    if None in internals:  # another version of torch
        yield found
        return
    scheduling, config, virtual, metadata = internals
    define = scheduling.define_kernel

    def define_kernel_and_record(self: Any, source: str, nodes: Any, *arguments: Any, **keywords: Any) -> str:
        name = define(self, source, nodes, *arguments, **keywords)
        found[name] = f"{found.get(name, '')} {metadata(nodes, virtual.graph.wrapper_code)[0]}"
        return name

    # code from its cache would name nothing
    with patch.object(scheduling, "define_kernel", define_kernel_and_record), config.patch(fx_graph_cache=False):
        yield found


def trace_kernel_lines(request: Request, language: str, direction: str) -> TracedLines:
    """Pair lines of a kernel's C++ or CUDA with product instructions."""
    on_gpu = language == "cuda"
    _check_kernel_exists(request, on_device=not on_gpu)
    asked = replace(request, direction=direction)
    source = asked.cuda.source if on_gpu else asked.cpp
    lines = zip(source.text.rstrip("\n").split("\n"), source.line_paths, source.line_parts, strict=True)
    return [(text, Origin(paths, "" if paths else request.shared or part)) for text, paths, part in lines]


_AT = re.compile(r"\s*\.loc\s+\d+\s+(\d+)")


def trace_ptx_lines(request: Request) -> TracedLines:
    """Pair lines of PTX with product instructions."""
    origins, origin = [origin for _, origin in trace_kernel_lines(request, "cuda", request.direction)], _PTX
    pairs = []
    for line in compile_to_ptx(request.cuda, numbered=True).split("\n"):
        if found := _AT.match(line):
            origin = origins[int(found[1]) - 1]
        elif not line.startswith("\t"):  # a label, or what stands between two functions
            pairs.append((line, _PTX))
        elif line.strip():
            pairs.append((line, _PTX if line.startswith("\t.") else origin))
    return pairs


_PTX = Origin(shared="PTX: declarations, labels and debug sections")


def trace_sweep_lines(request: Request) -> TracedLines:
    """Pair lines of a kernel's statements with product instructions."""
    _check_kernel_exists(request)
    return pair_lines_with_origins(request.sweep_lines, "title")


def trace_placement_lines(request: Request) -> TracedLines:
    """Pair lines of a kernel's vectors, blocks and scratch with product instructions."""
    _check_kernel_exists(request)
    return pair_lines_with_origins(request.placement_lines, "vectors, blocks, scratch")


def _check_kernel_exists(request: Request, on_device: bool = True) -> None:
    if request.strategy != "kernel":
        why = f"strategy {request.strategy!r} runs as a graph and has no generated C++; ask for strategy='kernel'"
    elif request.direction != "forward":
        why = "kernels are written for the product and for all its gradients at once: ask for direction='forward'"
    elif not request.plan.paths:
        why = "the product has no paths, so there is nothing to write a kernel for"
    else:
        why = (request.why_auto_takes_no_kernel() or "") if on_device else ""
    if why:
        raise EmitError(why)
