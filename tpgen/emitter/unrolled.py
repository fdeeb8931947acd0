"""The unrolled strategy: one multiply-add over channel vectors per non-zero coupling entry."""

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
    multiply_labelled,
    read_term,
    trace_operand,
    write_contraction,
)
from tpgen.form.contraction import Contraction, Coupling, Factor
from tpgen.form.form import Form, Term


def write_unrolled_term(writer: GraphWriter, form: Form, term: Term, inputs: FlatOperands) -> SegmentResult:
    """Write one path: multiply-adds if the output has one coupling axis, else einsum."""
    with writer.serving(term.path, "contraction"):
        c, given = read_term(writer, form, term, inputs)
        coupling = c.find(Coupling)
        letters = coupling.letters if coupling else ""
        closed = [f for f in c.factors if f is not coupling and set(f.letters) & set(letters)]
        # the three letters of the coupling stand in three places: the output and two operands
        if coupling and sum(a in c.output for a in letters) == 1 and len(closed) == 2:
            result = _UnrolledTermWriter(writer, c, given, coupling, closed).write_term()
        else:
            result = write_contraction(writer, c, given, elementwise=True)
        return flatten_term_result(form, term, inputs, result)


class _UnrolledTermWriter:
    def __init__(
        self,
        writer: GraphWriter,
        contraction: Contraction,
        given_operands: dict[str, Labelled],
        coupling: Factor,
        closed_factors: list[Factor],
    ) -> None:
        self.writer, self.c, self.given = writer, contraction, given_operands
        self.open = next(a for a in coupling.letters if a in contraction.output)
        # the leg with fewer copies last: it is tabulated
        closed = sorted(closed_factors, key=lambda f: -contraction.size(f.letters))
        self.vector, self.table = (trace_operand(writer, given_operands, f) for f in closed)
        self.a, self.b = (next(x for x in f.letters if x in coupling.letters) for f in closed)
        self.rest = [f for f in contraction.factors if f is not coupling and f not in closed]
        order = [coupling.letters.index(x) for x in (self.a, self.b, self.open)]
        assert isinstance(coupling.source, Coupling)
        self.values = np.transpose(coupling.source.array(), order) * contraction.coefficient
        self.table_is_open = self._count_copies_of_letters(contraction.output) < self._count_copies_of_letters(
            self.table.letters
        )

    def write_term(self) -> Labelled:
        return (
            self._multiply_components_then_couple()
            if self.table_is_open
            else self._couple_smaller_operand_then_multiply()
        )

    def _count_copies_of_letters(self, letters: str) -> int:
        return self.c.size(letters.translate({ord(x): None for x in (self.a, self.b, self.open)}))

    def _couple_smaller_operand_then_multiply(self) -> Labelled:
        vectors, table = self._split_components(self.vector, self.a), self._split_components(self.table, self.b)
        letters = (
            "".join(dict.fromkeys(self.vector.letters + self.table.letters)).replace(self.a, "").replace(self.b, "")
        )
        sums = []
        for o in range(self.values.shape[2]):
            parts = []
            for a in range(self.values.shape[0]):
                with self.writer.role("coupling"):
                    row = self.values[a, :, o]
                    entry = _linear_combination_unless_empty(
                        [(float(row[b]), table[b].tensor) for b in np.flatnonzero(row)]
                    )
                if entry is not None:
                    parts.append(multiply_labelled(vectors[a], Labelled(entry, table[0].letters), letters))
            sums.append(Labelled(reduce(add, parts), letters))
        return self._contract_sums_with_weights(sums)

    def _multiply_components_then_couple(self) -> Labelled:
        vectors, table = self._split_components(self.vector, self.a), self._split_components(self.table, self.b)
        output = self.c.output.replace(self.open, "")
        pairs: dict[tuple[int, int], Traced] = {}
        for a, b in zip(*np.nonzero(np.abs(self.values).sum(axis=2)), strict=True):
            pairs[a, b] = self._contract_with_remaining_factors([vectors[a], table[b]], output)
        with self.writer.role("coupling"):
            layers = np.moveaxis(self.values, 2, 0)
            sums = [
                _linear_combination_unless_empty([(float(v[ab]), p) for ab, p in pairs.items() if v[ab] != 0.0])
                for v in layers
            ]
        return self._stack_components([Labelled(s, output) for s in sums])

    def _contract_sums_with_weights(self, sums: list[Labelled]) -> Labelled:
        # one component at a time, or all at once for a matrix product
        fresh = {x for f in self.rest for x in f.letters} - set(sums[0].letters)
        if not fresh:
            output = self.c.output.replace(self.open, "")
            return self._stack_components(
                [Labelled(self._contract_with_remaining_factors([s], output), output) for s in sums]
            )
        with self.writer.role("reshape"):
            stacked = torch.stack([s.tensor for s in sums], -1)
        return Labelled(
            self._contract_with_remaining_factors([Labelled(stacked, sums[0].letters + self.open)], self.c.output),
            self.c.output,
        )

    def _contract_with_remaining_factors(self, operands: list[Labelled], output: str) -> Traced:
        named = {f"coupled{n}": operand for n, operand in enumerate(operands)}
        factors = (*(Factor(name, operand.letters) for name, operand in named.items()), *self.rest)
        c = replace(self.c, factors=factors, output=output, coefficient=1.0)
        return write_contraction(self.writer, c, {**self.given, **named}, elementwise=True).tensor

    def _stack_components(self, components: list[Labelled]) -> Labelled:
        with self.writer.role("reshape"):
            stacked = torch.stack([x.tensor for x in components], self.c.output.index(self.open))
        return Labelled(stacked, self.c.output)

    def _split_components(self, x: Labelled, letter: str) -> list[Labelled]:
        with self.writer.role("slice"):
            parts = x.tensor.unbind(x.letters.index(letter))
            letters = x.letters.replace(letter, "")
            return [Labelled(parts[n], letters, x.role) for n in range(self.c.size(letter))]


def _linear_combination_unless_empty(coefficients_and_tensors: list[tuple[float, Traced]]) -> Traced | None:
    parts = [tensor if value == 1.0 else tensor * value for value, tensor in coefficients_and_tensors]
    return reduce(add, parts) if parts else None
