"""Write an einsum as graph nodes, pairwise."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch

from tpgen.emitter.graph_writer import GraphWriter, Traced
from tpgen.form.contraction import BATCH, Contraction, Coupling, Factor, Pairs, plan_pairwise_contractions
from tpgen.form.form import Form, SlotNames, Term
from tpgen.form.rewrites import simplify_contraction

# Up to so many terms a fusing backend writes a sum out as an expression, without a loop; and up to so many products in
# a row, a call of a matrix product costs more than the arithmetic.
_FEW_TERMS, _FEW_PRODUCTS = 8, 256


@dataclass(frozen=True)
class Labelled:
    """Tensor of an fx graph, with one einsum letter per axis."""

    tensor: Traced
    letters: str
    role: str = "contraction"


@dataclass(frozen=True)
class FlatOperands:
    """A form's operands in the graph, flat ``(row, dim)``, read by segment."""

    writer: GraphWriter
    form: Form
    flat: dict[str, Traced]  # by slot
    rows: Traced

    def read_segment(self, name: str, index: int) -> Traced:
        """Slice one segment of an operand."""
        # the gradient of one split is one concatenation; slices would each cost a zero-filled gradient of the operand
        sizes = [stop - start for start, stop in self.form.operand(name).segments]
        if len(sizes) == 1:
            return self.flat[name]
        with self.writer.serving((), "slice"):
            pieces: Traced = torch.split_with_sizes(self.flat[name], sizes, dim=-1)
        with self.writer.role("slice"):
            piece = pieces[index]
            piece.node.meta["name"] = f"{name}_{index}"
            return piece

    def read_term_operand(self, term: Term, source: str, shape: tuple[int, ...]) -> Traced:
        """View a term's segment as ``(rows, *shape)``."""
        slot = tuple(source.split("*"))
        if len(slot) == 1:
            flat = self.read_segment(source, term.segment(source))
            if len(shape) == 1:
                return flat
        else:
            flat = self._narrow_outer_product_to_term(term, slot)
        with self.writer.role("slice"):
            if not shape:
                return (flat.flatten(-len(slot)) if len(slot) > 1 else flat).squeeze(-1)
            return flat.reshape(((self.rows,) if self.form.row(slot) else ()) + shape)

    def _narrow_outer_product_to_term(self, term: Term, operand_names: SlotNames) -> Traced:
        block = self.flat["*".join(operand_names)]
        with self.writer.role("slice"):
            for axis, name in enumerate(operand_names, start=-len(operand_names)):
                start, stop = self.form.operand(name).segments[term.segment(name)]
                block = torch.narrow(block, axis, start, stop - start)
        return block

    def flatten_result(self, result: Labelled, dims: tuple[int, ...]) -> Traced:
        """Reshape a result to ``(row, *dims)``, or ``dims`` without batch."""
        batch = BATCH in result.letters
        if len(dims) == 1 and len(result.letters) == 1 + batch:
            return result.tensor
        with self.writer.role("reshape"):
            return result.tensor.reshape(((self.rows,) if batch else ()) + dims)


def write_contraction(
    writer: GraphWriter, c: Contraction, given: dict[str, Labelled], elementwise: bool = False
) -> Labelled:
    """Write a contraction's graph nodes; ``given`` holds the tensors of named factors.

    ``elementwise`` prefers product and sum over einsum, for fusing backends.
    """
    remaining = _scale_smallest_operand(writer, c, [trace_operand(writer, given, f) for f in c.factors])
    for step in plan_pairwise_contractions(tuple(g.letters for g in remaining), c.output, c.sizes):
        taken = [remaining[p] for p in step.positions]
        remaining = [g for p, g in enumerate(remaining) if p not in step.positions]
        role = next((r for r in ("weight", "coupling") if any(t.role == r for t in taken)), "contraction")
        with writer.role(role):
            tensor = _contract_one_or_two_tensors(c, taken, step.letters, elementwise)
        remaining.append(Labelled(tensor, step.letters))
    return remaining[0]


def trace_operand(writer: GraphWriter, given: dict[str, Labelled], factor: Factor) -> Labelled:
    """Tensor of a factor: given, or a constant's buffer."""
    if isinstance(factor.source, str):
        return given[factor.source]
    with writer.role("coupling"):
        return Labelled(writer.constant(factor.source.name, factor.source.array()), factor.letters, "coupling")


def _replace_one_hot_pair_factors_by_gathers(
    writer: GraphWriter, c: Contraction, given: dict[str, Labelled]
) -> tuple[Contraction, dict[str, Labelled]]:
    for factor in [f for f in c.factors if isinstance(f.source, Pairs)]:
        pair, copy = tuple(factor.letters)
        holder = next((f for f in c.factors if f is not factor and copy in f.letters), None)
        if holder is None or not isinstance(holder.source, str):
            continue  # the copies are open: the one-hot matrix adds the pairs back to them
        assert isinstance(factor.source, Pairs)
        with writer.role("slice"):
            index = writer.constant(factor.source.name + "_index", factor.source.index().astype(np.int64))
            old = given[holder.source]
            selected = torch.index_select(old.tensor, old.letters.index(copy), index)
        given = {**given, holder.source: Labelled(selected, old.letters.replace(copy, pair), old.role)}
        factors = tuple(
            Factor(f.source, f.letters.replace(copy, pair)) if f is holder else f for f in c.factors if f is not factor
        )
        c = Contraction(factors, c.output, c.sizes, c.coefficient)
    return c, given


def write_cross_product(
    writer: GraphWriter, c: Contraction, given: dict[str, Labelled]
) -> tuple[Contraction, dict[str, Labelled]]:
    """Replace a copywise coupling of two vectors, ``epsilon[i, j, k] / sqrt(6)``, by a cross product."""
    # one pass over three components, in the place of nine products and a sum
    coupling = c.find(Coupling)
    if coupling is None or coupling.source != Coupling(1, 1, 1):
        return c, given
    legs = [f for f in c.factors if f is not coupling and set(f.letters) & set(coupling.letters)]
    if len(legs) != 2 or not all(isinstance(f.source, str) for f in legs):
        return c, given
    (left, a), (right, b) = ((f, next(x for x in f.letters if x in coupling.letters)) for f in legs)
    copies = left.letters.replace(a, "")
    if copies != right.letters.replace(b, ""):
        return c, given  # copies meet crosswise: there the table of one vector serves all copies of the other
    opened = next(x for x in coupling.letters if x not in (a, b))
    # epsilon changes sign with the order of its letters
    sign = 1.0 if coupling.letters.index(a) == (coupling.letters.index(b) - 1) % 3 else -1.0
    with writer.role("coupling"):
        operands = [permute_axes_to(given[f.source], copies + x) for f, x in ((left, a), (right, b))]  # type: ignore[index]
        crossed = torch.linalg.cross(*operands, dim=-1)
    kept = tuple(f for f in c.factors if f not in (left, right, coupling))
    factors = (Factor("cross", copies + opened), *kept)
    changed = Contraction(factors, c.output, c.sizes, c.coefficient * sign / sqrt(6.0))
    return changed, {**given, "cross": Labelled(crossed, copies + opened)}


def _scale_smallest_operand(writer: GraphWriter, c: Contraction, given: list[Labelled]) -> list[Labelled]:
    if c.coefficient == 1.0:
        return given
    # the batch is long: operands without it come first
    sizes = [c.size(g.letters) * (1000 if BATCH in g.letters else 1) for g in given]
    least = sizes.index(min(sizes))
    with writer.role("coupling"):
        scaled = Labelled(given[least].tensor * c.coefficient, given[least].letters, given[least].role)
    return [*given[:least], scaled, *given[least + 1 :]]


def _contract_one_or_two_tensors(c: Contraction, operands: list[Labelled], output: str, elementwise: bool) -> Traced:
    if len(operands) == 1 and operands[0].letters == output:
        return operands[0].tensor
    if len(operands) == 2:
        left, right = operands
        summed = [a for a in dict.fromkeys(left.letters + right.letters) if a not in output]
        simple = all(len(set(t.letters)) == len(t.letters) for t in operands) and len(set(output)) == len(output)
        if simple and not summed:
            return multiply_labelled(left, right, output)
        terms, products = c.size(summed), c.size(output) * c.size(summed)
        small = terms <= _FEW_TERMS and products <= _FEW_PRODUCTS
        if simple and elementwise and (small or not _is_matrix_product(left.letters, right.letters, output)):
            return multiply_labelled(left, right, output + "".join(summed)).sum(list(range(-len(summed), 0)))
    equation = ",".join(t.letters for t in operands) + "->" + output
    return torch.einsum(equation, *(t.tensor for t in operands))


def multiply_labelled(left: Labelled, right: Labelled, output: str) -> Traced:
    """Multiply with broadcasting, axes as in ``output``."""
    return permute_axes_to(left, output) * permute_axes_to(right, output)


def permute_axes_to(x: Labelled, output: str) -> Traced:
    """Permute axes as in ``output``, with new inner axes of length one."""
    order = [a for a in output if a in x.letters]
    tensor = x.tensor
    if order != list(x.letters):
        tensor = tensor.permute([x.letters.index(a) for a in order])
    first = next((n for n, a in enumerate(output) if a in x.letters), len(output))
    for position, a in enumerate(output[first:]):
        if a not in x.letters:
            tensor = tensor.unsqueeze(position)
    return tensor


def _is_matrix_product(left: str, right: str, output: str) -> bool:
    # both sides have an axis of their own beside the summed one: a matrix product does less work
    own_left = [a for a in left if a in output and a not in right]
    own_right = [a for a in right if a in output and a not in left]
    return bool(own_left and own_right)


@dataclass(frozen=True)
class SegmentResult:
    """Computed tensor of one output segment (of each output operand)."""

    segments: tuple[int, ...]
    tensor: Traced  # flat
    instructions: tuple[int, ...]


def read_term(
    writer: GraphWriter, form: Form, term: Term, inputs: FlatOperands
) -> tuple[Contraction, dict[str, Labelled]]:
    """Simplified contraction of a term, and operands by name."""
    c = simplify_contraction(form.contraction(term))
    given = {
        f.source: Labelled(
            inputs.read_term_operand(term, f.source, c.shape(f.letters)),
            f.letters,
            "weight" if f.source == "w" else "contraction",
        )
        for f in c.factors
        if isinstance(f.source, str)
    }
    return _replace_one_hot_pair_factors_by_gathers(writer, c, given)


def flatten_term_result(form: Form, term: Term, inputs: FlatOperands, result: Labelled) -> SegmentResult:
    """Flatten a term's result and name its segments."""
    segments = tuple(term.segment(name) for name in form.opened)
    bounds = (form.operand(name).segments[s] for name, s in zip(form.opened, segments, strict=True))
    dims = tuple(stop - start for start, stop in bounds)
    return SegmentResult(segments, inputs.flatten_result(result, dims), (term.path,))
