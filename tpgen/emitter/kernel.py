"""The kernel strategy: one node that calls a generated kernel."""

from __future__ import annotations

import torch

from tpgen.emitter.frame import Given, framed
from tpgen.emitter.graph_writer import GraphWriter, Traced
from tpgen.emitter.grouped import grouped_terms
from tpgen.emitter.lowering import Inputs, Result
from tpgen.form.form import Form
from tpgen.kernels.operators.batched import batched_product
from tpgen.kernels.operators.description import describe
from tpgen.kernels.schedule.values import SLOTS


def kernel(writer: GraphWriter, form: Form, given: Given) -> Traced:
    """The product as one call, which also broadcasts; a gradient as one call inside the usual frame.

    `right` opens two operands at once, which kernels do not: it is written as in the grouped strategy.  So is a form
    without paths, which is zero.
    """
    if not form.live_terms:
        return framed(grouped_terms)(writer, form, given)
    if form.opened == ("out",):
        every = tuple(term.path for term in form.terms)
        with writer.serving(every, "kernel"):
            x1, x2, w = (given[name,] for name in SLOTS[:3])
            return writer.call(batched_product, x1, x2, w, describe(form.plan, form.layout), form.plan.shared_weights)
    if len(form.opened) == 1 and len(form.groups) == len(SLOTS):
        return framed(_gradient)(writer, form, given)
    return framed(grouped_terms)(writer, form, given)


def _gradient(writer: GraphWriter, form: Form, inputs: Inputs) -> list[Result]:
    """The gradient of one operand; the kernel reads of that operand only its shape."""
    (opened,) = form.opened
    slot = SLOTS.index(opened)
    shape = (inputs.rows,) if form.row(form.opened) else ()
    every = tuple(term.path for term in form.terms)
    with writer.serving(every, "kernel"):
        like = next(iter(inputs.flat.values())).new_empty((*shape, form.operand(opened).dim))
        operands = [inputs.flat.get(name, like) for name in SLOTS]
        gradients = torch.ops.tpgen.gradients(*operands, describe(form.plan, form.layout), 1 << slot)
        return [Result((), gradients[0], every)]
