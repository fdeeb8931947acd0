"""Where the batch schedule keeps its operands, and how much of them is in scratch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tpgen.kernels.cpp.text import Writer
from tpgen.kernels.schedule.values import INDEX, SLOTS, BatchSchedule, BatchTerm

_BLOCK = 48 * 1024  # numbers in a block of P
_STAGED = 128  # per-row weights in scratch: whole vectors of each row, in the nearest cache if one copy's fit
LOCAL = {"x1": "x", "x2": "y", "w": "weight", "out": "g"}


class BatchVectors:
    """The scratch areas of one direction, blocks of copies, and how a path's vectors get into registers."""

    def __init__(self, schedule: BatchSchedule, opened: tuple[str, ...], owner: str | None, w: Writer) -> None:
        self.s, self.opened, self.owner, self.w = schedule, opened, owner, w
        self.given = tuple(s for s in SLOTS if s not in opened or len(opened) > 1)
        self.dim = dict(zip(SLOTS, schedule.dims, strict=True))
        self.needs_p = "out" in opened or "w" in opened
        self.gradients = tuple(o for o in ("x1", "x2") if o in opened)

    @property
    def row_weights(self) -> bool:
        return not self.s.shared_weights

    # -- what lives where --

    def weight_scratch(self) -> int:
        lanes = self.s.target.lanes
        return -(-self.dim["w"] // lanes) * lanes if self.s.shared_weights else 0

    def scratch(self) -> dict[str, int]:
        """Size of every scratch area, in numbers."""
        rows = self.s.rows
        areas = {f"s_{o}": self.dim[o] * rows for o in self.given if o != "w"}
        areas |= {f"a_{o}": self.dim[o] * rows for o in self.opened if o != "w"}
        mixing = [t for t in self.s.terms if t.mixing]
        block = max((self.block(t) * t.size("k") for t in mixing), default=0) * rows
        if self.needs_p:
            areas["P"] = block
        if self.gradients:
            areas["D"] = block
        flipped = [t for t in mixing if self._flips(t)]
        if flipped:
            areas["G"] = max(t.size(t.mode.mixing) * t.size("k") for t in flipped) * rows
        if self.row_weights:
            chunk = max((self._chunk(t) * self._staged(t) for t in self.s.terms if t.weighted), default=0) * rows
            areas["s_w"] = chunk if "w" in self.given else 0
            areas["a_w"] = chunk if "w" in self.opened else 0
        return {name: size for name, size in areas.items() if size}

    # -- how much at a time --

    def block(self, term: BatchTerm) -> int:
        """Input copies q taken at a time: whole sets that share their first copy."""
        inner = term.size(term.inputs[1:])
        first = max(1, _BLOCK // max(1, inner * term.size("k") * self.s.rows))
        return inner * min(term.size(term.inputs[0]), first)

    def _chunk(self, term: BatchTerm) -> int:
        """Weights of one first copy."""
        return term.size(term.mode.weight[1:])

    def _staged(self, term: BatchTerm) -> int:
        """First copies whose per-row weights are staged at a time; as many each time, or nearly."""
        size = term.size(term.mode.weight[0])
        times = -(-size // max(1, _STAGED // self._chunk(term)))
        return -(-size // times)

    def _flips(self, term: BatchTerm) -> bool:
        """Whether weights' gradients are vectors over output copies, of the cotangent flipped; else sums over lanes."""
        if self.row_weights or not (term.mixing and term.weighted and "w" in self.opened):
            return False
        lanes = self.s.target.lanes
        return term.size(term.mode.mixing) % lanes == 0 and term.start("w") % lanes == 0

    # -- vectors in and out --

    def _copy(self, term: BatchTerm, operand: str) -> str:
        """The copy of an operand's segment at the current loop letters."""
        if term.pairs and operand != "out":
            return f"pair_{'a' if operand == 'x1' else 'b'}[p]"
        letters = {"x1": term.mode.in1, "x2": term.mode.in2, "out": term.mode.out}[operand]
        text = letters[0]
        for a in letters[1:]:
            text = f"({text} * {term.size(a)} + {a})"
        return text

    def _place(self, term: BatchTerm, operand: str) -> str:
        """Start of ``[irrep axis][R]`` of the current copy."""
        return f"({term.start(operand)} + {self._copy(term, operand)} * {term.size(INDEX[operand])}) * (i64)R"

    def _fetch(self, term: BatchTerm, operand: str) -> str:
        size, name = term.size(INDEX[operand]), LOCAL[operand]
        used = sorted({e.at(INDEX[operand]) for e in term.entries})
        values = " ".join(
            f"{name}[{n}] = load(s_{operand} + {self._place(term, operand)} + {n} * R + r);" for n in used
        )
        self.w.line(f"vec {name}[{size}]; {values}")
        return name

    def _loops(self, letters: str, term: BatchTerm) -> str:
        return " ".join(f"for (int {a} = 0; {a} < {term.size(a)}; ++{a})" for a in letters)

    def _rows(self) -> str:
        return "for (int r = 0; r < R; r += W)"

    def _weight_place(self, term: BatchTerm, first: str) -> str:
        """Where the weight of the current letters stands: among those staged, or among all that the rows share."""
        text = f"({first} - {first}2)" if self.row_weights else first
        for a in term.mode.weight[1:]:
            text = f"({text} * {term.size(a)} + {a})"
        return f"{text} * R + r" if self.row_weights else f"{term.start('w')} + {text}"

    @contextmanager
    def _staged_weights(self, term: BatchTerm, first: str, start: str, end: str) -> Iterator[None]:
        """A loop over first copies, with the weights of each row moved in and out for several of them."""
        chunk, step = self._chunk(term), self._staged(term)
        with self.w.block(f"for (int {first}2 = {start}; {first}2 < {end}; {first}2 += {step})"):
            self.w.line(f"const int {first}3 = least({end}, {first}2 + {step});")
            place = f"n, {term.start('w')} + {first}2 * {chunk}, ({first}3 - {first}2) * {chunk}"
            if "w" in self.given:
                self.w.line(f"stage_rows(p_w, {place}, s_w, 1);")
            with self.w.block(f"for (int {first} = {first}2; {first} < {first}3; ++{first})"):
                yield
            if "w" in self.opened:
                self.w.line(f"unstage_rows(a_w, q_w, {place}, 1);")
