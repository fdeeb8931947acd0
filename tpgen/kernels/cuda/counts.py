"""Costs of a step, counted on its placement: instructions, accesses to shared memory, bytes from the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, log2

from tpgen.kernels.cuda.channel_placement import CudaPlacement
from tpgen.kernels.cuda.chips import LANES
from tpgen.kernels.cuda.gather_placement import GatherPlacement
from tpgen.kernels.cuda.gathers import Gather, GatherPart
from tpgen.kernels.cuda.groups import Group, power_of_two
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.placement.polynomial import component_runs
from tpgen.kernels.sweep.monomials import stored_value
from tpgen.kernels.sweep.statements import Component, Define, Product, Statement
from tpgen.kernels.sweep.sweep import PathSweep
from tpgen.kernels.sweep.terms import D

AnyPlacement = CudaPlacement | GatherPlacement

# Instructions of a warp whatever it does: for each step; on edges for each step and row as well; of a gather.
_STEP, _EDGES, _EDGE, _OVERHEAD = 120, 60, 40, 40
_DELIVERY = 4  # of these for results, and the barrier before them
_UNIT = 20  # of a unit, for its places
_BARRIERS = 2  # of a step: rows of the one before are done with, and its own are there


@dataclass(frozen=True)
class Work:
    """Costs of one step, as the text has it."""

    longest: float  # instructions of the warp that has most
    issued: float  # of all warps
    arithmetic: int  # those of them that multiply and add
    touched: float  # accesses of a warp to shared memory
    barriers: int
    cached: int = 0  # bytes of weights that all rows share


def work_of(p: AnyPlacement) -> Work:
    """The work of a step."""
    return _gathers_work(p) if isinstance(p, GatherPlacement) else _channel_work(p)


# -- products that keep channels ---------------------------------------------------------------------------------------


def _channel_work(p: CudaPlacement) -> Work:
    longest = max(sum(instructions(p, u.group) for u in units) for units in p.work) + _common(p)
    issued = sum(instructions(p, u.group) for u in p.units) + p.warps * _common(p)
    tables = p.warps * sum(ceil(s.size * p.rows / p.threads) * s.depth for s in p.table_sets)
    arithmetic = sum(_row(u.group) for u in p.units) * _rows(p) + tables
    barriers = _BARRIERS + 1 + bool(p.summed) + bool(p.results)
    return Work(longest, issued, arithmetic, sum(_touches(p, u.group) for u in p.units), barriers)


def instructions(p: CudaPlacement, group: Group) -> int:
    """Instructions of one warp for one unit."""
    folding = 0 if p.folds_once else _folding(group)
    return _UNIT + _touches(p, group) + (_row(group) + folding) * _rows(p)


def _row(group: Group) -> int:
    """Multiply-adds of one row."""
    return sum(multiply_adds(x) for path in group.paths for s in path.stages for x in s.statements)


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


def multiply_adds(statement: Statement) -> int:
    """Multiply-adds of a statement; a sum that begins with a value that is there goes on from it."""
    terms = statement.terms
    begun = isinstance(statement, Define) and len(terms) > 1 and any(t == _plain(t) for t in terms)
    return sum(map(multiplications, terms)) - begun


def _plain(term: Product) -> Product:
    """A product's first value alone."""
    return Product(1.0, term.factors[:1])


def multiplications(term: Product) -> int:
    """Multiplications of a product, the last of them with its addition."""
    return max(1, len(term.factors) + (abs(term.coefficient) != 1) - 1)


def _folding(group: Group) -> int:
    """Choices, shuffles and additions of the sum over lanes."""
    summed = {s.component for p in group.paths for stage in p.stages[1:] for s in stage.statements}  # type: ignore[union-attr]
    return _fold(len(summed)) if summed else 0


def _fold(numbers: int) -> int:
    return 3 * (power_of_two(numbers) + int(log2(LANES)))


def _common(p: CudaPlacement) -> int:
    """Instructions of each warp for a step, whatever its units: tables, and what is cleared, added and moved."""
    made = sum(ceil(s.size * p.rows / p.threads) * (4 * s.depth + 10) for s in p.table_sets)
    added = sum(ceil(p.dim[o] * p.rows / p.threads) * (p.slots * 3 + 10) for o in p.summed)
    return moved(p) + made + added + sum(_fold(size) for _, _, size in p.folded)


def moved(p: AnyPlacement) -> int:
    """Instructions of each warp for a step that fetches its rows and takes results away."""
    kept = 0 if p.results else _DELIVERY
    return _STEP - kept + (_EDGES + _EDGE * p.rows if p.indexed else 0)


# -- products that mix copies ------------------------------------------------------------------------------------------


def _gathers_work(p: GatherPlacement) -> Work:
    taken = [_share(g) for g in p.gathers]  # instructions of a warp for some items, by gather
    longest = sum(max(sum(taken[s.gather.number] for s in shares) for shares in phase) for phase in p.phases)
    return Work(
        longest=longest + moved(p),
        issued=sum(g.chunks * taken[g.number] for g in p.gathers) + p.warps * moved(p),
        arithmetic=sum(g.chunks * _rounds(g, _multiply_adds) for g in p.gathers),
        touched=sum(g.chunks * (_rounds(g, lambda part: _reads(p, part)) + g.components) for g in p.gathers),
        barriers=_BARRIERS + bool(p.results) + len(p.phases) - 1,
        cached=_cached(p),
    )


def _share(g: Gather) -> int:
    """Instructions of a warp for some items of a gather."""
    folded = 2 * g.components * int(log2(g.width))
    return _OVERHEAD + _rounds(g, _part) + folded + 2 * g.components


def _rounds(g: Gather, count: Callable[[GatherPart], int]) -> int:
    return g.inner * sum(ceil(part.times / g.width) * count(part) for part in g.parts)


def _part(part: GatherPart) -> int:
    """Instructions of one round: reads, with an address for every four, and multiply-adds."""
    return ceil(1.25 * len(part.reads)) + _multiply_adds(part) + 1


def _multiply_adds(part: GatherPart) -> int:
    return sum(map(multiply_adds, part.statements))


def _reads(p: GatherPlacement, part: GatherPart) -> int:
    return sum(not p.shared_weights(operand) for operand in part.reads)


def _cached(p: GatherPlacement) -> int:
    """Weights that all rows share are read in every step, and their gradients are added to."""
    if not p.schedule.shared_weights:
        return 0
    times = sum(target in {g.target for g in p.gathers} for target in (D, "out")) + 2 * ("w" in p.opened)
    return times * p.row_bytes("w")


# -- polynomials -------------------------------------------------------------------------------------------------------


def row_work(p: CudaPolynomialPlacement, width: int) -> Work:
    """The work of one round of a warp, whose rows have so many lanes each."""
    turned = sum(size for s in (*p.inputs, *p.stored) for _, size in component_runs(p.operands[s]) if size > 1)
    fetched = sum(p.operands[s].dim for s in (*p.inputs, *p.stored))
    read = sum(len(p.read[s]) for s in p.coefficients)
    added = sum(map(_adds_to_coefficients, p.sweep.rows))
    summed = sum(p.operands[s].dim for s in p.summed) * 2 * log2(max(2, width))
    touched = read + 2 * added + 2 * turned
    return _independent(p.sweep.rows, _OVERHEAD + fetched + summed + touched, touched)


def task_work(p: CudaPolynomialPlacement) -> Work:
    """The work of all warps of a block for a task: coefficients, and the sums of their gradients."""
    touched = p.kept + 2 * p.warps * p.added
    return _independent(p.sweep.prologue, sum(len(p.read[s]) for s in p.weights) + touched, touched)


def _independent(statements: Iterable[Statement], other: float, touched: float) -> Work:
    """Instructions of one warp, which waits for no other."""
    arithmetic = sum(multiplications(term) for s in statements for term in s.terms)
    return Work(arithmetic + other, arithmetic + other, arithmetic, touched, barriers=0)


def _adds_to_coefficients(statement: Statement) -> bool:
    target = stored_value(statement)
    return isinstance(target, Component) and target.operand.startswith("@")
