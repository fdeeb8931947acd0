"""The text of every stage that a product goes through, from the plan to what Inductor makes of it.

To dump is to print a stage: `STAGES` says how, one entry each.

>>> from tpgen.planner.plan import make_plan
>>> plan = make_plan("8x1o", "1o", "8x1e", [(0, 0, 0, "uvu", True)])
>>> print(dump_stage(plan, "form", "grad_x2"))
x2[1x1o] of x1, w, out
  path 0: 1.73205 * einsum('zui,uv,zuk,ijk->zvj', x1, w, out, _w3j_1_1_1)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from typing_extensions import Unpack

from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.backends import compile_program, script
from tpgen.compiler.config import Config, StageOptions
from tpgen.emitter.emit import DIRECTIONS, Emission, EmittedModule, emit_plan
from tpgen.errors import BackendError, EmitError, unknown
from tpgen.form.form import Form, split_layout
from tpgen.form.sampling import random_operands
from tpgen.inspection.stages.cuda import ptx_of, sass_of, source_of
from tpgen.kernels.cpp.generate import write_placement
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.operators.description import DIRECTIONS as KERNELS
from tpgen.kernels.operators.description import Description
from tpgen.kernels.placement.place import Placement, place
from tpgen.planner.plan import Plan

# Directions of kernels alone, which open several operands at once: of which form, and which operands.
JOINT: dict[str, str] = {"backward": "forward", "conv_backward": "conv"}
_OF_KERNELS, _OF_GRAPHS = tuple(JOINT), ("right",)
_MANGLED = re.compile(r"\.___torch_mangle_\d+")  # TorchScript counts the types of a process that share a name


@dataclass(frozen=True)
class Request(Config):
    """One direction of a product, and how it is to be written and run."""

    plan: Plan
    direction: str = "forward"
    rows: int = 32  # of the batch that a stage is traced with, where it needs one

    def emission(self, backend: str | None = None) -> Emission:
        """The written program; ``auto`` is decided for the given backend (the request's own where none is given)."""
        strategy = choose_strategy(self.plan, replace(self, backend=backend or self.backend)).strategy
        return emit_plan(self.plan, self.direction, strategy, self.layout, self.streams)

    def module(self, emission: Emission) -> EmittedModule:
        return emission.module().to(device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class Stage:
    """How a stage is written as text, what a file of it is called, and whether it differs by direction."""

    write: Callable[[Request], str]
    suffix: str
    about: str
    by_direction: bool = True
    lacks: tuple[str, ...] = ()  # directions that the stage does not have


def _graph(request: Request) -> str:
    return _said(request, str(request.emission()))


def _code(request: Request) -> str:
    return _said(request, request.emission().code.strip())


_DESCRIPTION = re.compile(r"'\{\"check_index\".*?\}'")  # the product as JSON, which a kernel is called with


def _said(request: Request, text: str) -> str:
    """A graph that is nothing but the call of a kernel says where the kernel is, and leaves the product's JSON out."""
    if choose_strategy(request.plan, request).strategy != "kernel":
        return text
    return f"# this strategy is one kernel: see the stage cpp\n{_DESCRIPTION.sub(f'<{request.plan.digest}>', text)}"


def _script(request: Request) -> str:
    scripted = script(request.module(request.emission("script")))
    written: Any = scripted.graph  # TorchScript's, not fx's
    graph = written.str(False)  # without positions in a source that is not at hand
    return f"{scripted.code.strip()}\n\n{_MANGLED.sub('', graph).strip()}"


def _inductor(request: Request) -> str:
    """Inductor's output for a batch of ``rows``.

    Capturing it resets Dynamo: what this process compiled before compiles again.
    """
    # imported here: it takes about a second, and only this stage needs it
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.utils import run_and_get_code

    emission = request.emission("inductor")
    run = compile_program(request.module(emission), replace(request, backend="inductor"))
    try:
        with torch.no_grad():
            _, sources = run_and_get_code(run, *example_arguments(request, emission.arguments))
    except TorchDynamoException as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise BackendError(
            f"Inductor did not compile this program; on a CPU it needs a C++ compiler ({reason})"
        ) from error
    return "\n\n".join(source.strip() for source in sources)


def placement_of(request: Request) -> Placement:
    """Where a kernel of one direction computes, with its sweep: what it computes."""
    form = _form_of(request)
    schedule = Description(request.plan, split_layout(request.layout)).schedule(request.dtype)
    opened = _differentiated(request.plan) if request.direction in JOINT else form.opened
    return place(schedule, opened, bool(form.indices))


def _form_of(request: Request) -> Form:
    return DIRECTIONS[JOINT.get(request.direction, request.direction)](request.plan, request.layout)


def _differentiated(plan: Plan) -> tuple[str, ...]:
    """The operands that a backward kernel opens."""
    return tuple(slot for slot in KERNELS["backward"] if slot != "w" or plan.weight_numel > 0)


def _sweep(request: Request) -> str:
    form = _form_of(request)
    found = [f"rows of {o.name} are found by {o.rows}" for o in form.operands if o.rows in form.indices]
    return "\n".join([str(placement_of(request).sweep), *found])


def _cpp(request: Request) -> str:
    return write_placement(placement_of(request), bool(_form_of(request).indices)).text


def _cuda(request: Request) -> CudaSource:
    """The CUDA kernel of one direction."""
    form = _form_of(request)
    opened = _differentiated(request.plan) if request.direction in JOINT else form.opened
    return source_of(form, request.dtype, opened)


STAGES: dict[str, Stage] = {
    "plan": Stage(
        lambda request: str(request.plan), "txt", "what is computed: paths, weights, costs", by_direction=False
    ),
    "form": Stage(
        lambda request: str(_form_of(request)),
        "txt",
        "the multilinear form: one einsum for each path",
        lacks=_OF_KERNELS,
    ),
    "graph": Stage(_graph, "txt", "the fx graph: each node, its role, what it serves", lacks=_OF_KERNELS),
    "code": Stage(_code, "py", "the fx graph as Python source", lacks=_OF_KERNELS),
    "script": Stage(_script, "txt", "TorchScript: its code and its graph", lacks=_OF_KERNELS),
    "inductor": Stage(_inductor, "py", "what torch.compile's Inductor generates", lacks=_OF_KERNELS),
    "sweep": Stage(
        _sweep,
        "txt",
        "what a kernel computes: the statements of one row and one channel",
        lacks=_OF_GRAPHS,
    ),
    "placement": Stage(
        lambda request: str(placement_of(request)),
        "txt",
        "where it computes that: vectors, scratch, blocks",
        lacks=_OF_GRAPHS,
    ),
    "cpp": Stage(_cpp, "cpp", "the generated C++ kernel, whatever the strategy", lacks=_OF_GRAPHS),
    "cuda": Stage(
        lambda request: _cuda(request).text, "cu", "the generated CUDA C++ kernel; needs no GPU", lacks=_OF_GRAPHS
    ),
    "ptx": Stage(
        lambda request: ptx_of(_cuda(request)),
        "ptx",
        "the virtual instructions that NVRTC makes of it",
        lacks=_OF_GRAPHS,
    ),
    "sass": Stage(
        lambda request: sass_of(_cuda(request)), "sass", "the GPU's own instructions, by nvdisasm", lacks=_OF_GRAPHS
    ),
}


def dump_stage(plan: Plan, stage: str, direction: str = "forward", **options: Unpack[StageOptions]) -> str:
    """The text of one stage of one direction.

    ``options`` are the other fields of `Request`: layout, strategy, backend, dtype, device, rows.  A strategy of
    ``auto`` is decided for the backend; the stages ``script`` and ``inductor`` are their own backend.

    Raises `EmitError` for a stage that does not exist and for a direction that the product does not have.

    >>> from tpgen.planner.presets import channelwise
    >>> print(dump_stage(channelwise("2x0e", "0e", "0e"), "code").splitlines()[-1].strip())
    return ...
    """
    find_stage(stage)
    check_direction(plan, direction, stage)
    return STAGES[stage].write(Request(plan, direction, **options))


def dump_files(
    plan: Plan, stages: Iterable[str], directions: Iterable[str] = ("forward",), **options: Unpack[StageOptions]
) -> dict[str, str]:
    """Texts of several stages and directions, by file name; ``"all"`` stands for every direction the product has.

    A stage that is the same for all directions comes once.  Everything asked for is checked before anything is written.

    >>> from tpgen.planner.presets import full
    >>> list(dump_files(full("1o", "1o"), ["plan", "form"], ["forward", "right"]))
    ['plan.txt', 'form.forward.txt', 'form.right.txt']
    """
    chosen = [(name, find_stage(name)) for name in stages]
    asked = tuple(directions)
    files = {}
    for name, stage in chosen:
        wanted = list(dict.fromkeys(d for direction in asked for d in _spelled_out(plan, direction, name)))
        for direction in wanted if stage.by_direction else wanted[:1]:
            file = f"{name}.{direction}.{stage.suffix}" if stage.by_direction else f"{name}.{stage.suffix}"
            files[file] = stage.write(Request(plan, direction, **options))
    return files


def _spelled_out(plan: Plan, direction: str, stage: str) -> tuple[str, ...]:
    if direction == "all":
        return tuple(d for d in (*product_directions(plan), *JOINT) if d not in STAGES[stage].lacks)
    check_direction(plan, direction, stage)
    return (direction,)


def find_stage(name: str) -> Stage:
    """The stage of that name, or an `EmitError` that lists the known ones."""
    if name not in STAGES:
        raise EmitError(unknown("stage", name, STAGES))
    return STAGES[name]


def product_directions(plan: Plan) -> tuple[str, ...]:
    """The directions that a product has: a product without weights has no gradient for them.

    >>> from tpgen.planner.presets import elementwise
    >>> product_directions(elementwise("1o", "1o"))
    ('forward', 'right', 'grad_x1', 'grad_x2', 'conv')
    """
    return tuple(d for d in DIRECTIONS if d != "grad_w" or plan.weight_numel > 0)


def check_direction(plan: Plan, direction: str, stage: str) -> None:
    """Raise `EmitError` where the product, or a stage of it, does not have that direction."""
    if direction not in (*DIRECTIONS, *JOINT):
        raise EmitError(unknown("direction", direction, (*DIRECTIONS, *JOINT)))
    if direction not in (*product_directions(plan), *JOINT):
        raise EmitError(
            f"this product has no weights, so it has no direction {direction!r}; "
            f"its directions: {', '.join(product_directions(plan))}"
        )
    if direction in STAGES[stage].lacks:
        why = (
            "only kernels compute all gradients at once; ask for the stage 'cpp', 'cuda', 'sweep' or 'placement' of it"
            if direction in JOINT
            else "right is a matrix and runs as a graph; ask for the stage 'graph' or 'code' of it"
        )
        raise EmitError(f"stage {stage!r} has no direction {direction!r}: {why}")


def default_stage(plan: Plan, direction: str = "forward", **options: Unpack[StageOptions]) -> str:
    """What a reader wants to see first: the C++ of a kernel, the code of a graph.

    >>> from tpgen.planner.presets import full
    >>> default_stage(full("1o", "1o"), strategy="einsum")
    'code'
    """
    if direction in STAGES["cpp"].lacks:
        return "code"
    request = Request(plan, **options)
    return "cpp" if choose_strategy(plan, request).strategy == "kernel" else "code"


def example_arguments(request: Request, names: Iterable[str]) -> list[Any]:
    """Random operands, indices and numbers of rows for the named arguments of a program, the same at every call."""
    plan, rows = request.plan, request.rows
    of_form = {"x1": "x1", "x2": "x2", "w": "w", "g": "out"}  # a cotangent has the shape of the result
    generator = torch.Generator().manual_seed(0)

    def example(name: str) -> Any:
        if name.startswith("num_"):
            return rows
        if name not in of_form:
            return torch.randint(rows, (rows,), generator=generator).to(request.device)
        drawn = random_operands(
            plan, rows, [of_form[name]], generator=generator, dtype=request.dtype, device=request.device
        )
        return drawn[of_form[name]]

    return [example(name) for name in names]
