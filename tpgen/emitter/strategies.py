"""Strategies: how the terms of a form are written into a graph.

A strategy is a function ``(writer, form, placeholders) -> output``; all stand in `STRATEGIES`.  Most are `framed`: they
write the terms for flat rows, and a result names the segment it belongs to.
"""

from __future__ import annotations

from tpgen.emitter.frame import Strategy, framed
from tpgen.emitter.graph_writer import GraphWriter
from tpgen.emitter.grouped import grouped_terms
from tpgen.emitter.kernel import kernel
from tpgen.emitter.lowering import Inputs, Result, constant_factor, cross_vectors, lower, read_term, write_result
from tpgen.emitter.unrolled import unrolled_term
from tpgen.form.form import Form, Term


def einsum(writer: GraphWriter, form: Form, inputs: Inputs) -> list[Result]:
    """Each path on its own, in the contraction order that opt_einsum finds."""
    return [_einsum_term(writer, form, term, inputs) for term in form.live_terms]


def grouped(writer: GraphWriter, form: Form, inputs: Inputs) -> list[Result]:
    """Paths that share operands or outputs as few large matrix products, the others as in `einsum`."""
    return grouped_terms(writer, form, inputs)


def unrolled(writer: GraphWriter, form: Form, inputs: Inputs) -> list[Result]:
    """Non-zero coupling entries as scalar multiply-adds over whole channel vectors: one loop for a fusing backend."""
    return [unrolled_term(writer, form, term, inputs) for term in form.live_terms]


def _einsum_term(writer: GraphWriter, form: Form, term: Term, inputs: Inputs) -> Result:
    with writer.serving(term.path, "contraction"):
        c, given = cross_vectors(writer, *read_term(writer, form, term, inputs))
        operands = [given[f.source] if isinstance(f.source, str) else constant_factor(writer, f) for f in c.factors]
        return write_result(form, term, inputs, lower(writer, c, operands))


STRATEGIES: dict[str, Strategy] = {
    "einsum": framed(einsum),
    "grouped": framed(grouped),
    "unrolled": framed(unrolled),
    "kernel": kernel,
}
