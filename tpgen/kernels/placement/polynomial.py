"""Placement of polynomial sweeps: vectors over channels.

A *task* is some rows of one element at one vector of channels: coefficients, rows, then gradients of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpgen.base.locks import cached_property
from tpgen.form.call import Slot
from tpgen.kernels.placement.values import Target
from tpgen.kernels.sweep.monomials import ADJOINTS, COEFFICIENTS, PolynomialSweep, values_read
from tpgen.kernels.sweep.statements import Component, TextOfPaths
from tpgen.planner.plan import Operand, Plan

_SPAN = 64  # rows of a task: enough to make up for the coefficients that each task computes

_Segment = tuple[int, int]  # first component, components


@dataclass(frozen=True)
class PolynomialPlacement(TextOfPaths):
    """Layout of a polynomial's CPU kernel."""

    plan: Plan
    sweep: PolynomialSweep
    target: Target

    @cached_property
    def operands(self) -> dict[str, Operand]:
        call = self.sweep.call
        return {str(s): self.plan.operand(s.operand) for s in (*call.given, *call.opened)}

    @cached_property
    def read_components(self) -> dict[str, list[int]]:
        """Components that statements read, by tensor name."""
        values = {v for v in values_read(self.sweep.statements) if isinstance(v, Component)}
        found: dict[str, list[int]] = {}
        for value in sorted(values, key=lambda v: (v.operand, v.index)):
            found.setdefault(value.operand, []).append(value.index)
        return found

    def segments_read(self, slot: str) -> list[_Segment]:
        used = set(self.read_components[slot])
        return [(i, size) for i, size in component_runs(self.operands[slot]) if used.intersection(range(i, i + size))]

    @cached_property
    def given(self) -> list[str]:
        return [str(s) for s in self.sweep.call.given]

    @cached_property
    def opened(self) -> list[str]:
        return [str(s) for s in self.sweep.call.opened]

    @cached_property
    def inputs(self) -> list[str]:
        """Slots read row by row."""
        return [s for s in self.given if s in self.read_components and not self.operands[s].weights]

    @cached_property
    def weights(self) -> list[str]:
        """Slots read once per task."""
        return [s for s in self.given if s in self.read_components and self.operands[s].weights]

    @cached_property
    def row_slots(self) -> list[str]:
        """Open slots written row by row."""
        return [s for s in self.opened if not self.operands[s].weights]

    @cached_property
    def channel_sums(self) -> list[str]:
        """Open slots without channels: sums over channels."""
        return [s for s in self.row_slots if not self.operands[s].channels]

    @cached_property
    def stored(self) -> list[str]:
        """Open slots with channels, stored row by row."""
        return [s for s in self.row_slots if s not in self.channel_sums]

    @cached_property
    def open_weights(self) -> list[str]:
        """Open weight slots: sums over the rows of an element."""
        return [s for s in self.opened if self.operands[s].weights]

    @cached_property
    def coefficients(self) -> list[str]:
        return [s for s in self.read_components if s.startswith(COEFFICIENTS)]

    @cached_property
    def adjoints(self) -> list[str]:
        return [s for s in self.read_components if s.startswith(ADJOINTS)]

    @cached_property
    def scratch(self) -> dict[str, int]:
        """Number of vectors in a thread's scratch, by tensor name."""
        sizes = {s: self.operands[s].dim for s in self.weights}
        return sizes | dict.fromkeys((*self.coefficients, *self.adjoints), self.sweep.coefficients)

    @property
    def span(self) -> int:
        """Most rows of a task; 0: all rows of an element."""
        # sums over the rows of an element have one order
        return 0 if self.open_weights else _SPAN

    @property
    def has_all_channels_per_task(self) -> bool:
        return bool(self.channel_sums)

    def row_size_text(self, slot: str, channels: str = "C") -> str:
        """C++ size of a tensor's row."""
        operand = self.operands[slot]
        return f"{operand.dim}" + f" * {channels}" * operand.channels

    @property
    def transposed_segments(self) -> set[tuple[int, int]]:
        """(components, channels) of segments transposed into vectors."""
        sizes = {size for o in self.operands.values() if o.channels for _, size in component_runs(o)}
        return {(size, self.target.lanes) for size in sizes if size < self.target.lanes}

    @property
    def text_lines_and_paths(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Lines of description, with path numbers."""
        lanes, areas = self.target.lanes, sum(self.scratch.values())
        number = max(4, self.target.itemsize)  # what is computed with
        rows = f"up to {self.span}" if self.span else "all"
        channels = "all channels" if self.has_all_channels_per_task else f"one vector of {lanes} channels"
        parts = [
            f"{self.sweep.call}: {self.target.dtype}, vectors of {lanes} over channels",
            f"a task: {rows} rows of one element, {channels}",
            f"scratch of a thread: {areas} vectors, {areas * lanes * number} bytes"
            + (f" ({', '.join(f'{s} {n}' for s, n in self.scratch.items())})" if self.scratch else ""),
        ]
        for slot in self.given:
            parts.append(f"  {slot}: {self._describe_slot_reads(slot)}")
        for slot in self.opened:
            parts.append(f"  -> {slot}: {self._describe_slot_writes(slot)}")
        return ((text, ()) for text in parts)

    def _describe_slot_reads(self, slot: str) -> str:
        if slot not in self.read_components:
            return "not read"
        if slot in self.weights:
            return "read once per task"
        operand = self.operands[slot]
        return "read row by row, " + (
            _describe_components(operand) if operand.channels else "one copy spread over the channels"
        )

    def _describe_slot_writes(self, slot: str) -> str:
        if slot in self.open_weights:
            return "summed over the rows of an element, stored once per task"
        if slot in self.channel_sums:
            return "summed over channels, stored when all tasks are done"
        return f"stored row by row, {_describe_components(self.operands[slot])}"


def polynomial_slot_name(slot: Slot | str) -> str:
    """C++ name of a tensor, derivative levels first.

    >>> polynomial_slot_name("x.12"), polynomial_slot_name("@a")
    ('x12_x', 'a')
    """
    # no operand's name begins where levels end
    operand, _, levels = str(slot).partition(".")
    scratch = {COEFFICIENTS: "a", ADJOINTS: "da"}
    return f"{scratch[operand]}{levels}" if operand in scratch else f"x{levels}_{operand}"


def component_runs(operand: Operand) -> Sequence[_Segment]:
    """(start, size) of each run of components contiguous for a channel."""
    if operand.layout == "channel":
        return ((0, operand.dim),)
    if operand.layout == "ir_mul":
        return tuple((i, 1) for i in range(operand.dim))
    return tuple((s.start, s.stop - s.start) for s in operand.irreps.slices() if s.stop > s.start)


def _describe_components(operand: Operand) -> str:
    """Describe an operand's runs of components.

    >>> from e3nn.o3 import Irreps
    >>> _describe_components(Operand("x", Irreps("0e+1o")))
    'components 0, 1:4 transposed'
    """
    found = [
        f"{start}" if size == 1 else f"{start}:{start + size} transposed" for start, size in component_runs(operand)
    ]
    return f"components {', '.join(found)}"
