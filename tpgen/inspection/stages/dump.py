"""The text of every stage that a plan goes through, from the plan to what Inductor makes of it.

To dump is to print a stage: `STAGES` says how, one entry each, for products and linear layers; polynomials have
their own in `tpgen.inspection.stages.dump_polynomial`, and `dump_files` takes all three.

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
from tpgen.emitter.emit import DIRECTIONS, Emission, EmittedModule, directions_of, emit_plan
from tpgen.errors import BackendError, EmitError, unknown
from tpgen.form.form import Form
from tpgen.form.linear import AnyPlan, layouts_of
from tpgen.inspection.stages.cuda import ptx_of, sass_of, source_of
from tpgen.inspection.stages.dump_polynomial import dump_polynomial
from tpgen.kernels.cpp.generate import write_placement
from tpgen.kernels.cuda.generate import CudaSource
from tpgen.kernels.operators.description import DIRECTIONS as KERNELS
from tpgen.kernels.operators.description import Description, describe
from tpgen.kernels.placement.place import Placement, place
from tpgen.planner.linear import LinearPlan
from tpgen.planner.plan import Plan
from tpgen.planner.polynomial_plan import PolynomialPlan

# Directions of kernels alone, which open several operands at once: of which form, and which operands.
JOINT: dict[str, str] = {"backward": "forward", "conv_backward": "conv"}
_OF_KERNELS, _OF_GRAPHS = tuple(JOINT), ("right",)
_MANGLED = re.compile(r"\.___torch_mangle_\d+")  # TorchScript counts the types of a process that share a name


@dataclass(frozen=True)
class FormRequest(Config):
    """One direction of a product or a linear layer, and how it is to be written and run."""

    plan: AnyPlan
    direction: str = "forward"
    rows: int = 32  # of the batch that a stage is traced with, where it needs one

    @property
    def computed(self) -> AnyPlan:
        """What programs compute: of a linear layer its `LinearPlan.flat`, to which the module adds biases."""
        return self.plan.flat if isinstance(self.plan, LinearPlan) else self.plan

    @property
    def form(self) -> Form:
        """The form, with the direction's slot open; of a kernel that opens several, the form that it opens them in."""
        return directions_of(self.plan)[JOINT.get(self.direction, self.direction)](self.plan, self.layout)

    @property
    def opened(self) -> tuple[str, ...]:
        """What a kernel of the direction opens."""
        form = self.form
        there = {operand.name for operand in form.operands if operand.dim or operand.name != "w"}
        return tuple(slot for slot in KERNELS["backward"] if slot in there) if self.direction in JOINT else form.opened

    def emission(self, backend: str | None = None) -> Emission:
        """The written program; ``auto`` is decided for the given backend (the request's own where none is given)."""
        strategy = choose_strategy(self.computed, replace(self, backend=backend or self.backend)).strategy
        return emit_plan(self.plan, self.direction, strategy, self.layout, self.streams)

    def module(self, emission: Emission) -> EmittedModule:
        return emission.module().to(device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class Request(FormRequest):
    """That of a product."""

    plan: Plan


@dataclass(frozen=True)
class Stage:
    """How a stage is written as text, what a file of it is called, and whether it differs by direction."""

    write: Callable[[FormRequest], str]
    suffix: str
    about: str
    by_direction: bool = True
    lacks: tuple[str, ...] = ()  # directions that the stage does not have


def _graph(request: FormRequest) -> str:
    return _said(request, str(request.emission()))


def _code(request: FormRequest) -> str:
    return _said(request, request.emission().code.strip())


def _said(request: FormRequest, text: str) -> str:
    """A graph that is nothing but the call of a kernel says where the kernel is, and leaves the product's JSON out."""
    if choose_strategy(request.computed, request).strategy != "kernel":
        return text
    written = describe(request.form.plan, request.form.layout)  # type: ignore[arg-type]
    for quoted in (repr(written), written):
        text = text.replace(quoted, f"<{request.plan.digest}>")
    return f"# this strategy is one kernel: see the stage cpp\n{text}"


def _script(request: FormRequest) -> str:
    scripted = script(request.module(request.emission("script")))
    written: Any = scripted.graph  # TorchScript's, not fx's
    graph = written.str(False)  # without positions in a source that is not at hand
    return f"{scripted.code.strip()}\n\n{_MANGLED.sub('', graph).strip()}"


def _inductor(request: FormRequest) -> str:
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


def placement_of(request: FormRequest) -> Placement:
    """Where a kernel of one direction computes, with its sweep: what it computes."""
    layouts = layouts_of(request.plan, request.layout)
    schedule = Description(request.computed, layouts).schedule(request.dtype)
    return place(schedule, request.opened, bool(request.form.indices))


def _sweep(request: FormRequest) -> str:
    form = request.form
    found = [f"rows of {o.name} are found by {o.rows}" for o in form.operands if o.rows in form.indices]
    return "\n".join([str(placement_of(request).sweep), *found])


def _cpp(request: FormRequest) -> str:
    return write_placement(placement_of(request), bool(request.form.indices)).text


def _cuda(request: FormRequest) -> CudaSource:
    """The CUDA kernel of one direction."""
    return source_of(request.form, request.dtype, request.opened)


STAGES: dict[str, Stage] = {
    "plan": Stage(lambda r: str(r.plan), "txt", "what is computed: paths, weights, costs", by_direction=False),
    "form": Stage(lambda r: str(r.form), "txt", "the multilinear form: one einsum for each path", lacks=_OF_KERNELS),
    "graph": Stage(_graph, "txt", "the fx graph: each node, its role, what it serves", lacks=_OF_KERNELS),
    "code": Stage(_code, "py", "the fx graph as Python source", lacks=_OF_KERNELS),
    "script": Stage(_script, "txt", "TorchScript: its code and its graph", lacks=_OF_KERNELS),
    "inductor": Stage(_inductor, "py", "what torch.compile's Inductor generates", lacks=_OF_KERNELS),
    "sweep": Stage(
        _sweep, "txt", "what a kernel computes: the statements of one row and one channel", lacks=_OF_GRAPHS
    ),
    "placement": Stage(
        lambda r: str(placement_of(r)), "txt", "where it computes that: vectors, scratch, blocks", lacks=_OF_GRAPHS
    ),
    "cpp": Stage(_cpp, "cpp", "the generated C++ kernel, whatever the strategy", lacks=_OF_GRAPHS),
    "cuda": Stage(lambda r: _cuda(r).text, "cu", "the generated CUDA C++ kernel; needs no GPU", lacks=_OF_GRAPHS),
    "ptx": Stage(
        lambda r: ptx_of(_cuda(r)), "ptx", "the virtual instructions that NVRTC makes of it", lacks=_OF_GRAPHS
    ),
    "sass": Stage(lambda r: sass_of(_cuda(r)), "sass", "the GPU's own instructions, by nvdisasm", lacks=_OF_GRAPHS),
}


def dump_stage(
    plan: AnyPlan | PolynomialPlan, stage: str, direction: str = "forward", **options: Unpack[StageOptions]
) -> str:
    """The text of one stage of one direction.

    ``plan`` is that of a product, of a linear layer (``linear.plan``) or of a polynomial, whose directions are calls.
    ``options`` are the other fields of `FormRequest`: layout, strategy, backend, dtype, device, rows; a polynomial
    takes strategy, dtype and device.  A strategy of ``auto`` is decided for the backend; the stages ``script`` and
    ``inductor`` are their own backend.

    Raises `EmitError` for a stage that does not exist and for a direction that the plan does not have.

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
    plan: AnyPlan | PolynomialPlan,
    stages: Iterable[str],
    directions: Iterable[str] = ("forward",),
    **options: Unpack[StageOptions],
) -> dict[str, str]:
    """Texts of several stages and directions, by file name; ``"all"`` stands for every direction the plan has.

    A stage that is the same for all directions comes once.  Everything asked for is checked before anything is written.

    >>> from tpgen.planner.presets import full
    >>> list(dump_files(full("1o", "1o"), ["plan", "form"], ["forward", "right"]))
    ['plan.txt', 'form.forward.txt', 'form.right.txt']
    """
    dump = _DUMPS.get(type(plan))
    if dump is None:
        way_out = "; its attribute plan is one" if isinstance(getattr(plan, "plan", None), tuple(_DUMPS)) else ""
        known = ", ".join(one.__name__ for one in _DUMPS)
        raise EmitError(f"stages are those of a plan ({known}), not of {type(plan).__name__}{way_out}")
    return dump(plan, stages, directions, **options)


def _dump_form(
    plan: AnyPlan, stages: Iterable[str], directions: Iterable[str], **options: Unpack[StageOptions]
) -> dict[str, str]:
    chosen = [(name, find_stage(name)) for name in stages]
    asked = tuple(directions)
    files = {}
    for name, stage in chosen:
        wanted = list(dict.fromkeys(d for direction in asked for d in _spelled_out(plan, direction, name)))
        for direction in wanted if stage.by_direction else wanted[:1]:
            file = f"{name}.{direction}.{stage.suffix}" if stage.by_direction else f"{name}.{stage.suffix}"
            files[file] = stage.write(FormRequest(plan, direction, **options))
    return files


_DUMPS: dict[type, Callable[..., dict[str, str]]] = {
    Plan: _dump_form,
    LinearPlan: _dump_form,
    PolynomialPlan: dump_polynomial,
}


def _spelled_out(plan: AnyPlan, direction: str, stage: str) -> tuple[str, ...]:
    if direction == "all":
        return tuple(d for d in _with_joint(plan) if d not in STAGES[stage].lacks)
    check_direction(plan, direction, stage)
    return (direction,)


def _with_joint(plan: AnyPlan) -> tuple[str, ...]:
    """All directions of a plan, those of kernels alone behind the others."""
    own = product_directions(plan)
    return (*own, *(joint for joint, form in JOINT.items() if form in own))


def find_stage(name: str) -> Stage:
    """The stage of that name, or an `EmitError` that lists the known ones."""
    if name not in STAGES:
        raise EmitError(unknown("stage", name, STAGES))
    return STAGES[name]


def product_directions(plan: AnyPlan) -> tuple[str, ...]:
    """The directions that a plan has: one without weights has no gradient for them, a linear layer no second input.

    >>> from tpgen.planner.presets import elementwise
    >>> product_directions(elementwise("1o", "1o"))
    ('forward', 'right', 'grad_x1', 'grad_x2', 'conv')
    """
    return tuple(d for d in directions_of(plan) if d != "grad_w" or plan.weight_numel > 0)


def check_direction(plan: AnyPlan, direction: str, stage: str) -> None:
    """Raise `EmitError` where the plan, or a stage of it, does not have that direction."""
    if direction not in (*DIRECTIONS, *JOINT):
        raise EmitError(unknown("direction", direction, (*DIRECTIONS, *JOINT)))
    known = _with_joint(plan)
    if direction not in known:
        what = "product has no weights" if direction in directions_of(plan) else "is a linear layer"
        raise EmitError(f"this {what}, so it has no direction {direction!r}; its directions: {', '.join(known)}")
    if direction in STAGES[stage].lacks:
        why = (
            "only kernels compute all gradients at once; ask for the stage 'cpp', 'cuda', 'sweep' or 'placement' of it"
            if direction in JOINT
            else "right is a matrix and runs as a graph; ask for the stage 'graph' or 'code' of it"
        )
        raise EmitError(f"stage {stage!r} has no direction {direction!r}: {why}")


def default_stage(plan: AnyPlan, direction: str = "forward", **options: Unpack[StageOptions]) -> str:
    """What a reader wants to see first: the C++ of a kernel, the code of a graph.

    >>> from tpgen.planner.presets import full
    >>> default_stage(full("1o", "1o"), strategy="einsum")
    'code'
    """
    if direction in STAGES["cpp"].lacks:
        return "code"
    request = FormRequest(plan, **options)
    return "cpp" if choose_strategy(request.computed, request).strategy == "kernel" else "code"


def example_arguments(request: FormRequest, names: Iterable[str]) -> list[Any]:
    """Random operands, indices and numbers of rows for the named arguments of a program, the same at every call."""
    rows, form = request.rows, request.form
    of_form = {"x1": "x1", "x2": "x2", "w": "w", "g": "out"}  # a cotangent has the shape of the result
    generator = torch.Generator().manual_seed(0)

    def example(name: str) -> Any:
        if name.startswith("num_"):
            return rows
        if name not in of_form:
            return torch.randint(rows, (rows,), generator=generator).to(request.device)
        operand = form.operand(of_form[name])
        shape = (rows, operand.dim) if operand.row else (operand.dim,)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn.to(device=request.device, dtype=request.dtype)

    return [example(name) for name in names]
