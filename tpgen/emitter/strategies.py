"""Strategies: how the terms of a form are written into a graph.

A strategy is a function ``(writer, form, placeholders) -> output``; all stand in `STRATEGIES`.  Most are `framed`: they
write the terms for flat rows, and a result names the segment it belongs to.
"""

from __future__ import annotations

from tpgen.emitter.frame import Strategy, framed
from tpgen.emitter.graph_writer import GraphWriter
from tpgen.emitter.grouped import grouped
from tpgen.emitter.kernel import kernel
from tpgen.emitter.lowering import Inputs, Result, cross_vectors, lower, operand_of, read_term, write_result
from tpgen.emitter.unrolled import unrolled_term
from tpgen.form.form import Form


def einsum(writer: GraphWriter, form: Form, inputs: Inputs) -> list[Result]:
    """Each path on its own, in the contraction order that opt_einsum finds."""
    results = []
    for term in form.live_terms:
        with writer.serving(term.path, "contraction"):
            c, given = cross_vectors(writer, *read_term(writer, form, term, inputs))
            operands = [operand_of(writer, given, f) for f in c.factors]
            results.append(write_result(form, term, inputs, lower(writer, c, operands)))
    return results


def unrolled(writer: GraphWriter, form: Form, inputs: Inputs) -> list[Result]:
    """Non-zero coupling entries as scalar multiply-adds over whole channel vectors: one loop for a fusing backend."""
    return [unrolled_term(writer, form, term, inputs) for term in form.live_terms]


STRATEGIES: dict[str, Strategy] = {
    "einsum": framed(einsum),
    "grouped": framed(grouped),
    "unrolled": framed(unrolled),
    "kernel": kernel,
}
