"""Strategies: functions ``(writer, form, placeholders) -> output``."""

from __future__ import annotations

import torch

from tpgen.emitter.frame import FormPlaceholders, Strategy, make_strategy
from tpgen.emitter.graph_writer import GraphWriter, Traced
from tpgen.emitter.grouped import grouped
from tpgen.emitter.lowering import (
    FlatOperands,
    SegmentResult,
    flatten_term_result,
    read_term,
    write_contraction,
    write_cross_product,
)
from tpgen.emitter.unrolled import write_unrolled_term
from tpgen.form.form import Form
from tpgen.kernels.rows import RULES
from tpgen.kernels.runtime.batched import batched_product
from tpgen.kernels.runtime.call import FORWARD, product_call_text
from tpgen.kernels.runtime.description import describe
from tpgen.kernels.sweep.terms import SLOTS


def einsum(writer: GraphWriter, form: Form, inputs: FlatOperands) -> list[SegmentResult]:
    """Write each path separately, in the cheapest order."""
    results = []
    for term in form.live_terms:
        with writer.serving(term.path, "contraction"):
            c, given = write_cross_product(writer, *read_term(writer, form, term, inputs))
            results.append(flatten_term_result(form, term, inputs, write_contraction(writer, c, given)))
    return results


def unrolled(writer: GraphWriter, form: Form, inputs: FlatOperands) -> list[SegmentResult]:
    """Write non-zero coupling entries as multiply-adds, for fusing backends."""
    return [write_unrolled_term(writer, form, term, inputs) for term in form.live_terms]


def kernel(writer: GraphWriter, form: Form, placeholders: FormPlaceholders) -> Traced:
    """Write the product, or one gradient, as one kernel call; other forms use `grouped`."""
    if form.live_terms and form.opened == ("out",):
        return _write_kernel_product_call(writer, form, placeholders)
    one_open = form.live_terms and len(form.opened) == 1 and len(form.slots) == len(SLOTS)
    return make_strategy(_write_kernel_gradient_call if one_open else grouped)(writer, form, placeholders)


def _write_kernel_product_call(writer: GraphWriter, form: Form, placeholders: FormPlaceholders) -> Traced:
    x1, x2, w = (placeholders.operands.get((name,)) for name in SLOTS[:3])
    text = describe(form.plan, form.layout)
    with writer.serving(tuple(term.path for term in form.terms), "kernel"):
        if x2 is None:
            assert x1 is not None
            x2 = x1.detach().narrow(-1, 0, 0)  # no second input is one without entries
        if form.indices:
            names = [name for name in RULES if name in form.indices]
            indices = [placeholders.indices[name] for name in names]
            nodes = placeholders.sizes.get("dst", 0)
            return torch.ops.tpgen.form([x1, x2, w], indices, text, FORWARD, " ".join(names), nodes)[0]
        return writer.call(batched_product, x1, x2, w, text, not form.operand("w").row)


def _write_kernel_gradient_call(writer: GraphWriter, form: Form, inputs: FlatOperands) -> list[SegmentResult]:
    # the kernel reads only the shape of the opened operand
    (opened,) = form.opened
    shape = (inputs.rows,) if form.row(form.opened) else ()
    every = tuple(term.path for term in form.terms)
    with writer.serving(every, "kernel"):
        like = next(iter(inputs.flat.values())).new_empty((*shape, form.operand(opened).dim))
        operands = [inputs.flat.get(name, like) for name in SLOTS]
        gradients = torch.ops.tpgen.form(operands, [], describe(form.plan, form.layout), product_call_text(opened))
        return [SegmentResult((), gradients[0], every)]


STRATEGIES: dict[str, Strategy] = {
    "einsum": make_strategy(einsum),
    "grouped": make_strategy(grouped),
    "unrolled": make_strategy(unrolled),
    "kernel": kernel,
}
