r"""Run a form whose every derivative is a program of its own.

`torch.compile` derives a backward graph from the forward one, and has no second derivative.  The form knows better:
the gradient of :math:`\partial L/\partial s` for a cotangent :math:`c`, with respect to another operand :math:`t`,
is :math:`\partial L/\partial t` with :math:`c` in the place of :math:`s`.  All operands that a gradient is wanted for
are opened by one program, which reads everything once; its derivatives are sums of such programs at other points.
So autograd of any order goes from program to program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.compiler.backends import CompileOptions, Runner, compile_program, overwrites_results
from tpgen.emitter.emit import Emission, emit_forms
from tpgen.form.form import Form

Program = Callable[..., Any]  # returns a tuple of tensors
Compile = Callable[[torch.nn.Module], Program]
Slots = tuple[int, ...]  # positions among the groups of the form


def run_form(
    form: Form, program: nn.Module, strategy: str, backend: str, like: Tensor, options: CompileOptions | None = None
) -> Runner:
    """The program of a form under a backend; where that uses `torch.compile`, with gradients as programs of their own.

    Dtype and device are those of ``like``.
    """
    options = options or CompileOptions()

    def compiled(program: nn.Module) -> Runner:
        return compile_program(program, backend, options)

    if strategy == "kernel" and form.opened == ("out",) and backend != "script":
        return program  # one call, differentiable to any order; torch.compile around it would stop at the first
    if backend in ("eager", "script") or torch.compiler.is_compiling():
        return compiled(program)
    return ClosedForm(form, strategy, like, compiled, overwrites_results(backend, options, like.device))


class ClosedForm:
    """The programs of one form, one for each choice of open slots, written and compiled when first needed.

    Programs have the dtype and device of ``like``.  With ``copies`` the results are copied out of memory that the next
    run of a program overwrites.
    """

    def __init__(self, form: Form, strategy: str, like: Tensor, compile_program: Compile, copies: bool = False) -> None:
        self._form = form
        self._strategy = strategy
        self._like = like
        self._compile = compile_program
        self._copies = copies
        self._programs: dict[tuple[Slots, bool], Program] = {}
        self._opened = form.groups.index(form.opened)
        self.shared = tuple(not form.row(group) for group in form.groups)

    def __call__(self, *operands: Tensor) -> Tensor:
        """The form at the operands that are given, differentiable to any order."""
        point = (*operands[: self._opened], None, *operands[self._opened :])
        if not torch.is_grad_enabled():  # autograd's bookkeeping costs as much as a small product
            return self.run((self._opened,), False, point)[0]
        return _Open.apply(self, (self._opened,), False, *point)[0]

    def run(self, opened: Slots, weighted: bool, point: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """Values of the open slots, of all paths or of the weighted ones alone."""
        key = (opened, weighted)
        if key not in self._programs:
            module = self.emission(opened, weighted).module()
            self._programs[key] = self._compile(module.to(device=self._like.device, dtype=self._like.dtype))
        # where a single slot is open, nothing reads what stands there
        given = [x for n, x in enumerate(point) if opened != (n,)]
        # detached: the compiled program is for values alone, its derivatives are other programs
        results = self._programs[key](*(x.detach() for x in given if x is not None))
        return tuple(x.clone() for x in results) if self._copies else results

    def emission(self, opened: Slots, weighted: bool = False) -> Emission:
        """The program that opens some slots, written."""
        form = self._form
        if weighted:
            form = replace(form, terms=tuple(t for t in form.terms if t.leg("w")))
        forms = tuple(form.open(*form.groups[n]) for n in opened)
        names = ", ".join("*".join(f.opened) for f in forms)
        return emit_forms(forms, self._strategy, title=f"{names} of {form.plan.digest}, {self._strategy}")

    def weights(self, slot: int) -> bool:
        return self._form.groups[slot] == ("w",)


class _Open(torch.autograd.Function):
    """Some slots of the form opened at a point: an operand for each slot, nothing where a single one is open."""

    @staticmethod
    def forward(ctx, closed: ClosedForm, opened: Slots, weighted: bool, *point: Tensor | None) -> tuple[Tensor, ...]:
        ctx.closed, ctx.opened, ctx.weighted = closed, opened, weighted
        ctx.save_for_backward(*point)
        ctx.set_materialize_grads(False)
        return closed.run(opened, weighted, point)

    @staticmethod
    def backward(ctx, *cotangents: Tensor | None) -> tuple:
        point = ctx.saved_tensors
        wanted = tuple(n for n in range(len(point)) if ctx.needs_input_grad[3 + n])
        gradients: list[Tensor | None] = [None] * len(point)
        for slot, cotangent in zip(ctx.opened, cotangents, strict=True):
            others = tuple(n for n in wanted if n != slot)  # the form is linear in each slot
            if cotangent is None or not others:
                continue
            # where something stands in the weights' place, paths without weights drop out
            weighted = ctx.weighted or ctx.closed.weights(slot)
            moved = (*point[:slot], cotangent, *point[slot + 1 :])
            for n, gradient in zip(others, _Open.apply(ctx.closed, others, weighted, *moved), strict=True):
                if not ctx.closed.shared[n] and gradient.shape != point[n].shape:
                    gradient = gradient.sum_to_size(point[n].shape)
                gradients[n] = gradient if gradients[n] is None else gradients[n] + gradient
        return (None, None, None, *gradients)
