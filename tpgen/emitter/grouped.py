"""The grouped strategy's large products:

- *tables*: ``T[z, i, k] = sum_j C[i, j, k] x2[z, j]`` of all paths with one copy of input 2;
- *features*: coupled inputs of an output segment's paths, times stacked shared weights, if no order costs less.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import torch

from tpgen.emitter.graph_writer import GraphWriter, Traced
from tpgen.emitter.lowering import (
    FlatOperands,
    Labelled,
    SegmentResult,
    flatten_term_result,
    read_term,
    write_contraction,
    write_cross_product,
)
from tpgen.form.contraction import BATCH, PLANNING_ROWS, Contraction, Coupling, Factor, count_flops
from tpgen.form.form import Form, Term

# What a table depends on: the segment of input 2, the coupling, its coefficient.
_SecondInputTableKey = tuple[int, Coupling, float]
# A term with its contraction and its operands by factor source; passes hand these on.
PreparedTerm = tuple[Term, Contraction, dict[str, Labelled]]


def grouped(writer: GraphWriter, form: Form, inputs: FlatOperands) -> list[SegmentResult]:
    """Write large matrix products for paths that share operands or outputs."""
    prepared = []
    for term in form.live_terms:
        with writer.serving(term.path, "contraction"):
            prepared.append((term, *write_cross_product(writer, *read_term(writer, form, term, inputs))))
    prepared = _couple_second_input_for_all_paths_at_once(writer, form, inputs, prepared)
    opened, prepared = _write_second_input_gradient_as_one_product(writer, form, inputs, prepared)
    groups, rest = _group_terms_with_weights_last_by_output_segment(form, prepared)
    results = [*opened, *(_write_product_with_stacked_weights(writer, form, inputs, group) for group in groups)]
    for term, c, given in rest:
        with writer.serving(term.path, "contraction"):
            results.append(flatten_term_result(form, term, inputs, write_contraction(writer, c, given)))
    return results


def _couple_second_input_for_all_paths_at_once(
    writer: GraphWriter, form: Form, inputs: FlatOperands, terms: list[PreparedTerm]
) -> list[PreparedTerm]:
    if ("x2",) not in form.given:
        return terms
    keys = {n: _find_key_of_second_input_table(term, c) for n, (term, c, _) in enumerate(terms)}
    keyed = {n: key for n, key in keys.items() if key is not None}
    if len(keyed) < 2:
        return terms
    unique = list(dict.fromkeys(keyed.values()))
    blocks = [_make_coupling_matrix_on_second_input(form, *key) for key in unique]
    every = tuple(terms[n][0].path for n in keyed)
    with writer.serving(every, "coupling"):
        coupled = inputs.flat["x2"] @ writer.constant("_tables", np.concatenate(blocks, axis=1))
        tables = torch.split_with_sizes(coupled, [block.shape[1] for block in blocks], dim=-1)
    changed = list(terms)
    for n, key in keyed.items():
        term, c, given = terms[n]
        with writer.serving(term.path, "coupling"):
            table = tables[unique.index(key)].reshape((inputs.rows, *c.shape("ik")))
        # the table stands for input 2, coupling and coefficient
        kept = tuple(f for f in c.factors if f.source != "x2" and not isinstance(f.source, Coupling))
        bare = replace(c, factors=(*kept, Factor("table", BATCH + "ik")), coefficient=1.0)
        changed[n] = (term, bare, {**given, "table": Labelled(table, BATCH + "ik")})
    return changed


def _write_second_input_gradient_as_one_product(
    writer: GraphWriter, form: Form, inputs: FlatOperands, terms: list[PreparedTerm]
) -> tuple[list[SegmentResult], list[PreparedTerm]]:
    if form.opened != ("x2",):
        return [], terms
    keyed: dict[_SecondInputTableKey, list[PreparedTerm]] = {}
    rest = []
    for term, c, given in terms:
        coupling = c.find(Coupling)
        if c.output == BATCH + "j" and coupling is not None and isinstance(coupling.source, Coupling):
            keyed.setdefault((term.segment("x2"), coupling.source, c.coefficient), []).append((term, c, given))
        else:
            rest.append((term, c, given))
    if len(keyed) < 2:
        return [], terms
    blocks = np.concatenate([_make_coupling_matrix_on_second_input(form, *key) for key in keyed], axis=1)
    every = tuple(sorted(term.path for group in keyed.values() for term, _, _ in group))
    sums = [
        reduce(add, (_contract_before_coupling(writer, inputs, *entry) for entry in group)) for group in keyed.values()
    ]
    with writer.serving(every, "coupling"):
        gradient = torch.cat(sums, dim=-1) @ writer.constant("_open_tables", np.ascontiguousarray(blocks.T))
        bounds = form.operand("x2").segments
        pieces = torch.split_with_sizes(gradient, [stop - start for start, stop in bounds], dim=-1)
    reached: dict[int, list[int]] = {}
    for (segment, _, _), group in keyed.items():
        reached.setdefault(segment, []).extend(term.path for term, _, _ in group)
    results = []
    for segment, paths in reached.items():
        with writer.serving(tuple(sorted(paths)), "slice"):
            results.append(SegmentResult((segment,), pieces[segment], tuple(sorted(paths))))
    return results, rest


def _contract_before_coupling(
    writer: GraphWriter, inputs: FlatOperands, term: Term, c: Contraction, given: dict[str, Labelled]
) -> Traced:
    coupling = c.find(Coupling)
    assert coupling is not None
    bare = c.drop_factor(coupling, output=BATCH + "ik", coefficient=1.0)
    with writer.serving(term.path, "contraction"):
        tensor = write_contraction(writer, bare, given).tensor
    with writer.serving(term.path, "reshape"):
        return tensor.reshape((inputs.rows, c.size("ik")))


def _find_key_of_second_input_table(term: Term, contraction: Contraction) -> _SecondInputTableKey | None:
    # None for a term that reads no table
    coupling = contraction.find(Coupling)
    x2 = next((f for f in contraction.factors if f.source == "x2"), None)
    if coupling is None or x2 is None or x2.letters != BATCH + "j":
        return None
    assert isinstance(coupling.source, Coupling)
    return term.segment("x2"), coupling.source, contraction.coefficient


def _make_coupling_matrix_on_second_input(
    form: Form, segment: int, coupling: Coupling, coefficient: float
) -> np.ndarray:
    start, stop = form.operand("x2").segments[segment]
    values = coefficient * coupling.array().transpose(1, 0, 2)
    block = np.zeros((form.operand("x2").dim, values[0].size))
    block[start:stop] = values.reshape(stop - start, -1)
    return block


def _group_terms_with_weights_last_by_output_segment(
    form: Form, terms: list[PreparedTerm]
) -> tuple[list[list[PreparedTerm]], list[PreparedTerm]]:
    if form.opened != ("out",) or form.row(("w",)):
        return [], terms
    by_output: dict[int, list[PreparedTerm]] = {}
    rest = []
    for entry in terms:
        if _is_contracting_weights_last_cheapest(entry[1]):
            by_output.setdefault(entry[0].segment("out"), []).append(entry)
        else:
            rest.append(entry)
    return list(by_output.values()), rest


def _is_contracting_weights_last_cheapest(contraction: Contraction) -> bool:
    # and whether weights fill an output axis at all
    w = next((f for f in contraction.factors if f.source == "w"), None)
    if w is None or not set(w.letters) & set(contraction.output):
        return False
    if not any(
        a in contraction.output and all(a not in f.letters for f in contraction.factors if f is not w)
        for a in w.letters
    ):
        return False
    coupled, summed = _find_contraction_before_weights_and_summed_letters(contraction)
    operations = 2 if contraction.size(summed) > 1 else 1  # opt_einsum counts the additions of a sum
    last = (
        operations * PLANNING_ROWS * contraction.size(coupled.output) * contraction.size(set(w.letters) - set(summed))
    )
    return count_flops(coupled) + last <= 1.05 * count_flops(contraction)


def _find_contraction_before_weights_and_summed_letters(contraction: Contraction) -> tuple[Contraction, str]:
    # also returns the copies that the weights sum; components come ahead of copies
    w = next(f for f in contraction.factors if f.source == "w")
    summed = "".join(a for a in w.letters if a not in contraction.output)
    kept = "".join(a for a in contraction.output if a not in w.letters and a != BATCH)
    return replace(contraction.drop_factor(w), output=BATCH + kept + summed), summed


def _write_product_with_stacked_weights(
    writer: GraphWriter, form: Form, inputs: FlatOperands, group: list[PreparedTerm]
) -> SegmentResult:
    features, weights = [], []
    for term, c, given in group:
        with writer.serving(term.path, "contraction"):
            coupled, summed = _find_contraction_before_weights_and_summed_letters(c)
            tensor = write_contraction(writer, coupled, given).tensor
        components, copies = c.size(coupled.output) // c.size(summed), c.size(summed)
        with writer.serving(term.path, "reshape"):
            features.append(tensor.reshape((inputs.rows * components, copies)))
        with writer.serving(term.path, "weight"):
            w = inputs.read_segment("w", term.segment("w"))
            weights.append(w.reshape((copies, dict(term.sizes)["w"])))
    first, every = group[0][0], tuple(term.path for term, _, _ in group)
    sizes = dict(first.sizes)
    with writer.serving(every, "weight"):
        mixed = torch.mm(_concatenate_unless_single(features, -1), _concatenate_unless_single(weights, 0))
    with writer.serving(every, "reshape"):
        mixed = mixed.reshape((inputs.rows, sizes["k"], sizes["w"]))
        if first.legs[-1].letters.endswith("k"):
            mixed = mixed.transpose(1, 2)
        flat = mixed.reshape((inputs.rows, sizes["k"] * sizes["w"]))
    return SegmentResult((first.segment("out"),), flat, every)


def _concatenate_unless_single(tensors: list[Traced], dim: int) -> Traced:
    return torch.cat(tensors, dim=dim) if len(tensors) > 1 else tensors[0]
