"""Placement of batch kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tpgen.base.locks import cached_property
from tpgen.form.form import Term
from tpgen.kernels.placement.blocks import Blocks, areas_text
from tpgen.kernels.placement.slots import OpenedSlots
from tpgen.kernels.placement.values import BatchSchedule
from tpgen.kernels.rows import Rules
from tpgen.kernels.sweep.sweep import Sweep, make_sweep

_BLOCK = 48 * 1024  # numbers in a block of P
_OF_SCALARS = 12  # copies of a scalar input from which on a row's own weights are computed of them first
_STAGED = 128  # per-row weights in scratch: whole vectors of each row, in the nearest cache if one copy's fit


@dataclass(frozen=True)
class BatchPlacement(OpenedSlots):
    """A batch schedule with some slots open."""

    schedule: BatchSchedule
    opened: tuple[str, ...]
    owner: str | None
    rules: Rules = field(default=(), kw_only=True)

    @cached_property
    def sweep(self) -> Sweep:
        return make_sweep(self.schedule.terms, self.opened)

    @property
    def blocks(self) -> Blocks:
        return Blocks(self.schedule.rows, sum(self.dim.values()), self.weight_scratch)

    # -- what lives where --

    @property
    def row_weights(self) -> bool:
        return not self.schedule.shared_weights

    @property
    def weight_scratch(self) -> int:
        return self.schedule.target.whole(self.dim["w"]) if self.schedule.shared_weights else 0

    @cached_property
    def scratch(self) -> dict[str, int]:
        """Sizes of a thread's scratch areas."""
        rows = self.schedule.rows
        areas = {f"s_{o}": self.dim[o] * rows for o in self.given if o != "w"}
        areas |= {f"a_{o}": self.dim[o] * rows for o in self.opened if o != "w"}
        own = [t for t in self.schedule.terms if self.owns_weights(t)]
        mixing = [t for t in self.schedule.terms if t.mode.mixing and t not in own]
        block = max((self.block(t) * t.size("k") for t in mixing), default=0) * rows
        if "out" in self.opened or "w" in self.opened:
            areas["P"] = block
        if "x1" in self.opened or "x2" in self.opened:
            areas["D"] = block
        flipped = [t for t in mixing if self.flips(t)]
        if flipped:
            areas["G"] = max(t.size(t.mode.mixing) * t.size("k") for t in flipped) * rows
        one = max((t.size("w") for t in own), default=0) * rows
        areas["own"] = one if "out" in self.opened or "x1" in self.opened else 0
        areas["d_own"] = one if "w" in self.opened or "x2" in self.opened else 0
        areas["flipped"] = one if any(map(self.flips, own)) else 0
        if self.row_weights:
            weighted = [t for t in self.schedule.terms if t.weighted]
            chunk = max((self.chunk(t) * self.staged(t) for t in weighted), default=0) * rows
            areas["s_w"] = chunk if "w" in self.given else 0
            areas["a_w"] = chunk if "w" in self.opened else 0
        return {name: size for name, size in areas.items() if size}

    # -- how much at a time --

    def block(self, term: Term) -> int:
        """Input copies per block: whole sets with the same first copy."""
        inner = term.size(term.inputs[1:])
        first = max(1, _BLOCK // max(1, inner * term.size("k") * self.schedule.rows))
        return inner * min(term.size(term.inputs[0]), first)

    def chunk(self, term: Term) -> int:
        """Number of weights of one first copy."""
        return term.size(term.mode.weight[1:])

    def staged(self, term: Term) -> int:
        """Number of first copies whose row weights are in scratch together."""
        size = term.size(term.mode.weight[0])
        # as many each time, or nearly
        times = -(-size // max(1, _STAGED // self.chunk(term)))
        return -(-size // times)

    def owns_weights(self, term: Term) -> bool:
        """Whether the kernel first sums shared weights by each row's scalars."""
        if self.row_weights or not term.weighted or (term.mode.in1, term.mode.in2, term.mode.out) != ("u", "v", "w"):
            return False
        # with v copies of a scalar and k components, a product with these weights takes v + k multiply-adds for an
        # input copy and an output copy, and v * k if the inputs are multiplied first
        return term.size("j") == 1 and term.size("k") > 1 and term.size("v") >= _OF_SCALARS

    def flips(self, term: Term) -> bool:
        """Whether weight gradients are vectors over output copies, by a transposed cotangent; else sums over lanes."""
        if self.row_weights or not (term.mode.mixing and term.weighted and "w" in self.opened):
            return False
        lanes = self.schedule.target.lanes
        return term.size(term.mode.mixing) % lanes == 0 and self.schedule.start(term, "w") % lanes == 0

    def reached(self, operand: str) -> list[tuple[int, int]]:
        s = self.schedule
        if operand == "w":
            return [(s.start(t, "w"), t.size(t.mode.weight)) for t in s.terms if t.weighted]
        return [(segment.start, segment.mul * segment.dim) for segment in dict(s.segments)[operand]]

    @property
    def lines(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        t = self.schedule.target
        owned = f", added to the owner of {self.owner}" if self.owner else ""
        yield f"batch placement: opens {', '.join(self.opened)}{owned}; {t.lanes} lanes of {t.dtype}", ()
        yield f"  {self.blocks}", ()
        yield f"  scratch: {areas_text(self.scratch)}", ()
        yield from ((self._path_text(path.term), (path.term.path,)) for path in self.sweep.paths)

    def _path_text(self, term: Term) -> str:
        copies = " x ".join(f"{a} {term.size(a)}" for a, _ in term.copies)
        if not term.mode.mixing:
            return f"  path {term.path}: copies {copies}, one by one"
        how = "rows of weights" if self.row_weights else "matrix products"
        if self.owns_weights(term):
            return f"  path {term.path}: copies {copies}, a first one at a time by each row's own weights"
        flipped = ", the cotangent flipped" if self.flips(term) else ""
        return f"  path {term.path}: copies {copies}, {self.block(term)} of the inputs at a time by {how}{flipped}"
