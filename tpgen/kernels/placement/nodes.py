"""Placement of sums by node before weights mix copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose
from typing import Any

from tpgen.base.locks import cached_property
from tpgen.form.form import Term
from tpgen.kernels.placement.slots import PlacementBase
from tpgen.kernels.placement.values import BatchSchedule, RowBlockSizes, areas_text
from tpgen.kernels.rows import DESTINATIONS, RowRules
from tpgen.kernels.sweep.sweep import Sweep, make_sweep

FEWEST_SCALARS = 8  # of input 1
NODES_AT_A_TIME = 16  # while weights are in the second-level cache
NODE_ROWS = 32  # rows of a node taken at a time
_SUMS = 64  # of a node, at a time, in vectors of scalars
_ROWS, _SUMMED_ROWS = 256, 1024  # of a block, and of one that sums gradients of weights, at least


def takes_sums_of_nodes(schedule: Any, rules: RowRules) -> bool:
    """Whether `NodePlacement` takes these rules: each path mixes one irrep, times many scalars."""
    if not isinstance(schedule, BatchSchedule) or not schedule.shared_weights or rules != (DESTINATIONS,):
        return False
    target = schedule.target
    return target.lanes > 1 and target.dtype != "bfloat16" and _have_terms_many_scalars(schedule)


def _have_terms_many_scalars(schedule: BatchSchedule) -> bool:
    scalars = dict(schedule.segments)["x1"]
    if len(scalars) != 1 or schedule.dims[0] != scalars[0].mul or scalars[0].mul < FEWEST_SCALARS:
        return False
    mixed = {term.segment("x2") for term in schedule.terms if _mixes_products_with_scalars(term)}
    return len(mixed) == len(schedule.terms) > 0  # each irrep of input 2 has one path


def _mixes_products_with_scalars(term: Term) -> bool:
    mode, ends = term.mode, [term.leg("x2"), term.leg("out")]
    if not term.weighted or (mode.in1, mode.in2, mode.out) != ("u", "v", "w") or term.size("i") > 1:
        return False
    copies_first = all(leg is not None and leg.letters[-1] in "jk" for leg in ends) or term.size("k") == 1
    diagonal = {(n, n) for n in range(term.size("k"))}
    first = term.entries[0].value
    are_equal = all(isclose(entry.value, first, rel_tol=1e-14) for entry in term.entries)
    return copies_first and are_equal and {(entry.j, entry.k) for entry in term.entries} == diagonal


@dataclass(frozen=True)
class NodePlacement(PlacementBase):
    """Layout of a CPU kernel with vectors over scalars."""

    schedule: BatchSchedule

    @cached_property
    def sweep(self) -> Sweep:
        return make_sweep(self.schedule.terms, self.opened)

    @property
    def lanes_of_scalars(self) -> int:
        """A row's scalars, padded to whole vectors."""
        return self.schedule.target.round_up_to_whole_vectors(self.dim["x1"])

    @property
    def row_block_sizes(self) -> RowBlockSizes:
        part = self.scratch_size_of_shared_weights
        return RowBlockSizes(_SUMMED_ROWS if self.sums_weights else _ROWS, sum(self.dim.values()), part)

    @property
    def scratch_size_of_shared_weights(self) -> int:
        return self.lanes_of_scalars * sum(term.size("vw") for term in self.schedule.terms)

    @cached_property
    def scratch(self) -> dict[str, int]:
        """Sizes of a thread's scratch areas."""
        lanes, rows = self.schedule.target.lanes, NODES_AT_A_TIME * NODE_ROWS
        products = max(self.copies_at_a_time(term) * term.size("k") for term in self.schedule.terms)
        areas = {
            "scalars": rows * self.lanes_of_scalars * ("x1" in self.given),
            "node_sums": NODES_AT_A_TIME * products * lanes * bool({"out", "w"} & {*self.opened}),
            "node_slopes": NODES_AT_A_TIME * products * lanes * bool({"x1", "x2"} & {*self.opened}),
            "by_out": NODES_AT_A_TIME * self.dim["out"] * lanes * ("out" in self.opened),
            "by_scalars": rows * self.lanes_of_scalars * ("x1" in self.opened),
            "by_products": rows * self.schedule.target.round_up_to_whole_vectors(products) * ("x2" in self.opened),
        }
        return {name: size for name, size in areas.items() if size}

    def copies_at_a_time(self, term: Term) -> int:
        """Copies whose sums stay in the nearest cache."""
        return min(term.size("v"), max(4, _SUMS // term.size("k") // 4 * 4))

    def starts_and_sizes_used_by_paths(self, operand: str) -> list[tuple[int, int]]:
        s = self.schedule
        if operand == "w":
            return [(s.segment_start(t, "w"), t.size("uvw")) for t in s.terms]
        return [(segment.start, segment.mul * segment.dim) for segment in dict(s.segments)[operand]]

    @property
    def text_lines_and_paths(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Lines of description, with path numbers."""
        t = self.schedule.target
        yield f"node placement: opens {', '.join(self.opened)}; {t.lanes} lanes of {t.dtype}", ()
        yield f"  {NODES_AT_A_TIME} nodes at a time, {NODE_ROWS} rows of each; {self.row_block_sizes}", ()
        yield f"  scratch: {areas_text(self.scratch)}", ()
        for term in self.schedule.terms:
            sums = f"{term.size('u')} x {term.size('vk')} sums of each node"
            yield f"  path {term.path}: {sums}, then {term.size('uvw')} weights", (term.path,)
