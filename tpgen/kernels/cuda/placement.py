"""Placements of calls on GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tpgen.base.errors import EmitError
from tpgen.base.remember import remembered
from tpgen.form.form import Form
from tpgen.kernels.cuda.channel_placement import CudaChannelPlacement
from tpgen.kernels.cuda.chips import KIB, Chip
from tpgen.kernels.cuda.gather_placement import CudaGatherPlacement
from tpgen.kernels.cuda.polynomial_placement import CudaPolynomialPlacement
from tpgen.kernels.cuda.steps import check_room, has_room
from tpgen.kernels.placement.channel import ChannelPlacement
from tpgen.kernels.placement.matrix import AnySchedule, MatrixPlacement
from tpgen.kernels.placement.planning import place, plan_schedule
from tpgen.kernels.placement.values import Target
from tpgen.kernels.rows import EDGES
from tpgen.kernels.sweep.monomials import PolynomialSweep
from tpgen.planner.plan import Plan

_WARPS = (2, 4, 8)
_BLOCKS = 2  # on a multiprocessor, before warps share a block
# Gradients of edges come by receiver where cotangents of so many nodes are more than this share of the cache, and a
# cotangent is so many times as long as a row of x1.
_NODES, _HELD, _LONGER = 2_000, 0.75, 3

AnyPlacement = CudaChannelPlacement | CudaGatherPlacement


def cuda_target(dtype: str) -> Target:
    """Target of GPU schedules: one channel per lane."""
    return Target(dtype, lanes=1, registers=255)


def place_form(form: Form, dtype: str, opened: tuple[str, ...], chip: Chip, indexed: bool = False) -> AnyPlacement:
    """`place_cuda` of a form."""
    return place_cuda(plan_schedule(form, cuda_target(dtype)), opened, chip, indexed)


@remembered("placements on a GPU", entries=256)
def place_cuda(schedule: AnySchedule, opened: tuple[str, ...], chip: Chip, indexed: bool = False) -> AnyPlacement:
    """Choose rows and warps of a kernel of results or gradients ``opened``; ``indexed``: by edges of a graph.

    Raises `EmitError` for lack of memory, and as `place`.
    """
    rules = EDGES if indexed else ()
    base = place(schedule, opened, rules)
    assert not isinstance(base, MatrixPlacement)  # which is for vectors
    kind = CudaChannelPlacement if isinstance(base, ChannelPlacement) else CudaGatherPlacement
    one: AnyPlacement = kind(base.schedule, base.opened, base.owner, chip, rules=rules)  # type: ignore[arg-type]
    best = _first_placement_that_fits_memory(_placement_with_edges_by_receiver_if_faster(one) or one)
    check_room(best)
    return best


def _placement_with_edges_by_receiver_if_faster(placement: AnyPlacement) -> AnyPlacement | None:
    # gradients of x1 by receiver: each cotangent is loaded once, gradients per edge pass through memory twice
    if (
        not isinstance(placement, CudaChannelPlacement)
        or placement.owner != "x1"
        or not placement.copies_rows_whole("out")
    ):
        return None
    row = placement.row_bytes("out")
    if row <= _LONGER * placement.row_bytes("x1") or _NODES * row <= _HELD * placement.chip.cache:
        return None
    held = replace(placement, owner=None, held="out")
    return held if has_room(_first_placement_that_fits_memory(held)) else None


def _first_placement_that_fits_memory(placement: AnyPlacement) -> AnyPlacement:
    usual = replace(placement, rows=placement.default_rows)
    usual = replace(usual, warps=usual.default_warps)
    return usual if has_room(usual) else next(_list_placements_that_fit_memory(usual), usual)


def _list_placements_that_fit_memory(default: AnyPlacement) -> Iterator[AnyPlacement]:
    for rows in default.row_choices:
        for warps in _WARPS:
            p = replace(default, rows=rows, warps=warps)
            if p.warps <= p.units_per_step and has_room(p):
                yield p


# -- polynomials -------------------------------------------------------------------------------------------------------


def place_polynomial(plan: Plan, sweep: PolynomialSweep, dtype: str, chip: Chip) -> CudaPolynomialPlacement:
    """Choose warps of a polynomial's kernel: the most that leave room for a second block.

    Raises `EmitError` if one warp does not fit.
    """
    placed = CudaPolynomialPlacement(plan, sweep, cuda_target(dtype), chip)
    for room in (chip.shared // _BLOCKS - KIB, chip.block_shared):
        found = (replace(placed, warps=warps) for warps in (4, 2, 1))
        fitting = next((p for p in found if p.shared <= min(room, chip.block_shared)), None)
        if fitting:
            return fitting
    raise EmitError(_shared_memory_error_text(sweep, replace(placed, warps=1).shared, chip))


def why_derivatives_do_not_fit(plan: Plan, forward: PolynomialSweep, dtype: str, chip: Chip) -> str | None:
    """Why derivatives up to the second do not fit shared memory, or None."""
    placed = CudaPolynomialPlacement(plan, forward, cuda_target(dtype), chip)
    needed = (3 * forward.coefficients + placed.transpose_size) * placed.lane_bytes
    return _shared_memory_error_text(forward, needed, chip) if needed > chip.block_shared else None


def _shared_memory_error_text(sweep: PolynomialSweep, needed_bytes: int, chip: Chip) -> str:
    return (
        f"a kernel of this polynomial, with {sweep.coefficients} coefficients, needs {needed_bytes} bytes of shared "
        f"memory, and a block of {chip} has {chip.block_shared}: use strategy='einsum', or fewer irreps or a lower "
        "degree"
    )
