"""Texts of stages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from typing_extensions import Unpack

from tpgen.base import _torch
from tpgen.base.errors import BackendError, EmitError, check_known
from tpgen.compiler.backends import compile_program
from tpgen.compiler.config import StageOptions
from tpgen.planner.plan import Plan
from tpgen.tools.inspection.stages.calls import make_request
from tpgen.tools.inspection.stages.cuda import compile_to_ptx, disassemble_to_sass
from tpgen.tools.inspection.stages.request import GRAPHS, KERNEL, Request

_MANGLED = re.compile(r"\.___torch_mangle_\d+")  # TorchScript counts the types of a process that share a name


@dataclass(frozen=True)
class Stage:
    """Writer, file suffix and description of a stage of generated code."""

    write: Callable[[Request], str]
    suffix: str
    about: str
    shows: str = ""  # graphs or kernels, which have directions of their own; the plan has none

    @property
    def by_direction(self) -> bool:
        return bool(self.shows)

    def make_file_name(self, name: str, direction: str) -> str:
        """File name of a stage's text."""
        part = f".{direction.replace('->', 'to').replace(' ', '_')}" if self.by_direction else ""
        return f"{name}{part}.{self.suffix}"


def _abbreviate_kernel_call(request: Request, text: str) -> str:
    # a graph that is nothing but the call of a kernel says where the kernel is, and leaves the plan's JSON out
    if request.choice.strategy != "kernel":
        return text
    written = request.described
    for quoted in (repr(written), written):
        text = text.replace(quoted, f"<{request.plan.digest}>")
    return f"# this strategy is one kernel: see the stage cpp\n{text}"


def _write_torchscript(request: Request) -> str:
    scripted = request.scripted(request.emit_program("script"))
    written: Any = scripted.graph  # TorchScript's, not fx's
    graph = written.str(False)  # without positions in a source that is not at hand
    return f"{scripted.code.strip()}\n\n{_MANGLED.sub('', graph).strip()}"


def _compile_and_write_inductor_code(request: Request) -> str:
    # capturing code resets Dynamo: the process compiles earlier code again
    emission = request.emit_program("inductor")
    run = compile_program(request.module(emission), replace(request, backend="inductor"))
    try:
        with torch.no_grad():
            _, sources = _torch.run_and_get_code(run, *draw_example_arguments(request, emission.arguments))
    except _torch.DynamoException as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise BackendError(
            f"Inductor did not compile this program; on a CPU it needs a C++ compiler ({reason})"
        ) from error
    return "\n\n".join(source.strip() for source in sources)


def _join_lines(lines: Iterable[tuple[str, object]]) -> str:
    return "\n".join(text for text, _ in lines)


STAGES: dict[str, Stage] = {
    "plan": Stage(lambda r: str(r.plan), "txt", "what is computed: paths, weights, costs"),
    "form": Stage(lambda r: _join_lines(r.form_lines), "txt", "the multilinear form: one einsum for each path", GRAPHS),
    "graph": Stage(
        lambda r: _abbreviate_kernel_call(r, str(r.emit_program())),
        "txt",
        "the fx graph: each node, its role, what it serves",
        GRAPHS,
    ),
    "code": Stage(
        lambda r: _abbreviate_kernel_call(r, r.emit_program().code.strip()),
        "py",
        "the fx graph as Python source",
        GRAPHS,
    ),
    "script": Stage(_write_torchscript, "txt", "TorchScript: its code and its graph", GRAPHS),
    "inductor": Stage(_compile_and_write_inductor_code, "py", "what torch.compile's Inductor generates", GRAPHS),
    "sweep": Stage(
        lambda r: _join_lines(r.sweep_lines),
        "txt",
        "what a kernel computes: the statements of one row and one channel",
        KERNEL,
    ),
    "placement": Stage(lambda r: str(r.placement), "txt", "where it computes that: vectors, scratch, blocks", KERNEL),
    "cpp": Stage(lambda r: r.cpp.text, "cpp", "the generated C++ kernel, whatever the strategy", KERNEL),
    "cuda": Stage(lambda r: r.cuda.text, "cu", "the generated CUDA C++ kernel; needs no GPU", KERNEL),
    "ptx": Stage(lambda r: compile_to_ptx(r.cuda), "ptx", "the virtual instructions that NVRTC makes of it", KERNEL),
    "sass": Stage(lambda r: disassemble_to_sass(r.cuda), "sass", "the GPU's own instructions, by nvdisasm", KERNEL),
}


def dump_stage(plan: Plan, stage: str, direction: str = "forward", **options: Unpack[StageOptions]) -> str:
    """Text of a plan's stage for a direction (a polynomial's call).

    ``options``: strategy, dtype, device, rows; layout, backend (products); channels, elements (polynomials).  Raises
    `EmitError` for an unknown stage or direction.

    >>> from tpgen.planner.presets import channelwise
    >>> print(dump_stage(channelwise("2x0e", "0e", "0e"), "code").splitlines()[-1].strip())
    return ...
    >>> from tpgen.planner.linear import make_linear_plan
    >>> print(dump_stage(make_linear_plan("2x0e", "4x0e"), "sweep", "grad_x1"))
    sweep: opens x1
      path 0: 2x0e -> 4x0e, times 0.707107
        x1[u] += sum_w out[w] W[u, w]
    """
    if direction == "all":
        raise EmitError("give dump_stage one direction; dump_files takes 'all', and returns a text for each")
    (text,) = dump_files(plan, [stage], [direction], **options).values()
    return text


def dump_files(
    plan: Plan,
    stages: Iterable[str],
    directions: Iterable[str] = ("forward",),
    **options: Unpack[StageOptions],
) -> dict[str, str]:
    """Texts of stages and directions by file name; ``"all"`` means every direction.

    >>> from tpgen.planner.presets import full
    >>> list(dump_files(full("1o", "1o"), ["plan", "form"], ["forward", "right"]))
    ['plan.txt', 'form.forward.txt', 'form.right.txt']
    """
    if not isinstance(plan, Plan):
        way_out = "; its attribute plan is one" if isinstance(getattr(plan, "plan", None), Plan) else ""
        raise EmitError(f"stages are those of a Plan, not of {type(plan).__name__}{way_out}")
    chosen, asked = list(stages), list(directions)
    check_known("stage", chosen, STAGES, EmitError)
    files: dict[str, str] = {}
    for name in chosen:
        stage = STAGES[name]
        every = make_request(plan, **options).list_stage_directions(stage.shows) if "all" in asked else ()
        for direction in (one for given in asked for one in (every if given == "all" else (given,))):
            request = make_request(plan, direction, **options)
            request.check_direction(name, stage.shows)
            file = stage.make_file_name(name, request.direction)
            files[file] = files.get(file) or stage.write(request)
    return files


def choose_default_stage(plan: Plan, direction: str = "forward", **options: Unpack[StageOptions]) -> str:
    """Stage ``cpp`` for a kernel, ``code`` for a graph.

    >>> from tpgen.planner.presets import full
    >>> choose_default_stage(full("1o", "1o"), strategy="einsum")
    'code'
    """
    request = make_request(plan, **options)
    return (
        "cpp" if direction in request.list_stage_directions(KERNEL) and request.choice.strategy == "kernel" else "code"
    )


def draw_example_arguments(request: Request, names: Iterable[str]) -> list[Any]:
    """Draw random arguments of a program, from a fixed seed."""
    generator = torch.Generator().manual_seed(0)

    def draw_argument(name: str) -> Any:
        if name.startswith("num_"):
            return request.indexed
        shape = request.find_argument_shape(name)
        if shape is None:
            return torch.randint(request.indexed, (request.rows,), generator=generator).to(request.device)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn.to(device=request.device, dtype=request.dtype)

    return [draw_argument(name) for name in names]
