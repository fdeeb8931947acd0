r"""Run a product whose every derivative is a program of its own.

`torch.compile` derives a backward graph from the forward one, and has no second derivative.  The form knows better:
the gradient of :math:`\partial L/\partial s` for a cotangent :math:`c`, with respect to another operand :math:`t`,
is :math:`\partial L/\partial t` with :math:`c` in the place of :math:`s`.  So each slot has one emitted and
compiled program, and autograd of any order goes from program to program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tpgen.emitter.emit import Emission, emit_form
from tpgen.form.form import Form, Layout, make_form
from tpgen.planner.plan import Plan

# Strategies whose gradients are written as graphs of their own.  A kernel brings its own; for the others autograd of
# few large operations is as good.
OWN_GRADIENTS = ("unrolled",)
SLOTS = ("x1", "x2", "w", "out")
Compile = Callable[[torch.nn.Module], Callable[..., Tensor]]


class ClosedForm:
    """The programs of one product, one for each open slot, written and compiled when first needed."""

    def __init__(self, plan: Plan, layout: Layout, strategy: str, like: Tensor, compile_program: Compile) -> None:
        self._form = make_form(plan, layout)
        self._strategy = strategy
        self._like = like
        self._compile = compile_program
        self._programs: dict[tuple[str, bool], Callable[..., Tensor]] = {}

    def __call__(self, x1: Tensor, x2: Tensor, w: Tensor) -> Tensor:
        """The product, differentiable to any order."""
        return _Open.apply(self, "out", False, x1, x2, w, None)

    def program(self, slot: str, weighted: bool) -> Callable[..., Tensor]:
        """The compiled program that opens a slot, of all paths or of the weighted ones alone."""
        key = (slot, weighted)
        if key not in self._programs:
            module = self.emission(slot, weighted).module()
            self._programs[key] = self._compile(module.to(device=self._like.device, dtype=self._like.dtype))
        return self._programs[key]

    def emission(self, slot: str, weighted: bool = False) -> Emission:
        form: Form = self._form.open(slot)
        if weighted:
            form = replace(form, terms=tuple(t for t in form.terms if t.leg("w")))
        return emit_form(form, self._strategy, title=f"{slot} of {form.plan.digest}, {self._strategy}")

    def shared(self, slot: str) -> bool:
        return not self._form.operand(slot).row


class _Open(torch.autograd.Function):
    """One slot of the form, given the other three."""

    @staticmethod
    def forward(ctx, closed: ClosedForm, slot: str, weighted: bool, *operands: Tensor | None) -> Tensor:
        ctx.closed, ctx.slot, ctx.weighted = closed, slot, weighted
        ctx.save_for_backward(*operands)
        # detached: the compiled program is for values alone, its derivatives are other programs
        return closed.program(slot, weighted)(*(x.detach() for x in operands if x is not None))

    @staticmethod
    def backward(ctx, cotangent: Tensor) -> tuple:
        operands = list(ctx.saved_tensors)
        opened = SLOTS.index(ctx.slot)
        # where something stands in the weights' place, paths without weights drop out
        weighted = ctx.weighted or ctx.slot == "w"
        gradients: list[Tensor | None] = [None] * 4
        for n, slot in enumerate(SLOTS):
            if n != opened and ctx.needs_input_grad[3 + n]:
                point = [cotangent if m == opened else None if m == n else x for m, x in enumerate(operands)]
                gradient = _Open.apply(ctx.closed, slot, weighted, *point)
                gradients[n] = gradient if ctx.closed.shared(slot) else gradient.sum_to_size(operands[n].shape)
        return (None, None, None, *gradients)
