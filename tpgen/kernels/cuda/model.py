"""Speed that a kernel should reach, from its placement alone: five ceilings, each as a share of a copy's.

A model to rank designs by, and no measurement.  It counts instructions as the text has them, which tests compare with
those that the PTX runs.  A warp issues an instruction every other cycle.  A block of a product waits for a step that is
fetched one step ahead, and its warps in each step for tables, sums over lanes and barriers.  A warp of a polynomial
waits for no other: it computes one row of 32 channels (or several of fewer) from registers.

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

from tpgen.kernels.arguments import Sizes
from tpgen.kernels.cuda.chips import LANES, LATENCY, Chip
from tpgen.kernels.cuda.counts import AnyPlacement, Work, multiplications, row_work, task_work, work_of
from tpgen.kernels.cuda.launch import TaskLaunches, launches_of
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.cuda.prelude import SUM_ENTRY
from tpgen.kernels.cuda.steps import SUMMERS

_BARRIER = 40  # cycles that all warps wait for each other
_EXPOSED = 500  # cycles of a step in which each warp waits: for tables, for sums over lanes, for what is taken away
_NODES = 2_000  # of a graph, whose rows the cache may hold or not
_HELD = 0.5  # of the cache, that rows of nodes find beside what streams through it
_PACE = 2  # cycles between two instructions of one warp, where others keep the processor busy
_ISSUES = 4  # instructions that a processor issues in a cycle
_BANKS = 128  # bytes that shared memory gives in a cycle
_INDEX = 24  # bytes of an edge and of what it joins
_MOVED = 8  # instructions for a number that is written and cleared


_AHEAD = 16  # parts of a sum that a warp asks for at once, as sum.h has them
_SUMS = 4  # blocks of a multiprocessor that add them up


def _no_time(rows: int) -> float:
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
    after: Callable[[int], float] = _no_time  # seconds of what is added up behind so many rows
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


# -- products ----------------------------------------------------------------------------------------------------------


def predict(placement: AnyPlacement, edges_per_node: float = 20.0) -> Prediction:
    """The prediction for graphs with so many edges to a node."""
    p, chip = placement, placement.chip
    work = work_of(p)
    size, again = _bytes(p, edges_per_node)
    memory = chip.bandwidth / size  # rows a second
    one = memory / chip.processors / chip.clock  # rows a cycle and processor
    step = work.longest * _PACE + work.barriers * _BARRIER + _EXPOSED + _flush(p) * p.rows / edges_per_node
    first = step + LATENCY
    step = max(step, LATENCY) if p.stage_count > 1 else first
    rows = p.rows
    copied = sum(map(p.row_bytes, (*p.row_operands, *p.results))) * rows
    cached = sum(map(p.row_bytes, filter(p.of_nodes, p.row_operands))) + work.cached / rows
    return Prediction(
        bytes=size,
        memory=memory,
        latency=p.blocks_at_once * rows / step / one,
        issue=rows / _cycles(p, work) / one,
        shared=rows / (work.touched + copied / _BANKS) / one,
        cache=chip.cache_bandwidth / cached / memory if cached else float("inf"),
        misses=size / (size + again) if again else float("inf"),
        collected=sum(map(p.row_bytes, p.scattered)) * (1 + 1 / edges_per_node) / size,
        least=first / chip.clock,
        after=partial(_sum_over_blocks, p) if p.sums_weights else _no_time,
        launches=1 + p.sums_weights + bool(p.scattered),
    )


def _flush(p: AnyPlacement) -> float:
    """Cycles of a block for each owner: what was added up is written, or what stays comes; then warps begin anew."""
    if not p.by:
        return 0.0
    if p.held:
        given = p.chip.cache_bandwidth / p.chip.processors / p.chip.clock  # bytes a cycle
        return 2 * _BARRIER + LATENCY + p.row_bytes(p.held) / given
    return 2 * _BARRIER + _PACE * _MOVED * ceil(p.dim[p.by] / p.threads)


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


def _sum_over_blocks(p: AnyPlacement, rows: int) -> float:
    """Seconds of the sum over all blocks of the gradient of weights that all rows share."""
    return sum_seconds(p.dim["w"], p.number, launches_of(p, Sizes(rows)).runs, p.chip)


def sum_seconds(weights: int, number: int, parts: int, chip: Chip) -> float:
    """Seconds of a sum of so many parts: each warp waits for some at once, the first for those of other warps.

    >>> from tpgen.kernels.cuda.chips import chip_of
    >>> [f"{1e6 * sum_seconds(300, 4, parts, chip_of(90)):.1f} µs" for parts in (1, 256, 1056)]
    ['1.5 µs', '1.5 µs', '4.4 µs']
    """
    waits = ceil(parts / (SUMMERS * _AHEAD)) + 1
    rounds = ceil(ceil(weights / LANES) / (_SUMS * chip.processors))
    return _added_up(chip, rounds, waits * LATENCY, parts * weights * number)


def _added_up(chip: Chip, rounds: int, cycles: float, size: float) -> float:
    """Seconds of what a cache gives and blocks add up: so many cycles in each round, or it gives no more."""
    return max(rounds * cycles / chip.clock, size / chip.cache_bandwidth)


def _cycles(p: AnyPlacement | CudaPolynomialPlacement, work: Work) -> float:
    """Cycles of a multiprocessor that only issues: all instructions, and multiply-adds at their own rate."""
    return max(work.issued / _ISSUES, work.arithmetic * LANES / p.chip.multiply_adds(p.dtype))


# -- polynomials -------------------------------------------------------------------------------------------------------


def predict_polynomial(p: CudaPolynomialPlacement, sizes: Sizes) -> Prediction:
    """The prediction for a batch.

    >>> from tpgen.kernels.cuda.chips import chip_of
    >>> from tpgen.kernels.cuda.placement import place_polynomial
    >>> from tpgen.kernels.runtime.polynomials import describe_polynomial, named_call
    >>> from tpgen.planner.problems import POLYNOMIALS
    >>> problem = POLYNOMIALS["small-contraction"]
    >>> sweep = describe_polynomial(problem.plan).sweep(named_call(problem.plan, "forward"))
    >>> sizes = Sizes(100_000, problem.elements, problem.channels)
    >>> str(predict_polynomial(place_polynomial(problem.plan, sweep, "float32", chip_of(90)), sizes))
    '43 % of the copy bandwidth'
    """
    launches, chip = launches_of(p, sizes), p.chip
    row, once = row_work(p, launches.width), task_work(p)
    units = launches.span * launches.width / LANES  # warps' rounds of a task
    size = _bytes_of_row(launches)
    memory = chip.bandwidth / size
    one = memory / chip.processors / chip.clock  # rows a cycle and processor
    rows = LANES / launches.width / launches.chunks  # whole rows that a warp's round amounts to
    warps = min(p.blocks_at_once * p.warps, sizes.rows / rows / chip.processors)
    instructions = row.issued + once.issued / units
    return Prediction(
        bytes=size,
        memory=memory,
        latency=warps * rows / (instructions * _PACE + LATENCY) / one,
        issue=rows / (_cycles(p, row) + _cycles(p, once) / units) / one,
        shared=rows / (row.touched + once.touched / units + size * rows / _BANKS) / one,
        cache=float("inf"),
        after=partial(_sum_over_tasks, launches) if p.folded else _no_time,
        launches=len(p.entries),
    )


def _sum_over_tasks(launches: TaskLaunches, _rows: int) -> float:
    """Seconds of the second kernel: a warp waits for some tasks at once, then makes gradients of their sums."""
    p, sizes = launches.placement, launches.sizes
    chip, per_block = p.chip, ceil(p.added / (p.warps * p.together))
    waits = per_block * ceil(launches.tasks / sizes.elements / p.ahead) + 1
    longest = max(sum(multiplications(t) for _, terms in part for t in terms) for part in p.epilogue)
    rounds = ceil(launches.blocks[SUM_ENTRY] / (chip.processors * p.blocks_at_once))
    read = launches.tasks * p.added * sizes.channels * p.number
    return _added_up(chip, rounds, waits * LATENCY + longest * _PACE, read)


def _bytes_of_row(launches: TaskLaunches) -> float:
    """Bytes between memory and chip for each row; sums of tasks are written and read again."""
    p, sizes = launches.placement, launches.sizes
    numbers = sum(p.operands[s].dim * (sizes.channels if p.operands[s].channels else 1) for s in (*p.inputs, *p.swept))
    weights = sum(p.operands[s].dim for s in (*p.weights, *p.folded)) * sizes.elements * sizes.channels / sizes.rows
    sums = 2 * p.added * sizes.channels / launches.span
    return (numbers + weights) * p.target.itemsize + sums * p.number
