"""The grouped strategy: paths that share operands or outputs as few large matrix products.

Two groupings, both for the product itself; what fits neither is left to the caller.

- *tables* (a single copy of input 2, input-1 copies kept: ``uvu`` with v = 1): ``T = x2 @ M``, all couplings of all paths
  in one constant matrix M, then one batched product ``x1[z, u, i] @ T[z, i, K]`` per input-1 segment.
- *features* (shared weights that mix copies: ``uvw``, ``uuw``, ``u<vw``): the coupled inputs of every path into one
  output segment side by side, times their weights stacked: one matrix product per output segment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import fx

from tpgen.emitter.graph_writer import GraphWriter
from tpgen.emitter.lowering import Inputs, Result, constant_factor, lower, read_term, segment_of
from tpgen.form.contraction import BATCH, Contraction
from tpgen.form.form import Form, Term

Writer = Callable[[GraphWriter, Form, Inputs, list[Term]], list[Result]]


def grouped_terms(writer: GraphWriter, form: Form, inputs: Inputs) -> tuple[list[Result], list[Term]]:
    """Write what can be grouped; return the results and the terms that are left."""
    rest = list(form.live_terms)
    results: list[Result] = []
    if form.opened != ("out",):
        return results, rest
    for belongs, write in ((_is_table_term, _write_tables), (partial(_is_feature_term, form), _write_features)):
        group = [term for term in rest if belongs(term)]
        if len(group) > 1:
            rest = [term for term in rest if term not in group]
            results += write(writer, form, inputs, group)
    return results, rest


def _is_table_term(term: Term) -> bool:
    """Copies of input 1 pass through, input 2 has one copy."""
    sizes = dict(term.sizes)
    copies = [[a for a in leg.letters if a not in "ijk" and sizes[a] > 1] for leg in term.legs]
    x1, x2, out, w = copies[0], copies[1], copies[-1], copies[2] if len(copies) == 4 else []
    return not term.pairs and not x2 and x1 == out and set(w) <= set(x1)


def _write_tables(writer: GraphWriter, form: Form, inputs: Inputs, terms: list[Term]) -> list[Result]:
    by_segment: dict[int, list[Term]] = {}
    for term in terms:
        by_segment.setdefault(segment_of(term, "x1"), []).append(term)
    every = tuple(term.path for term in terms)
    blocks = [_table_block(form, group) for group in by_segment.values()]
    with writer.serving(every, "coupling"):
        table = inputs.flat["x2"] @ writer.constant("_tables", np.concatenate(blocks, axis=1))
        tables = torch.split_with_sizes(table, [block.shape[1] for block in blocks], dim=-1)
    results = []
    for n, group in enumerate(by_segment.values()):
        results += _write_table_group(writer, form, inputs, group, tables[n])
    return results


def _table_block(form: Form, terms: list[Term]) -> np.ndarray:
    """Couplings of the paths that read one segment, as the matrix (in2, i * K), K the output components side by side."""
    d1 = dict(terms[0].sizes)["i"]
    columns = []
    for term in terms:
        start, stop = form.operand("x2").segments[segment_of(term, "x2")]
        block = np.zeros((form.operand("x2").dim, d1, dict(term.sizes)["k"]))
        block[start:stop] = term.coefficient * term.coupling.array().transpose(1, 0, 2)
        columns.append(block)
    return np.concatenate(columns, axis=2).reshape(form.operand("x2").dim, -1)


def _write_table_group(
    writer: GraphWriter, form: Form, inputs: Inputs, terms: list[Term], table: fx.Proxy
) -> list[Result]:
    every = tuple(term.path for term in terms)
    sizes = dict(terms[0].sizes)
    widths = [dict(term.sizes)["k"] for term in terms]
    leg = terms[0].leg("x1")
    assert leg is not None
    letters = leg.letters
    copies = sizes[letters.replace("i", "")]
    x1 = inputs.segment("x1", leg.segment)
    with writer.serving(every, "contraction"):
        x1 = x1.reshape((inputs.rows, *(sizes[a] for a in letters)))
        table = table.reshape((inputs.rows, sizes["i"], sum(widths)))
        inner = terms[0].legs[-1].letters.endswith("k")  # components innermost in the output, as in mul_ir
        rows = x1 if letters.endswith("i") else x1.transpose(1, 2)
        product = torch.bmm(rows, table) if inner else torch.bmm(table.transpose(1, 2), rows.transpose(1, 2))
        pieces = torch.split_with_sizes(product, widths, dim=-1 if inner else 1)
    results = []
    for n, (term, width) in enumerate(zip(terms, widths, strict=True)):
        with writer.serving(term.path, "slice"):
            piece = pieces[n]
        if term.leg("w"):
            with writer.serving(term.path, "weight"):
                piece = piece * _row_weights(inputs, form, term, copies, -1 if inner else 1)
        with writer.serving(term.path, "reshape"):
            flat = piece.reshape((inputs.rows, copies * width))
        results.append(Result((segment_of(term, "out"),), flat, (term.path,)))
    return results


def _row_weights(inputs: Inputs, form: Form, term: Term, copies: int, axis: int) -> fx.Proxy:
    """Weights of a path over its copies, with an axis of length one for the components."""
    w = inputs.segment("w", segment_of(term, "w"))
    return w.unsqueeze(axis if form.row(("w",)) or axis < 0 else axis - 1)


def _is_feature_term(form: Form, term: Term) -> bool:
    """Shared weights with an output axis of their own."""
    w, out = term.leg("w"), term.legs[-1]
    return bool(w) and not form.row(("w",)) and "w" in out.letters and dict(term.sizes)["w"] > 1


def _write_features(writer: GraphWriter, form: Form, inputs: Inputs, terms: list[Term]) -> list[Result]:
    by_output: dict[int, list[Term]] = {}
    for term in terms:
        by_output.setdefault(segment_of(term, "out"), []).append(term)
    return [_write_feature_group(writer, form, inputs, group) for group in by_output.values()]


def _write_feature_group(writer: GraphWriter, form: Form, inputs: Inputs, terms: list[Term]) -> Result:
    """``out[z, k, w] = sum_c features[z, k, c] weights[c, w]``, c over every path's input copies."""
    features, weights = [], []
    for term in terms:
        with writer.serving(term.path, "contraction"):
            feature, weight = _feature(writer, form, inputs, term)
            features.append(feature)
            weights.append(weight)
    sizes = dict(terms[0].sizes)
    with writer.serving(tuple(term.path for term in terms), "weight"):
        left = torch.cat(features, dim=-1) if len(features) > 1 else features[0]
        right = torch.cat(weights, dim=0) if len(weights) > 1 else weights[0]
        mixed = torch.mm(left, right).reshape((inputs.rows, sizes["k"], sizes["w"]))
    with writer.serving(tuple(term.path for term in terms), "reshape"):
        if terms[0].legs[-1].letters.endswith("k"):
            mixed = mixed.transpose(1, 2)
        flat = mixed.reshape((inputs.rows, sizes["k"] * sizes["w"]))
    return Result((segment_of(terms[0], "out"),), flat, tuple(term.path for term in terms))


def _feature(writer: GraphWriter, form: Form, inputs: Inputs, term: Term) -> tuple[fx.Proxy, fx.Proxy]:
    """A path's coupled inputs ``(z k, c)`` and its weights ``(c, w)``."""
    c, given = read_term(writer, form, term, inputs)
    coupled, summed = _without_weights(c)
    operands = [given[f.source] if isinstance(f.source, str) else constant_factor(writer, f) for f in coupled.factors]
    tensor = lower(writer, coupled, operands).tensor
    components, copies = c.size(coupled.output) // c.size(summed), c.size(summed)
    with writer.role("reshape"):
        feature = tensor.reshape((inputs.rows * components, copies))
    with writer.role("weight"):
        weight = inputs.segment("w", segment_of(term, "w")).reshape((copies, dict(term.sizes)["w"]))
    return feature, weight


def _without_weights(c: Contraction) -> tuple[Contraction, str]:
    """The contraction up to the weights, components before copies, and the copies that the weights sum."""
    w = next(f for f in c.factors if f.source == "w")
    summed = "".join(a for a in w.letters if a not in c.output)
    kept = "".join(a for a in c.output if a not in w.letters and a != BATCH)
    return replace(c.without(w), output=BATCH + kept + summed), summed


