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

from dataclasses import dataclass
from math import ceil, log2

from tpgen.kernels.cuda.groups import LANES, Group, power_of_two
from tpgen.kernels.cuda.placement import CudaPlacement
from tpgen.kernels.sweep.statements import Product
from tpgen.kernels.sweep.sweep import PathSweep

_LATENCY = 900  # cycles from asking for a number in memory to having it
_BARRIERS = 5 * 40  # cycles of a step that all warps wait for each other
_PACE = 2  # cycles between two instructions of one warp, where others keep the processor busy
_ISSUES = 4  # instructions that a processor issues in a cycle
_BANKS = 128  # bytes that shared memory gives in a cycle
_REGISTERS = 2**16
_OVERHEAD = 40  # instructions of a unit for its places, and of a warp for each step
_CACHE = 2.5  # how much faster than memory the cache gives rows that edges share


@dataclass(frozen=True)
class Prediction:
    """Rows per second at each ceiling, relative to what the memory would allow."""

    bytes: float  # moved for each row
    memory: float  # rows a second
    latency: float
    issue: float
    shared: float
    cache: float

    @property
    def share(self) -> float:
        """Of the bandwidth of a copy."""
        return min(1.0, self.latency, self.issue, self.shared, self.cache)

    @property
    def limit(self) -> str:
        """What is reached first."""
        shares = {n: getattr(self, n) for n in ("latency", "issue", "shared", "cache")}
        return "memory" if self.share == 1 else min(shares, key=lambda n: shares[n])

    def seconds(self, rows: int) -> float:
        return rows / (self.memory * self.share)

    def __str__(self) -> str:
        return f"{100 * self.share:.0f} % of the copy bandwidth"


def predict(placement: CudaPlacement, edges_per_node: float = 20.0, registers: int = 128) -> Prediction:
    """The prediction for a kernel of so many registers, and for graphs with so many edges to a node."""
    p, chip = placement, placement.chip
    gathered = sum(p.row_bytes(o) for o in p.row_operands if p.indexed and o in ("x1", "out"))
    size = _bytes(p, edges_per_node)
    memory = chip.bandwidth / size  # rows a second
    one = memory / chip.processors / chip.clock  # rows a cycle and processor
    blocks = min(p.blocks_at_once, max(1, _REGISTERS // (registers * p.threads)))
    longest = max(sum(_instructions(p, u.group) for u in units) for units in p.work)
    step = (longest + _common(p)) * _PACE + _BARRIERS
    step = max(step, _LATENCY) if p.stage_count > 1 else step + _LATENCY
    issued = sum(_instructions(p, u.group) for u in p.units) + p.warps * _common(p)
    copied = sum(map(p.row_bytes, (*p.row_operands, *p.results))) * p.rows
    touched = sum(_touches(p, u.group) for u in p.units) + copied / _BANKS
    return Prediction(
        bytes=size,
        memory=memory,
        latency=blocks * p.rows / step / one,
        issue=_ISSUES * p.rows / issued / one,
        shared=p.rows / touched / one,
        cache=_CACHE * chip.bandwidth / gathered / memory if gathered else float("inf"),
    )


def _bytes(p: CudaPlacement, edges_per_node: float) -> float:
    """Bytes between memory and chip for each row; rows of nodes once for each node."""
    moved = 0.0
    for operand in (*p.row_operands, *p.results, *((p.owner,) if p.owner else ())):
        shared = p.indexed and operand in ("x1", "out")
        moved += p.row_bytes(operand) / (edges_per_node if shared else 1)
    return moved


def _instructions(p: CudaPlacement, group: Group) -> int:
    """Of one warp, for one unit."""
    row = sum(map(_arithmetic, group.paths)) + _folding(group)
    return _OVERHEAD + _touches(p, group) + row * _rows(p)


def _rows(p: CudaPlacement) -> int:
    """Rows that a unit takes one after the other."""
    return p.rows if p.serial else 1


def _touches(p: CudaPlacement, group: Group) -> int:
    """Loads and stores of one warp in shared memory: numbers, and four table entries at once."""
    row, step = sum(ceil(_entries(path) / 4) for path in group.paths), 0
    for h in group.held:
        row += len(h.loads)
        if h.opened and p.carried(h.view.operand):
            step += 2 * h.view.components
        elif h.opened:
            row += h.view.components * (2 if p.added(h.view.operand) else 1)
    return row * _rows(p) + step


def _entries(path: PathSweep) -> int:
    return len({(e.i, e.k) for e in path.term.entries})


def _arithmetic(path: PathSweep) -> int:
    return sum(_products(t) for s in path.stages for x in s.statements for t in getattr(x, "terms", ()))


def _products(term: Product) -> int:
    """Multiplications of a product, the last of them with its addition."""
    return max(1, len(term.factors) + (abs(term.coefficient) != 1) - 1)


def _folding(group: Group) -> int:
    """Shuffles, choices and additions of the sum over lanes."""
    summed = {s.component for p in group.paths for stage in p.stages[1:] for s in stage.statements}  # type: ignore[union-attr]
    return 3 * (power_of_two(len(summed)) + int(log2(LANES))) if summed else 0


def _common(p: CudaPlacement) -> int:
    """Instructions of each warp for a step, whatever its units: tables, and what is cleared, added and moved."""
    made = sum(ceil(s.size * p.rows / p.threads) * (4 * s.depth + 10) for s in p.table_sets)
    added = sum(ceil(p.dim[o] * p.rows / p.threads) * (p.slots * 3 + 10) for o in p.summed)
    return _OVERHEAD + made + added
