"""Placement of batch kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tpgen.base.locks import cached_property
from tpgen.form.form import Term
from tpgen.kernels.placement.slots import PlacementBase
from tpgen.kernels.placement.values import BatchSchedule, RowBlockSizes, areas_text
from tpgen.kernels.sweep.sweep import Sweep, make_sweep
from tpgen.kernels.sweep.terms import MixingSides, find_sides

_BLOCK = 48 * 1024  # numbers in a block of P
_OF_SCALARS = 12  # copies of a scalar input from which on a row's own weights are computed of them first
_STAGED = 128  # per-row weights in scratch: whole vectors of each row, in the nearest cache if one copy's fit


@dataclass(frozen=True)
class BatchPlacement(PlacementBase):
    """Layout of a CPU kernel with SIMD vectors over batch rows."""

    schedule: BatchSchedule

    @cached_property
    def sweep(self) -> Sweep:
        return make_sweep(self.schedule.terms, self.opened, mixes_first=self.mixes_first)

    @property
    def row_block_sizes(self) -> RowBlockSizes:
        return RowBlockSizes(self.schedule.rows, sum(self.dim.values()), self.scratch_size_of_shared_weights)

    # -- what lives where --

    @property
    def shortens_tiles(self) -> bool:
        """Whether the last tile drops vectors without rows."""
        return self.schedule.rows > self.schedule.target.lanes

    @property
    def has_weights_per_row(self) -> bool:
        return not self.schedule.shared_weights

    @property
    def scratch_size_of_shared_weights(self) -> int:
        return self.schedule.target.round_up_to_whole_vectors(self.dim["w"]) if self.schedule.shared_weights else 0

    @cached_property
    def scratch(self) -> dict[str, int]:
        """Sizes of a thread's scratch areas."""
        rows = self.schedule.rows
        areas = {f"s_{o}": self.dim[o] * rows for o in self.given if o != "w"}
        areas |= {f"a_{o}": self.dim[o] * rows for o in self.opened if o != "w"}
        own = [t for t in self.schedule.terms if self.contracts_weights_with_input2(t)]
        mixing = [t for t in self.schedule.terms if t.mode.mixing and t not in own]
        for name, needs in (("P", self.needs_coupled_inputs), ("D", self.needs_coupled_cotangents)):
            held = (
                self.count_coupled_copies_per_block(t) * t.size(self.sides_of_weight_matrix(t).axis)
                for t in mixing
                if needs(t)
            )
            areas[name] = max(held, default=0) * rows
        areas["G"] = (
            max(
                (
                    self.count_copies_transposed_for_weight_gradient(t) * t.size(self.sides_of_weight_matrix(t).axis)
                    for t in mixing
                ),
                default=0,
            )
            * rows
        )
        one = max((t.size("w") for t in own), default=0) * rows
        areas["own"] = one if "out" in self.opened or "x1" in self.opened else 0
        areas["d_own"] = one if "w" in self.opened or "x2" in self.opened else 0
        areas["flipped"] = max(map(self.count_copies_transposed_for_weight_gradient, own), default=0) * rows
        if self.has_weights_per_row:
            weighted = [t for t in self.schedule.terms if t.weighted]
            chunk = (
                max(
                    (self.weights_per_copy(t) * self.count_copies_with_weights_in_scratch(t) for t in weighted),
                    default=0,
                )
                * rows
            )
            areas["s_w"] = chunk if "w" in self.given else 0
            areas["a_w"] = chunk if "w" in self.opened else 0
        return {name: size for name, size in areas.items() if size}

    # -- how much at a time --

    def count_coupled_copies_per_block(self, term: Term) -> int:
        """Copies of coupled operands in scratch at a time."""
        sides = self.sides_of_weight_matrix(term)
        inner = term.size(sides.copies[1:])
        first = max(1, _BLOCK // max(1, inner * term.size(sides.axis) * self.schedule.rows))
        return inner * min(term.size(sides.copies[0]), first)

    def weights_per_copy(self, term: Term) -> int:
        return term.size(term.mode.weight[1:])

    def count_copies_with_weights_in_scratch(self, term: Term) -> int:
        """Copies (first weight axis) with row weights in scratch together."""
        size = term.size(term.mode.weight[0])
        # as many each time, or nearly
        times = -(-size // max(1, _STAGED // self.weights_per_copy(term)))
        return -(-size // times)

    def mixes_first(self, term: Term) -> bool:
        """Whether weights mix copies before the coupling: input 1 has fewer components than the output."""
        if self.has_weights_per_row or not self._is_uvw(term) or term.size("v") > 1:
            return False
        return term.size("i") < term.size("k") and term.size("wi") * self.schedule.rows <= _BLOCK

    def _is_uvw(self, term: Term) -> bool:
        return term.weighted and (term.mode.in1, term.mode.in2, term.mode.out) == ("u", "v", "w")

    def sides_of_weight_matrix(self, term: Term) -> MixingSides:
        return find_sides(term, self.mixes_first(term))

    def needs_coupled_inputs(self, term: Term) -> bool:
        return self.sides_of_weight_matrix(term).far in self.opened or (term.weighted and "w" in self.opened)

    def needs_coupled_cotangents(self, term: Term) -> bool:
        return self.sides_of_weight_matrix(term).near in self.opened or "x2" in self.opened

    def contracts_weights_with_input2(self, term: Term) -> bool:
        """Whether each row's scalars multiply shared weights before input 1."""
        if self.has_weights_per_row or not self._is_uvw(term):
            return False
        # with v copies of a scalar and k components, a product with these weights takes v + k multiply-adds for an
        # input copy and an output copy, and v * k if the inputs are multiplied first
        return term.size("j") == 1 and term.size("k") > 1 and term.size("v") >= _OF_SCALARS

    def count_copies_transposed_for_weight_gradient(self, term: Term) -> int:
        """Output copies whose weight gradients are vectors over copies; the rest are sums over lanes."""
        if self.has_weights_per_row or not (term.mode.mixing and term.weighted and "w" in self.opened):
            return 0
        return term.size(term.mode.mixing) // self.schedule.target.lanes * self.schedule.target.lanes

    def starts_and_sizes_used_by_paths(self, operand: str) -> list[tuple[int, int]]:
        s = self.schedule
        if operand == "w":
            return [(s.segment_start(t, "w"), t.size(t.mode.weight)) for t in s.terms if t.weighted]
        return [(segment.start, segment.mul * segment.dim) for segment in dict(s.segments)[operand]]

    @property
    def text_lines_and_paths(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Lines of description, with path numbers."""
        t = self.schedule.target
        owned = f", added to the owner of {self.owner}" if self.owner else ""
        yield f"batch placement: opens {', '.join(self.opened)}{owned}; {t.lanes} lanes of {t.dtype}", ()
        yield f"  {self.row_block_sizes}", ()
        yield f"  scratch: {areas_text(self.scratch)}", ()
        yield from ((self._describe_path(path.term), (path.term.path,)) for path in self.sweep.paths)

    def _describe_path(self, term: Term) -> str:
        copies = " x ".join(f"{a} {term.size(a)}" for a, _ in term.copies)
        if not term.mode.mixing:
            return f"  path {term.path}: copies {copies}, one by one"
        how = "rows of weights" if self.has_weights_per_row else "matrix products"
        if self.contracts_weights_with_input2(term):
            return f"  path {term.path}: copies {copies}, a first one at a time by each row's own weights"
        flipped = ", the cotangent flipped" if self.count_copies_transposed_for_weight_gradient(term) else ""
        if self.mixes_first(term):
            return f"  path {term.path}: copies {copies}, input 1 by {how} before it is coupled{flipped}"
        block = self.count_coupled_copies_per_block(term)
        return f"  path {term.path}: copies {copies}, {block} of the inputs at a time by {how}{flipped}"
