"""Linear forms: a matrix product for each path, over rows and components.

Scratch is ``[row][component][copies padded to whole vectors]``, the layout of scalars in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tpgen.base.locks import cached_property
from tpgen.form.form import Form, Term
from tpgen.kernels.placement.slots import PlacementBase
from tpgen.kernels.placement.values import RowBlockSizes, Schedule, ScratchSegment, Target, areas_text, touched_segments
from tpgen.kernels.sweep.statements import TextOfPaths
from tpgen.kernels.sweep.terms import path_terms, row_lengths
from tpgen.planner.plan import ELEMENT, SHARED

_TILES = (96, 48, 24, 12, 6)  # rows taken at a time: whole patches of a product
_TILE_NUMBERS = 24 * 1024  # numbers that a tile should stay under, to leave the second-level cache to the weights
_SUMMED_ROWS = 144  # rows of a block at least, where each sums a gradient of the weights


@dataclass(frozen=True)
class MatrixSegment(ScratchSegment):
    """Place of one irrep's copies in memory and scratch."""

    index: int
    padded: int
    scratch: int
    plain: bool  # whether memory is [copies] of numbers as they are computed with

    @property
    def whole(self) -> bool:
        """Whether memory has rows of whole vectors."""
        return self.plain and self.mul == self.padded

    @property
    def template_arguments(self) -> str:
        return f"1, {self.mul}, {self.dim}" if self.mul_first else f"{self.dim}, {self.mul}, 1"

    @property
    def size(self) -> int:
        return self.dim * self.padded


@dataclass(frozen=True)
class MatrixTerm:
    """A path: ``out[w] += coefficient * sum_u W[u, w] x1[u]`` for every component."""

    path: int
    text: str
    source: MatrixSegment
    target: MatrixSegment
    start: int  # of its weights in memory
    kept: int  # of its weights in scratch, where they stand as [u][w padded]
    flipped: int  # the same where they stand as [w][u padded]
    coefficient: float


@dataclass(frozen=True)
class MatrixSchedule(TextOfPaths):
    """Layout of a linear layer, with a matrix product for each path."""

    target: Target
    dims: tuple[int, int, int, int]
    shared_weights: bool  # by all rows of a tile
    by_element: bool
    terms: tuple[MatrixTerm, ...]
    rows: int
    name: str = "matrix"

    def segments(self, operand: str) -> list[MatrixSegment]:
        """Segments of operand x1 or out that paths use."""
        found = {(p.source if operand == "x1" else p.target) for p in self.terms}
        return sorted(found, key=lambda s: s.index)

    def scratch_numbers_per_row(self, operand: str) -> int:
        return sum(s.size for s in self.segments(operand) if not s.whole)

    @property
    def text_lines_and_paths(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Lines of description, with path numbers."""
        rows = f"{self.rows} rows{' of one element' * self.by_element}"
        yield f"matrix schedule: tiles of {rows}, {self.target.lanes} lanes of {self.target.dtype}", ()
        yield from ((f"  path {p.path}: {p.text}; a matrix product", (p.path,)) for p in self.terms)


AnySchedule = Schedule | MatrixSchedule


def is_linear(form: Form) -> bool:
    """Whether a form has no second input.

    >>> from tpgen.form.form import form_of
    >>> from tpgen.planner.linear import make_linear_plan
    >>> is_linear(form_of(make_linear_plan("8x1o", "4x1o")))
    True
    """
    return all(operand.name != "x2" for operand in form.operands)


def make_matrix_schedule(form: Form, target: Target) -> MatrixSchedule:
    """Lay out all paths of a linear layer."""
    terms = path_terms(form)
    by_element, shared = form.operand("w").rows == ELEMENT, form.operand("w").rows == SHARED
    segments = {name: _lay_out_operand_segments(form, terms, name, target, shared) for name in ("x1", "out")}
    made, kept, flipped = [], 0, 0
    for term in terms:
        source, end = (segments[name][term.segment(name)] for name in ("x1", "out"))
        start, _ = form.operand("w").segments[term.segment("w")]
        made.append(
            MatrixTerm(term.path, term.text.partition(" (")[0], source, end, start, kept, flipped, term.coefficient)
        )
        kept, flipped = kept + source.mul * end.padded, flipped + end.mul * source.padded
    numbers = sum(s.size for found in segments.values() for s in found.values() if not s.whole)
    rows = next((n for n in _TILES if n * numbers <= _TILE_NUMBERS), _TILES[-1])
    return MatrixSchedule(target, row_lengths(form), shared or by_element, by_element, tuple(made), rows)


def _lay_out_operand_segments(
    form: Form, terms: Iterable[Term], operand: str, target: Target, shared_weights: bool
) -> dict[int, MatrixSegment]:
    found: dict[int, MatrixSegment] = {}
    at = 0
    for index, s in touched_segments(form, terms, operand).items():
        plain = shared_weights and s.dim == 1 and target.dtype != "bfloat16"
        padded = target.round_up_to_whole_vectors(s.mul)
        found[index] = made = MatrixSegment(s.start, s.mul, s.dim, s.mul_first, index, padded, at, plain)
        at += 0 if made.whole else made.size
    return found


_FORMULAS = {
    "out": "out[w] += sum_u x1[u] W[u, w]",
    "x1": "x1[u] += sum_w out[w] W[u, w]",
    "w": "W[u, w] += x1[u] out[w]",
}


@dataclass(frozen=True)
class _MatrixProductFormulas(TextOfPaths):
    opened: tuple[str, ...]
    terms: tuple[MatrixTerm, ...]

    @property
    def text_lines_and_paths(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Lines of description, with path numbers."""
        yield f"sweep: opens {', '.join(self.opened)}", ()
        for term in self.terms:
            yield f"  path {term.path}: {term.text}, times {term.coefficient:.6g}", (term.path,)
            yield from ((f"    {text}", (term.path,)) for slot, text in _FORMULAS.items() if slot in self.opened)


@dataclass(frozen=True)
class MatrixPlacement(PlacementBase):
    """Layout of a CPU kernel of a linear layer."""

    schedule: MatrixSchedule

    @property
    def sweep(self) -> _MatrixProductFormulas:
        return _MatrixProductFormulas(self.opened, self.schedule.terms)

    @property
    def transposed_segments(self) -> set[tuple[int, int]]:
        used = {(s.dim if s.mul_first else 1, s.mul) for o in ("x1", "out") for s in self.schedule.segments(o)}
        return used | {(1, term.target.mul) for term in self.schedule.terms}

    @property
    def inputs_without_weights(self) -> tuple[str, ...]:
        """Operands that the kernel reads, except weights."""
        reads = {"x1": ("out", "w"), "out": ("x1", "w")}
        return tuple(name for name, slots in reads.items() if set(slots) & set(self.opened))

    @property
    def open_row_slots(self) -> tuple[str, ...]:
        return tuple(slot for slot in ("x1", "out") if slot in self.opened)

    def segments_to_stage(self, operand: str) -> list[MatrixSegment]:
        """Segments of an operand copied into scratch."""
        # scalars are read in memory, as vectors if memory has whole vectors
        vectors = operand == "out" and "w" in self.opened
        return [s for s in self.schedule.segments(operand) if not (s.whole if vectors else s.plain)]

    @property
    def row_block_sizes(self) -> RowBlockSizes:
        rows = self.schedule.rows
        if self.sums_weights:  # a block's part of the weights' gradient is cleared and added once for all its rows
            rows *= max(1, _SUMMED_ROWS // rows)
        return RowBlockSizes(rows, sum(self.dim.values()), self.scratch_size_of_shared_weights)

    @cached_property
    def weight_scratch_sizes(self) -> dict[str, int]:
        """Sizes of weights in scratch: ``kept`` [u][w] for out, ``flipped`` [w][u] for x1."""
        flipped = sum(p.target.mul * p.source.padded for p in self.schedule.terms)
        return {"kept": self.weight_gradient_size * ("out" in self.opened), "flipped": flipped * ("x1" in self.opened)}

    @property
    def weight_gradient_size(self) -> int:
        return sum(p.source.mul * p.target.padded for p in self.schedule.terms)

    @property
    def scratch_size_of_shared_weights(self) -> int:
        """Size of shared weights or their gradient, outside threads' scratch."""
        if not self.schedule.shared_weights:
            return 0
        return max(
            sum(self.weight_scratch_sizes.values()) * (not self.by_element),
            self.weight_gradient_size * self.sums_weights,
        )

    @cached_property
    def scratch(self) -> dict[str, int]:
        """Sizes of a thread's scratch areas."""
        s = self.schedule
        areas = {
            f"s_{o}": s.scratch_numbers_per_row(o) * s.rows
            for o in self.inputs_without_weights
            if self.segments_to_stage(o)
        }
        areas |= {f"a_{o}": s.scratch_numbers_per_row(o) * s.rows for o in self.open_row_slots}
        if not s.shared_weights:
            areas["s_w"] = max((p.source.padded * p.target.padded for p in s.terms), default=0)
        if self.by_element:  # a thread holds those of one element
            areas["weights"] = sum(self.weight_scratch_sizes.values())
            # of an element in one task
            areas["own_w"] = max(self.weight_gradient_size, s.target.lanes) * self.sums_weights
        return {name: size for name, size in areas.items() if size}

    def starts_and_sizes_used_by_paths(self, operand: str) -> list[tuple[int, int]]:
        if operand == "w":
            return [(p.start, p.source.mul * p.target.mul) for p in self.schedule.terms]
        return [(segment.start, segment.mul * segment.dim) for segment in self.schedule.segments(operand)]

    @property
    def text_lines_and_paths(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Lines of description, with path numbers."""
        t = self.schedule.target
        each = "over rows and" if self.schedule.shared_weights else "for each row, over"
        yield f"matrix placement: opens {', '.join(self.opened)}; {t.lanes} lanes of {t.dtype}", ()
        yield f"  {self.row_block_sizes}", ()
        yield f"  scratch: {areas_text(self.scratch)}", ()
        for p in self.schedule.terms:
            components = f"{p.source.dim} component{'s' * (p.source.dim > 1)}"
            product = f"{p.source.mul} x {p.target.mul} weights; a matrix product {each} {components}"
            yield f"  path {p.path}: {product}", (p.path,)
