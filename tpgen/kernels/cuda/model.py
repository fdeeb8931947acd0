"""Speed that a kernel should reach, from its placement alone: five ceilings, each as a share of a copy's.

A model to rank designs by, and no measurement.  It counts instructions as the text has them, which tests compare with
those that the PTX runs; a block waits for a step that is fetched one step ahead; a warp issues an instruction every
other cycle, and waits for tables, sums over lanes and barriers in each step.

>>> from tpgen.form.form import form_of
>>> from tpgen.kernels.cuda.chips import chip_of
>>> from tpgen.kernels.cuda.placement import cuda_target, place_cuda
>>> from tpgen.kernels.placement.planning import plan_schedule
>>> from tpgen.planner.problems import find_problem
>>> schedule = plan_schedule(form_of(find_problem("mace-large").plan, "mul_ir"), cuda_target("float32"))
>>> str(predict(place_cuda(schedule, ("out",), chip_of(90))))
'100 % of the copy bandwidth'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

from tpgen.kernels.cuda.chips import LATENCY, Chip
from tpgen.kernels.cuda.counts import AnyPlacement, work_of
from tpgen.kernels.cuda.groups import LANES
from tpgen.kernels.cuda.launch import blocks_of

_BARRIER = 40  # cycles that all warps wait for each other
_EXPOSED = 500  # cycles of a step in which each warp waits: for tables, for sums over lanes, for what is taken away
_NODES = 2_000  # of a graph, whose rows the cache may hold or not
_HELD = 0.5  # of the cache, that rows of nodes find beside what streams through it
PACE = 2  # cycles between two instructions of one warp, where others keep the processor busy
ISSUES = 4  # instructions that a processor issues in a cycle
BANKS = 128  # bytes that shared memory gives in a cycle
REGISTERS = 2**16


_INDEX = 24  # bytes of an edge and of what it joins
_MOVED = 8  # instructions for a number that is written and cleared


def no_time(rows: int) -> float:
    return 0.0


@dataclass(frozen=True)
class Prediction:
    """Rows per second at each ceiling, relative to what the memory would allow; and what follows the last row."""

    bytes: float  # moved for each row
    memory: float  # rows a second
    latency: float
    issue: float
    shared: float
    cache: float
    misses: float = float("inf")  # of the cache, where rows of nodes pass more than once
    collected: float = 0.0  # bytes of the launch that adds up what edges have, relative to those of a row
    least: float = 0.0  # seconds of the first step of a block, which none hides
    after: Callable[[int], float] = no_time  # seconds of what is added up behind so many rows
    launches: int = 1  # of kernels

    @property
    def share(self) -> float:
        """Share of a copy's bandwidth, by the rows alone."""
        return 1 / (1 / min(self.own, self.misses) + self.collected)

    @property
    def own(self) -> float:
        """Share of a copy's bandwidth that rows of a step and warps decide: without losses of the cache."""
        return min(1.0, self.latency, self.issue, self.shared, self.cache)

    @property
    def limit(self) -> str:
        """Name of the ceiling that is reached first."""
        shares = {n: getattr(self, n) for n in ("latency", "issue", "shared", "cache", "misses")}
        return "memory" if self.share == 1 else min(shares, key=lambda n: shares[n])

    def seconds(self, rows: int) -> float:
        return self._of_rows(rows) + self.after(rows)

    def _of_rows(self, rows: int) -> float:
        return rows / (self.memory * self.share) + self.least

    def share_of(self, rows: int) -> float:
        """Share of a copy's bandwidth, launches that follow so many rows included."""
        return min(self.share, rows / (self.memory * self.seconds(rows)))

    def limit_of(self, rows: int) -> str:
        """Name of the part that takes longest of so many rows."""
        if self.after(rows) > self._of_rows(rows):
            return "sums over blocks"
        return "latency" if self._of_rows(rows) < 2 * self.least else self.limit

    def __str__(self) -> str:
        return f"{100 * self.share:.0f} % of the copy bandwidth"


def predict(placement: AnyPlacement, edges_per_node: float = 20.0) -> Prediction:
    """The prediction for graphs with so many edges to a node."""
    p, chip = placement, placement.chip
    work = work_of(p)
    size, again = _bytes(p, edges_per_node)
    memory = chip.bandwidth / size  # rows a second
    one = memory / chip.processors / chip.clock  # rows a cycle and processor
    step = work.longest * PACE + work.barriers * _BARRIER + _EXPOSED + _flush(p) * p.rows / edges_per_node
    first = step + LATENCY
    step = max(step, LATENCY) if p.stage_count > 1 else first
    rows = p.rows
    copied = sum(map(p.row_bytes, (*p.row_operands, *p.results))) * rows
    cached = sum(map(p.row_bytes, filter(p.of_nodes, p.row_operands))) + work.cached / rows
    return Prediction(
        bytes=size,
        memory=memory,
        latency=p.blocks_at_once * rows / step / one,
        issue=rows / cycles(chip, p.schedule.target.dtype, work.issued, work.arithmetic) / one,
        shared=rows / (work.touched + copied / BANKS) / one,
        cache=chip.cache_bandwidth / cached / memory if cached else float("inf"),
        misses=size / (size + again) if again else float("inf"),
        collected=sum(map(p.row_bytes, p.scattered)) * (1 + 1 / edges_per_node) / size,
        least=first / chip.clock,
        after=partial(_sum, p) if p.sums_weights else no_time,
        launches=1 + p.sums_weights + bool(p.scattered),
    )


def _sum(p: AnyPlacement, rows: int) -> float:
    """Seconds of the sum over all blocks of the gradient of weights that all rows share."""
    return p.weight_sum.seconds(blocks_expected(p, rows), p.chip)


def blocks_expected(p: AnyPlacement, rows: int) -> int:
    """As `blocks_of` has them, for as many blocks at once as the compiler is asked for."""
    return blocks_of(p, rows, p.blocks_at_once * p.chip.processors)


def cycles(chip: Chip, dtype: str, issued: float, arithmetic: float) -> float:
    """Cycles of a multiprocessor that only issues: all instructions, and multiply-adds at their own rate."""
    return max(issued / ISSUES, arithmetic * LANES / chip.multiply_adds(dtype))


def _flush(p: AnyPlacement) -> float:
    """Cycles of a block for each owner: what was added up is written, or what stays comes; then warps begin anew."""
    if not p.by:
        return 0.0
    if p.held:
        given = p.chip.cache_bandwidth / p.chip.processors / p.chip.clock  # bytes a cycle
        return 2 * _BARRIER + LATENCY + p.row_bytes(p.held) / given
    return 2 * _BARRIER + PACE * _MOVED * ceil(p.dim[p.by] / p.threads)


def _bytes(p: AnyPlacement, edges_per_node: float) -> tuple[float, float]:
    """Bytes between memory and chip for each row, rows of nodes once for each node; and those that come again."""
    once, fetched = 1 / edges_per_node, list(filter(p.of_nodes, p.row_operands))
    moved = (*p.row_operands, *p.results, *((p.by,) if p.by else ()))
    size = sum(p.row_bytes(o) * (once if p.of_nodes(o) else 1.0) for o in moved) + (_INDEX if p.indexed else 0)
    again = sum(p.row_bytes(o) * (max(once, _missed(p, o)) - once) for o in fetched)
    return size, again + (1 - once) * sum(map(p.row_bytes, p.scattered))


def _missed(p: AnyPlacement, operand: str) -> float:
    """Share of edges whose row of a node is not at hand."""
    return 1 - min(1.0, _HELD * p.chip.cache / (_NODES * p.row_bytes(operand)))
