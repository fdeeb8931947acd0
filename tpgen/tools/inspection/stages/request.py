"""Requests for one direction of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch

from tpgen.base.errors import EmitError, check_known, unknown
from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.backends import script_module
from tpgen.compiler.config import Choice, Config
from tpgen.emitter.emit import DIRECTIONS, Emission, EmittedModule, emit_plan, list_directions
from tpgen.form.call import Call
from tpgen.form.form import Form, expand_layout
from tpgen.kernels.arguments import KernelSpec
from tpgen.kernels.cpp.text import GeneratedSource
from tpgen.kernels.cuda.generate import CudaSource, generate_cuda
from tpgen.kernels.cuda.target import place_kernel as place_on_gpu
from tpgen.kernels.rows import RULES, RowRules
from tpgen.kernels.runtime.call import make_product_call
from tpgen.kernels.runtime.description import OPENED_BY_DIRECTION as KERNELS
from tpgen.kernels.runtime.description import describe, description_of_plan
from tpgen.kernels.runtime.targets import why_kernel_unsupported
from tpgen.planner.plan import ELEMENT, SHARED, Leg, Plan
from tpgen.tools.inspection.stages.cuda import c_type_of, choose_shown_chip

# Directions of kernels alone, which open several operands at once: of which form, and which operands.
JOINT: dict[str, str] = {"backward": "forward", "conv_backward": "conv"}
GRAPHS, KERNEL = "graphs", "kernels"  # what a stage shows
_OPERANDS = {"x1": "x1", "x2": "x2", "w": "w", "g": "out"}  # by argument; a cotangent has the shape of the result
Line = tuple[str, tuple[int, ...]]  # a line of a text, and the instructions that it serves


@dataclass(frozen=True)
class Request(Config):
    """A product's or linear layer's direction to inspect, with options."""

    plan: Plan
    direction: str = "forward"
    rows: int = 32  # of the batch that a stage is traced with, where it needs one
    channels: int = 1  # of a row, where the plan leaves them open
    elements: int = 1  # of weights that an index chooses

    _not_asked: ClassVar[tuple[str, ...]] = ("plan", "channels")
    _said: ClassVar[str] = ""
    shared: ClassVar[str] = ""  # what lines of its kernels serve where their writer does not say so

    @classmethod
    def check_option_names(cls, options: Iterable[str]) -> None:
        """Raise `EmitError` for an unknown option."""
        known = [field.name for field in fields(cls) if field.name not in cls._not_asked]
        for name in options:
            if name not in known:
                raise EmitError(cls._said + unknown("option", name, known))

    # --- directions -----------------------------------------------------------------------------------------------

    def list_stage_directions(self, stage_kind: str = "") -> tuple[str, ...]:
        """Directions that a kind of stage (``graphs``, ``kernels``; empty: any) can show."""
        own = list_product_directions(self.plan)
        joint = tuple(joint for joint, form in JOINT.items() if form in own)
        left_out = {"": (), GRAPHS: joint, KERNEL: ("right",)}[stage_kind]
        return tuple(d for d in (*own, *joint) if d not in left_out)

    def check_direction(self, stage: str, stage_kind: str) -> None:
        """Raise `EmitError` if the plan or stage lacks the direction."""
        check_known("direction", [self.direction], (*DIRECTIONS, *JOINT), EmitError)
        known = self.list_stage_directions()
        if self.direction not in known:
            what = "product has no weights" if self.direction in list_directions(self.plan) else "is a linear layer"
            raise EmitError(
                f"this {what}, so it has no direction {self.direction!r}; its directions: {', '.join(known)}"
            )
        self._check_stage_has_direction(stage, stage_kind)

    def _check_stage_has_direction(self, stage: str, stage_kind: str) -> None:
        if self.direction in self.list_stage_directions(stage_kind):
            return
        why = (
            "only kernels compute all gradients at once; ask for the stage 'cpp', 'cuda', 'sweep' or 'placement' of it"
            if stage_kind == GRAPHS
            else "right is a matrix and runs as a graph; ask for the stage 'graph' or 'code' of it"
        )
        raise EmitError(f"stage {stage!r} has no direction {self.direction!r}: {why}")

    # --- what is computed -----------------------------------------------------------------------------------------

    @property
    def computed(self) -> Plan:
        """Flat plan that programs compute, without biases."""
        return self.plan.flat

    @property
    def form(self) -> Any:
        """Form of the direction."""
        return list_directions(self.plan)[JOINT.get(self.direction, self.direction)](self.plan, self.layout)

    @property
    def result_names(self) -> tuple[str, ...]:
        """``out``, or operands whose gradients are computed."""
        form: Form = self.form
        there = {operand.name for operand in form.operands if operand.dim or operand.name != "w"}
        return tuple(slot for slot in KERNELS["backward"] if slot in there) if self.direction in JOINT else form.opened

    @property
    def form_lines(self) -> list[Line]:
        """Lines of the form, with indices of paths."""
        form: Form = self.form
        head, *lines = str(form).split("\n")
        return [(head, ()), *((text, (term.path,)) for text, term in zip(lines, form.live_terms, strict=True))]

    # --- programs -------------------------------------------------------------------------------------------------

    @property
    def choice(self) -> Choice:
        return choose_strategy(self.computed, self)

    def emit_program(self, backend: str | None = None) -> Emission:
        """Emit the direction's program as an fx graph, for a backend."""
        strategy = replace(self, backend=backend or self.backend).choice.strategy
        return emit_plan(self.plan, self.direction, strategy, self.layout, self.streams)

    def module(self, emission: Emission) -> EmittedModule:
        return emission.module().to(device=self.device, dtype=self.dtype)

    def scripted(self, emission: Emission) -> Any:
        return script_module(self.module(emission))

    @property
    def described(self) -> str:
        """Text of the form in kernel calls."""
        return describe(self.form.plan, self.form.layout)

    def find_argument_shape(self, argument: str) -> tuple[int, ...] | None:
        """Shape of an argument's tensor; None for an index."""
        if argument not in _OPERANDS:
            return None
        operand = self.form.operand(_OPERANDS[argument])
        if operand.rows == ELEMENT:
            return self.elements, operand.dim
        return (self.rows, operand.dim) if operand.row else (operand.dim,)

    @property
    def indexed(self) -> int:
        """Number of rows that an index selects from."""
        return self.elements if self.plan.by_element else self.rows

    # --- kernels --------------------------------------------------------------------------------------------------

    def why_auto_takes_no_kernel(self) -> str | None:
        """Say why no kernel runs on the device, or None."""
        return why_kernel_unsupported(self.plan, self.layout, self.dtype, self.device)

    @property
    def _rules(self) -> RowRules:
        return tuple(rule for name, rule in RULES.items() if name in self.form.indices)

    @property
    def kernels(self) -> Any:
        """Plan's kernel description."""
        return description_of_plan(self.computed, self.layouts)

    @property
    def call(self) -> Call:
        return make_product_call(self.result_names)

    @property
    def placement(self) -> Any:
        return self.kernels.placement(self.call, self.dtype, self._rules)

    @property
    def sweep_lines(self) -> list[Line]:
        """Lines of a kernel's statements, with indices of paths."""
        found = [o for o in self.form.operands if o.rows in self.form.indices]
        return [
            *self.placement.sweep.text_lines_and_paths,
            *((f"rows of {o.name} are found by {o.rows}", ()) for o in found),
        ]

    @property
    def placement_lines(self) -> list[Line]:
        return list(self.placement.text_lines_and_paths)

    @property
    def cpp(self) -> GeneratedSource:
        source: GeneratedSource = self.kernels.source(self.call, self.dtype, self._rules)
        return source

    @property
    def cuda(self) -> CudaSource:
        """Source of the CUDA kernel for the current GPU, else an H200."""
        c_type_of(self.dtype)
        spec = KernelSpec(self.kernels, self.call, self.dtype, self._rules)
        return generate_cuda(place_on_gpu(spec, choose_shown_chip()))

    # --- costs ----------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Irreps of inputs and output as text."""
        plan = self.plan
        inputs = " x ".join(str(o.irreps.simplify()) for o in plan.inputs)
        channels = f", {plan.f_in} -> {plan.f_out} channels" if plan.arguments.get("f_in") else ""
        return f"{inputs} -> {plan.out.irreps.simplify()}{channels}"

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of the batch by name."""
        return {name: getattr(self, name) for name in ("rows", *self.plan.maker.sizes)}

    @property
    def layouts(self) -> tuple[str, ...]:
        return expand_layout(self.plan, self.layout)

    @property
    def schedule_names(self) -> dict[int, str]:
        """Names of kernel schedules by path."""
        schedule = self.kernels.schedule(self.dtype)
        return {term.path: str(schedule).split(" ", 1)[0] for term in schedule.terms}

    @property
    def module_options(self) -> dict[str, Any]:
        """Keywords to build a module that runs the request."""
        elements = {"num_elements": self.elements} if self.plan.by_element else {}
        return {"layout": self.layout, "strategy": self.strategy, "backend": self.backend, **elements}

    def numbers(self, leg: Leg) -> int:
        """Count the numbers of a row that a leg touches."""
        return leg.numbers * (self.channels if self.plan.operand(leg.operand).channels else 1)

    @property
    def flops(self) -> int:
        """Operations of the forward pass for the batch."""
        return self.rows * (self.plan.flops + self._bias_count)

    @property
    def _bias_count(self) -> int:
        return self.plan.bias_numel * (self.plan.arguments.get("f_out") or 1)

    def count_bytes(self, nodes: int | None = None) -> int:
        """Bytes of inputs, weights and result; with ``nodes``, of a convolution.

        >>> from tpgen.planner.presets import channelwise
        >>> request = Request(channelwise("8x0e", "0e", "0e"), rows=100)
        >>> request.count_bytes(), request.count_bytes(nodes=10)
        (10000, 5840)
        """
        flat, itemsize = self.computed, self.dtype.itemsize
        sets = {SHARED: 1, ELEMENT: self.elements}
        shared = sum(o.dim * sets.get(o.rows, 0) for o in flat.weights)
        biases = self._bias_count * sets.get(flat.weights[0].rows, self.rows)
        numbers = self.rows * flat.row_bytes(1) + shared + biases
        if nodes is None:
            return numbers * itemsize
        numbers += (nodes - self.rows) * (self.plan.inputs[0].dim + self.plan.out.dim)
        return numbers * itemsize + 2 * self.rows * torch.int64.itemsize  # where each edge comes from and goes to

    @property
    def explanation_fields(self) -> dict[str, Any]:
        """Further fields of an `Explanation`."""
        return {}


def list_product_directions(plan: Plan) -> tuple[str, ...]:
    """Names of a plan's directions, such as ``grad_x1``.

    >>> from tpgen.planner.presets import elementwise
    >>> list_product_directions(elementwise("1o", "1o"))
    ('forward', 'right', 'grad_x1', 'grad_x2', 'conv')
    """
    return tuple(d for d in list_directions(plan) if d != "grad_w" or plan.weight_numel > 0)
