"""Speed that a polynomial's kernel should reach, from its placement and its batch alone: a model, and no measurement.

It counts as `tpgen.kernels.cuda.model` does.  A warp computes one row of 32 channels (or several of fewer) from
registers; coefficients, and the sums of their gradients, are what it touches in shared memory.

>>> from tpgen.kernels.cuda.chips import chip_of
>>> from tpgen.kernels.cuda.polynomial_placement import place_polynomial
>>> from tpgen.kernels.runtime.polynomials import describe_polynomial, named_call
>>> from tpgen.planner.problems import POLYNOMIALS
>>> problem = POLYNOMIALS["small-contraction"]
>>> sweep = describe_polynomial(problem.plan).sweep(named_call(problem.plan, "forward"))
>>> sizes = Sizes(100_000, problem.elements, problem.channels)
>>> str(predict_polynomial(place_polynomial(problem.plan, sweep, "float32", chip_of(90)), sizes))
'43 % of the copy bandwidth'
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import ceil, log2

from tpgen.kernels.arguments import Sizes
from tpgen.kernels.cuda.chips import LATENCY
from tpgen.kernels.cuda.counts import Work, multiplications
from tpgen.kernels.cuda.groups import LANES
from tpgen.kernels.cuda.model import BANKS, PACE, REGISTERS, Prediction, cycles, no_time
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.cuda.prelude import SUM_ENTRY
from tpgen.kernels.cuda.tasks import Geometry
from tpgen.kernels.placement.polynomial import component_runs
from tpgen.kernels.sweep.monomials import stored_value, terms_of
from tpgen.kernels.sweep.statements import Component, Statement

_OVERHEAD = 40  # instructions of a row for its places
_REGISTERS = 168  # of a thread


def geometry_expected(p: CudaPolynomialPlacement, sizes: Sizes) -> Geometry:
    """Geometry of a batch, for as many blocks at once as have registers and shared memory."""
    return Geometry(p, sizes, _blocks(p) * p.chip.processors)


def _blocks(p: CudaPolynomialPlacement) -> int:
    return min(p.blocks_at_once, max(1, REGISTERS // (_REGISTERS * p.threads)))


def predict_polynomial(p: CudaPolynomialPlacement, sizes: Sizes) -> Prediction:
    """The prediction for a batch."""
    geometry, blocks, chip = geometry_expected(p, sizes), _blocks(p), p.chip
    row, once = _row(p, geometry), _once(p)
    units = geometry.span * geometry.width / LANES  # warps' rounds of a task
    size = _bytes(geometry)
    memory = chip.bandwidth / size
    one = memory / chip.processors / chip.clock  # rows a cycle and processor
    rows = LANES / geometry.width / geometry.chunks  # whole rows that a warp's round amounts to
    warps = min(blocks * p.warps, sizes.rows / rows / chip.processors)
    instructions = row.issued + once.issued / units
    return Prediction(
        bytes=size,
        memory=memory,
        latency=warps * rows / (instructions * PACE + LATENCY) / one,
        issue=rows / (_cycles(p, row) + _cycles(p, once) / units) / one,
        shared=rows / (row.touched + once.touched / units + size * rows / BANKS) / one,
        cache=float("inf"),
        after=partial(_weights, geometry) if p.folded else no_time,
        launches=len(p.entries),
    )


def _weights(geometry: Geometry, _rows: int) -> float:
    """Seconds of the second kernel: a warp waits for some tasks at once, then makes gradients of their sums."""
    p, sizes = geometry.placement, geometry.sizes
    chip, per_block = p.chip, ceil(p.added / (p.warps * p.together))
    waits = per_block * ceil(geometry.tasks / sizes.elements / p.ahead) + 1
    longest = max(sum(multiplications(t) for _, terms in part for t in terms) for part in p.epilogue)
    rounds = ceil(geometry.blocks[SUM_ENTRY] / (chip.processors * _blocks(p)))
    read = geometry.tasks * p.added * sizes.channels * p.lane_bytes / LANES
    return max(rounds * (waits * LATENCY + longest * PACE) / chip.clock, read / chip.cache_bandwidth)


def _cycles(p: CudaPolynomialPlacement, work: Work) -> float:
    return cycles(p.chip, p.target.dtype, work.issued, work.arithmetic)


def _row(p: CudaPolynomialPlacement, geometry: Geometry) -> Work:
    """One round of a warp."""
    turned = sum(size for s in (*p.inputs, *p.stored) for _, size in component_runs(p.operands[s]) if size > 1)
    moved = sum(p.operands[s].dim for s in (*p.inputs, *p.stored))
    read = sum(len(p.read[s]) for s in p.coefficients)
    added = sum(_adds(s) for s in p.sweep.rows)
    summed = sum(p.operands[s].dim for s in p.summed) * 2 * log2(max(2, geometry.width))
    touched = read + 2 * added + 2 * turned
    return _work(p.sweep.rows, _OVERHEAD + moved + summed + touched, touched)


def _once(p: CudaPolynomialPlacement) -> Work:
    """Work of all warps of a block for a task: coefficients, and the sums of their gradients."""
    touched = p.kept + 2 * p.warps * p.added
    return _work(p.sweep.prologue, sum(len(p.read[s]) for s in p.weights) + touched, touched)


def _work(statements: Iterable[Statement], other: float, touched: float) -> Work:
    """Instructions of one warp, which waits for no other."""
    arithmetic = sum(multiplications(term) for s in statements for term in terms_of(s))
    return Work(arithmetic + other, arithmetic + other, arithmetic, touched, barriers=0)


def _bytes(geometry: Geometry) -> float:
    """Bytes between memory and chip for each row; sums of tasks are written and read again."""
    p, sizes = geometry.placement, geometry.sizes
    numbers = sum(p.operands[s].dim * (sizes.channels if p.operands[s].channels else 1) for s in (*p.inputs, *p.swept))
    weights = sum(p.operands[s].dim for s in (*p.weights, *p.folded)) * sizes.elements * sizes.channels / sizes.rows
    sums = 2 * p.added * sizes.channels / geometry.span
    return (numbers + weights) * p.target.itemsize + sums * p.lane_bytes / LANES


def _adds(statement: Statement) -> bool:
    target = stored_value(statement)
    return isinstance(target, Component) and target.operand.startswith("@")
