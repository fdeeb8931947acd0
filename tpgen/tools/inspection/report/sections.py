"""Sections of a compile report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from e3nn.o3 import Irrep
from torch import Tensor, nn

from tpgen.base._torch import pytree, replaced_attribute
from tpgen.base.clock import Timing, find_device, now, time_in_turns
from tpgen.base.errors import TpgenError
from tpgen.base.locks import cached_property
from tpgen.base.text import duration, quantity, table
from tpgen.compiler.backends import compile_program
from tpgen.compiler.config import Config
from tpgen.compiler.probe import Capture, capture_graphs, collect_inductor_sources, list_recompilations
from tpgen.networks.copies import copy_of
from tpgen.networks.trial import call_without_gradients, is_floating, is_index, run_forward_and_backward
from tpgen.tools.inspection.report.joint import JointGraph, trace_joint_graph, trace_joint_graph_of_captured
from tpgen.tools.inspection.report.values import describe_error

REMARK = (
    "torch.compile stops at this module with an internal error: a guard asks an irrep for its length, and e3nn's Irrep "
    "tells none. The report was made with one; outside of it, run `e3nn.o3.Irrep.__len__ = tuple.__len__` first, or "
    "compile trace_network(module), whose graph holds irreps as text"
)


def give_irreps_a_length() -> AbstractContextManager[Any]:
    """A context in which ``len(irrep)`` is 2, for Dynamo's guards.

    >>> with give_irreps_a_length():
    ...     len(Irrep("1o"))
    2
    """
    return replaced_attribute(Irrep, "__len__", lambda _: tuple.__len__)


def is_missing_irrep_length(error: BaseException) -> bool:
    """Whether an error comes from ``len(irrep)``."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code is getattr(Irrep.__len__, "__code__", None)


@dataclass(frozen=True)
class ReportSubject:
    """Module and inputs of a compile report, with captured graphs."""

    module: nn.Module
    inputs: tuple[Any, ...]
    varied: tuple[tuple[Any, ...], ...]  # further inputs, of other shapes
    inductor: bool
    repeats: int

    @cached_property
    def needs_irrep_length(self) -> bool:
        """Whether Dynamo fails at ``len(irrep)``."""
        try:
            self.captured  # noqa: B018  asked once, and kept where it could be made
        except Exception as error:  # whatever else is wrong shows up where it belongs
            return is_missing_irrep_length(error)
        return False

    @property
    def was_given_length(self) -> bool:
        """Whether captures needed `give_irreps_a_length`."""
        return self.__dict__.get("needs_irrep_length", False)  # not asked where no section compiles

    @cached_property
    def captured(self) -> Capture:
        return capture_graphs(self.module, self.inputs)

    @cached_property
    def joints(self) -> _JointGraphs:
        """Joint graph of the module, or of each captured graph."""
        try:
            return _JointGraphs({"": trace_joint_graph(self.module, self.inputs)})
        except TpgenError:
            raise
        except Exception as error:  # of many classes: what fake tensors cannot run
            why = describe_error(error)
        with give_irreps_a_length() if self.needs_irrep_length else nullcontext():
            programs = self.captured.programs
        found, without = {}, {}
        for number, program in enumerate(programs):
            try:
                found[f"graph {number}"] = trace_joint_graph_of_captured(program)
            except Exception as error:  # one graph may have no backward where the others have
                without[f"graph {number}"] = describe_error(error)
        if not found:
            raise TpgenError(why)
        return _JointGraphs(found, without, why)


@dataclass(frozen=True)
class _JointGraphs:
    graphs: dict[str, JointGraph]
    without: dict[str, str] = field(default_factory=dict)
    why: str = ""

    def split_reason_lines(self) -> list[str]:
        """Lines that say why a module has several joint graphs."""
        if not self.why:
            return []
        return [
            f"there is none of the module as a whole ({self.why}); these are of the graphs that torch.compile captures",
            *(f"{name}: {why}" for name, why in self.without.items()),
        ]


_TextAndData = tuple[str, dict[str, Any]]  # a section's text and data
ResultsAndGradients = tuple[list[Tensor], list[Tensor] | None] | None  # in float64, where there are any


def _write_backends_section(subject: ReportSubject) -> _TextAndData:
    names = ("eager", "aot_eager", *(("inductor",) if subject.inductor else ()))
    exact = _compute_float64_results(subject)
    torch.compiler.reset()
    built, missing = {}, {}
    for name in names:
        try:
            built[name] = _compile_and_check_backend(subject, name, exact)
        except Exception as error:  # one backend may fail where the others run
            missing[name] = describe_error(error)
    rows = _time_backends(subject, built)
    torch.compiler.reset()
    head = ("backend", "first step", "forward", "forward+backward", "error", "error of gradients")
    lines = [
        (
            r["backend"],
            *(duration(r[k]) for k in ("first_step_seconds", "forward_seconds", "step_seconds")),
            *("-" if r[k] is None else f"{r[k]:.1e}" for k in ("error", "gradient_error")),
        )
        for r in rows
    ]
    notes = ["errors: largest difference from the same module in float64, relative to the largest entry"]
    if any(r["step_seconds"] is None for r in rows):
        notes.append("no gradients: nothing in the result depends on a parameter or a floating input")
    failed = [f"{name} fails: {why}" for name, why in missing.items()]
    return "\n".join([table([head, *lines]), *failed, *notes]), {"backends": rows, "missing": missing}


BackendTasks = tuple[dict[str, Callable[[], Any]], dict[str, Any]]  # a backend's tasks, and what its first step showed


def _compile_and_check_backend(
    subject: ReportSubject, backend: str, float64_results: ResultsAndGradients
) -> BackendTasks:
    run = compile_program(subject.module, Config(backend=backend))
    device = find_device(subject.module, subject.inputs)
    train = partial(run_forward_and_backward, run, subject.inputs, tuple(subject.module.parameters()))
    start = now(device)
    results, gradients = train()
    first = now(device) - start
    tasks: dict[str, Callable[[], Any]] = {"forward": partial(call_without_gradients, run, subject.inputs)}
    if gradients is not None:
        tasks["step"] = train
    tasks["forward"]()  # may compile once more
    found = {
        "first_step_seconds": first,
        "error": _largest_relative_error(results, float64_results[0]) if float64_results else None,
        "gradient_error": _largest_relative_error(gradients, float64_results[1])
        if float64_results and gradients and float64_results[1]
        else None,
    }
    return tasks, found


def _time_backends(subject: ReportSubject, tasks_by_backend: dict[str, BackendTasks]) -> list[dict[str, Any]]:
    device = find_device(subject.module, subject.inputs)
    times: dict[str, dict[str, Timing]] = {}
    for task in ("forward", "step"):
        calls = {name: tasks[task] for name, (tasks, _) in tasks_by_backend.items() if task in tasks}
        times[task] = time_in_turns(calls, device, rounds=subject.repeats)
    return [
        {
            "backend": name,
            **first,
            "forward_seconds": times["forward"][name].median,
            "step_seconds": times["step"][name].median if name in times["step"] else None,
            "spread": max(found[name].spread for found in times.values() if name in found),
        }
        for name, (_, first) in tasks_by_backend.items()
    ]


def _write_graphs_section(subject: ReportSubject) -> _TextAndData:
    found = subject.captured
    parts = [f"graphs: {len(found.graphs)}, graph breaks: {len(found.breaks)}"]
    for number, graph_break in enumerate(found.breaks):
        where = "\n".join(f"    at {frame}" for frame in graph_break.where[-3:])
        parts.append(f"break {number}: {graph_break.reason}\n{where}")
    parts += [f"graph {n}, {graph.operations} operations\n{graph.code}" for n, graph in enumerate(found.graphs)]
    data = {"graphs": [asdict(g) for g in found.graphs], "breaks": [asdict(b) for b in found.breaks]}
    return "\n".join(parts), data


# others are of Python objects
_READABLE_GUARDS = {"SHAPE_ENV", "EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH", "CONSTANT_MATCH"}


def _write_guards_section(subject: ReportSubject) -> _TextAndData:
    guards = subject.captured.guards
    counts = Counter(kind for guard in guards for kind in guard.kinds)
    lines = [f"{sum(counts.values())} guards: " + ", ".join(f"{kind} {n}" for kind, n in counts.most_common())]
    for guard in guards:
        if "TENSOR_MATCH" in guard.kinds:  # its checks are in C++; the texts say only that nothing marks it as dynamic
            lines.append(f"  {guard.source}: the dtype, device, requires_grad, sizes and strides of this call")
        elif set(guard.kinds) & _READABLE_GUARDS:
            lines += [f"  {check}" for check in guard.checks]
    return "\n".join(dict.fromkeys(lines)), {"counts": dict(counts), "guards": [asdict(guard) for guard in guards]}


_NOT_VARIED = (
    "the inputs hold integers, which may be indices, so no other shapes were made of them: give some with varied=, or "
    "return them from the function that --network names"
)
_DYNAMIC: dict[str, bool | None] = {"static": False, "automatic": None, "dynamic": True}


def _write_recompilations_section(subject: ReportSubject) -> _TextAndData:
    calls = (subject.inputs, *subject.varied)
    shapes = [describe_inputs(inputs) for inputs in calls]
    parts = [f"calls with {len(calls)} shapes:", *(f"  {n}: {', '.join(shape)}" for n, shape in enumerate(shapes))]
    if not subject.varied and any(map(is_index, pytree.tree_leaves(list(subject.inputs)))):
        parts.append(f"  {_NOT_VARIED}")
    data: dict[str, Any] = {"calls": shapes}
    for name, dynamic in _DYNAMIC.items():
        found = list_recompilations(subject.module, calls, dynamic)
        parts.append(f"{name} (dynamic={dynamic}): {len(found)} compilations")
        parts += [f"  call {c.call}, {c.function}: {c.reason or 'compiled first'}" for c in found]
        data[name] = [asdict(c) for c in found]
    return "\n".join(parts), data


def _write_joint_graph_section(subject: ReportSubject) -> _TextAndData:
    joints = subject.joints
    parts = joints.split_reason_lines()
    for name, joint in joints.graphs.items():
        parts.append(f"{f'{name}: ' if name else ''}{joint.operations} operations\n{joint.code}")
    graphs = [{"name": name, "operations": each.operations, "code": each.code} for name, each in joints.graphs.items()]
    data = {
        "operations": sum(joint.operations for joint in joints.graphs.values()),
        "code": "\n\n".join(joint.code for joint in joints.graphs.values()),
        "graphs": graphs,
        "why_in_parts": joints.why,
    }
    return "\n".join(parts), data


def _write_partition_section(subject: ReportSubject) -> _TextAndData:
    joints = subject.joints
    found = [(name, p) for name, joint in joints.graphs.items() for p in joint.partitions]
    head = ("partitioner", "forward", "backward", "recomputed", "saved", "of them inputs", "bytes saved")
    rows: list[tuple[Any, ...]] = [(*(("graph",) if joints.why else ()), *head)]
    details = []
    for name, p in found:
        of_inputs = sum(saved.is_input for saved in p.saved)
        counts = (p.partitioner, p.forward, p.backward, len(p.recomputed), len(p.saved), of_inputs)
        rows.append((*((name.removeprefix("graph "),) if joints.why else ()), *counts, quantity(p.bytes, "B")))
        title = f"{name}, {p.partitioner}" if name else p.partitioner
        kept = [f"  {s.name} {list(s.shape)} {'input' if s.is_input else quantity(s.bytes, 'B')}" for s in p.saved]
        details += [f"{title} saves", *kept]
        if p.recomputed:
            details.append(f"{title} recomputes: {', '.join(p.recomputed)}")
    data = {"partitions": [{**asdict(p), "bytes": p.bytes, "graph": name} for name, p in found]}
    return "\n".join([*joints.split_reason_lines(), table(rows), *details]), data


_KERNEL = re.compile(r"^(?P<name>\w+) = async_compile\.(?P<kind>\w+)\(.*?'''(?P<source>.*?)'''", re.M | re.S)
_CALL = re.compile(r"\b(?:extern_kernels\.\w+|torch\.ops\.tpgen\.\w+)")


def _write_kernels_section(subject: ReportSubject) -> _TextAndData:
    if not subject.inductor:
        raise TpgenError("left out, as inductor=False asks")
    parameters = tuple(subject.module.parameters())
    sources = collect_inductor_sources(
        subject.module, subject.inputs, partial(run_forward_and_backward, parameters=parameters)
    )
    kernels = [
        {"name": m["name"], "kind": m["kind"], "source": m["source"].strip()}
        for source in sources
        for m in _KERNEL.finditer(source)
    ]
    calls = Counter(call for source in sources for call in _CALL.findall(source))
    parts = [f"generated kernels: {len(kernels)}, in {len(sources)} programs"]
    parts += [f"calls {call}, {count} times" for call, count in calls.items()]
    parts += [f"{k['name']} ({k['kind']})\n{k['source']}" for k in kernels]
    return "\n".join(parts), {"kernels": kernels, "calls": dict(calls), "programs": sources}


@dataclass(frozen=True)
class SectionMaker:
    """Title and writer of a report's section."""

    title: str
    write: Callable[[ReportSubject], _TextAndData]
    compiles: bool = True  # whether Dynamo runs the module


SECTIONS: dict[str, SectionMaker] = {
    "backends": SectionMaker("Backends: time and numerics", _write_backends_section),
    "graphs": SectionMaker("Captured graphs and graph breaks", _write_graphs_section),
    "guards": SectionMaker("Guards", _write_guards_section),
    "recompilations": SectionMaker("Recompilations as shapes vary", _write_recompilations_section),
    "joint": SectionMaker("Joint forward-backward graph", _write_joint_graph_section, compiles=False),
    "partition": SectionMaker("Partition: what is saved for backward", _write_partition_section, compiles=False),
    "kernels": SectionMaker("Inductor's kernels", _write_kernels_section),
}


def describe_inputs(inputs: Sequence[Any]) -> tuple[str, ...]:
    """Describe inputs: dtype and shape of tensors, contents of lists and dicts, or types.

    >>> describe_inputs([torch.zeros(2, 3), 5, {"x": torch.zeros(1)}])
    ('float32[2, 3]', 'int', '{x: float32[1]}')
    """
    return tuple(map(_describe_input, inputs))


def _describe_input(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_describe_input(held)}' for key, held in value.items())}}}"
    if type(value) in (list, tuple):
        return f"[{', '.join(map(_describe_input, value))}]"
    return type(value).__name__


def _compute_float64_results(subject: ReportSubject) -> ResultsAndGradients:
    try:
        module = copy_of(subject.module).double()
        inputs = pytree.tree_map(lambda a: a.double() if is_floating(a) else a, list(subject.inputs))
        return run_forward_and_backward(module, inputs, tuple(module.parameters()))
    except Exception:  # a module without float64 only leaves a column of the report empty
        return None


def _largest_relative_error(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    pairs = [(a.double(), b) for a, b in zip(results, exact, strict=True) if b.numel()]
    return max((float((a - b).abs().max() / b.abs().max().clamp(min=1e-300)) for a, b in pairs), default=0.0)
