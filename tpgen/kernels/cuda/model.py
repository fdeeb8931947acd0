"""What a kernel should reach, from its placement alone: four ceilings, each as a share of what a copy reaches.

A model to rank designs by, and no measurement.  It counts instructions as the text has them; a block waits for a step
that is fetched one step ahead; a warp issues an instruction every other cycle.

>>> from tpgen.form.linear import form_of
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

from tpgen.kernels.cuda.chips import CACHE, LATENCY, Chip
from tpgen.kernels.cuda.counts import AnyPlacement, work_of
from tpgen.kernels.cuda.groups import LANES
from tpgen.kernels.cuda.launch import blocks_of
from tpgen.kernels.cuda.sums import WeightSum

_BARRIER = 40  # cycles that all warps wait for each other
PACE = 2  # cycles between two instructions of one warp, where others keep the processor busy
ISSUES = 4  # instructions that a processor issues in a cycle
BANKS = 128  # bytes that shared memory gives in a cycle
REGISTERS = 2**16


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
    least: float = 0.0  # seconds of one step of one block, which no batch is faster than
    after: Callable[[int], float] = no_time  # seconds of what is added up behind so many rows
    launches: int = 1  # of kernels

    @property
    def share(self) -> float:
        """Of the bandwidth of a copy, by the rows alone."""
        return min(1.0, self.latency, self.issue, self.shared, self.cache)

    @property
    def limit(self) -> str:
        """What is reached first."""
        shares = {n: getattr(self, n) for n in ("latency", "issue", "shared", "cache")}
        return "memory" if self.share == 1 else min(shares, key=lambda n: shares[n])

    def seconds(self, rows: int) -> float:
        return self._of_rows(rows) + self.after(rows)

    def _of_rows(self, rows: int) -> float:
        return max(rows / (self.memory * self.share), self.least)

    def share_of(self, rows: int) -> float:
        """Of the bandwidth of a copy, with what follows so many rows."""
        return min(self.share, rows / (self.memory * self.seconds(rows)))

    def limit_of(self, rows: int) -> str:
        """What takes longest of so many rows."""
        if self.after(rows) > self._of_rows(rows):
            return "sums over blocks"
        return "latency" if self._of_rows(rows) == self.least else self.limit

    def __str__(self) -> str:
        return f"{100 * self.share:.0f} % of the copy bandwidth"


def _filled(rows: int, edges: float) -> float:
    """How full steps of so many rows are, where the edges of each node are steps of their own.

    >>> _filled(8, 20), _filled(32, 20)
    (0.8333333333333334, 0.625)
    """
    return edges / (ceil(edges / rows) * rows)


def predict(placement: AnyPlacement, edges_per_node: float = 20.0) -> Prediction:
    """The prediction for graphs with so many edges to a node."""
    p, chip = placement, placement.chip
    work = work_of(p)
    size = _bytes(p, edges_per_node)
    memory = chip.bandwidth / size  # rows a second
    one = memory / chip.processors / chip.clock  # rows a cycle and processor
    step = work.longest * PACE + work.barriers * _BARRIER
    first = step + LATENCY
    step = max(step, LATENCY) if p.stage_count > 1 else first
    rows = p.rows * (_filled(p.rows, edges_per_node) if p.owner else 1)
    copied = sum(map(p.row_bytes, (*p.row_operands, *p.results))) * rows
    cached = sum(p.row_bytes(o) for o in p.row_operands if p.indexed and o in ("x1", "out")) + work.cached / rows
    return Prediction(
        bytes=size,
        memory=memory,
        latency=p.blocks_at_once * rows / step / one,
        issue=rows / cycles(chip, p.schedule.target.dtype, work.issued, work.arithmetic) / one,
        shared=rows / (work.touched + copied / BANKS) / one,
        cache=CACHE * chip.bandwidth / cached / memory if cached else float("inf"),
        least=first / chip.clock,
        after=partial(_sum, p, edges_per_node) if p.sums_weights else no_time,
        launches=1 + p.sums_weights,
    )


def _sum(p: AnyPlacement, edges_per_node: float, rows: int) -> float:
    """Seconds of the sum over all blocks of the gradient of weights that all rows share."""
    found = WeightSum(p.dim["w"], p.number)
    return found.seconds(blocks_expected(p, rows, ceil(rows / edges_per_node)), p.chip)


def blocks_expected(p: AnyPlacement, rows: int, owners: int) -> int:
    """As `blocks_of` has them, for as many blocks at once as the compiler is asked for."""
    return blocks_of(p, rows, owners, p.blocks_at_once * p.chip.processors)


def cycles(chip: Chip, dtype: str, issued: float, arithmetic: float) -> float:
    """Of a multiprocessor that only issues: all instructions, and those that multiply and add at their own rate."""
    return max(issued / ISSUES, arithmetic * LANES / chip.multiply_adds(dtype))


def _bytes(p: AnyPlacement, edges_per_node: float) -> float:
    """Bytes between memory and chip for each row; rows of nodes once for each node."""
    moved = 0.0
    for operand in (*p.row_operands, *p.results, *((p.owner,) if p.owner else ())):
        shared = p.indexed and operand in ("x1", "out")
        moved += p.row_bytes(operand) / (edges_per_node if shared else 1)
    return moved
