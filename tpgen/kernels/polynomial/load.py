"""A polynomial's sweep made something to call, for a target: its text compiled, or its statements run one by one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tpgen.form.polynomial import read_operand, write_operand
from tpgen.kernels.libraries import build
from tpgen.kernels.libraries.compiler import target
from tpgen.kernels.polynomial.cpp import generate
from tpgen.kernels.polynomial.interpret import interpret
from tpgen.kernels.polynomial.placement import PolynomialPlacement
from tpgen.kernels.polynomial.sweep import PolynomialSweep
from tpgen.planner.polynomial_plan import Operand, PolynomialPlan

_INDEX = torch.int64.itemsize  # tasks and the order of rows are int64
_ACCUMULATED = torch.float32.itemsize  # bfloat16 is stored only: sums and scratch of it are float32


class Sizes(NamedTuple):
    """How many rows, elements and channels a call has."""

    rows: int
    elements: int
    channels: int


# given tensors, results, the element of every row, sizes -> fault, 0 for none
PolynomialKernel = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor | None, Sizes], int]


class CompiledPolynomial:
    """A compiled function, with its address where it stands in a library: there the runtime can call it."""

    def __init__(self, function: Callable[..., int]) -> None:
        self._function = function
        self.address = build.address_of(function)

    def __call__(self, given: Sequence[Tensor], opened: Sequence[Tensor], index: Tensor | None, sizes: Sizes) -> int:
        counts = (ctypes.c_int64 * 2)(sizes.elements, sizes.channels)
        arrays = _pointers(given), _pointers(opened), counts
        places = [ctypes.addressof(array) for array in arrays]
        where = 0 if index is None else index.data_ptr()
        return self._function(places[0], places[1], where, places[2], 0, 0, 0, 0, sizes.rows)


def compiled(plan: PolynomialPlan, sweep: PolynomialSweep, dtype: torch.dtype) -> PolynomialKernel:
    """The C++ of a sweep, for the vectors of this machine."""
    return CompiledPolynomial(build.load(generate(PolynomialPlacement(plan, sweep, target(dtype))).text))


def compiled_bytes(
    plan: PolynomialPlan, sweep: PolynomialSweep, dtype: torch.dtype, sizes: Sizes, _index: bool, _device: torch.device
) -> int:
    """What a call of it takes beside operands and results.

    Lists of tasks (rows by element, cut into spans), sums that are stored when all tasks are done, scratch of threads.
    """
    placed = PolynomialPlacement(plan, sweep, target(dtype))
    most = sizes.elements + (sizes.rows // placed.span if placed.span else 0) + 1
    tasks = (sizes.elements + 1 + sizes.rows + 2 * most) * _INDEX
    sums = sum(sizes.rows * placed.operands[slot].dim for slot in placed.summed)
    scratch = max(1, sum(placed.scratch.values())) * placed.target.lanes * torch.get_num_threads()
    return tasks + (sums + scratch) * max(_ACCUMULATED, dtype.itemsize)


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*[x.data_ptr() for x in tensors])


def interpreted(plan: PolynomialPlan, sweep: PolynomialSweep, dtype: torch.dtype) -> PolynomialKernel:
    """The sweep as it stands, in float64."""
    call = sweep.call

    def run(given: Sequence[Tensor], opened: Sequence[Tensor], index: Tensor | None, sizes: Sizes) -> int:
        pairs = zip(call.given, given, strict=True)
        tensors = {str(slot): _components(plan.operand(slot.operand), x.double()) for slot, x in pairs}
        results = [plan.operand(slot.operand) for slot in call.opened]
        shapes = {str(slot): _shape(o, sizes) for slot, o in zip(call.opened, results, strict=True)}
        if index is None:
            index = torch.arange(sizes.rows) if sizes.elements == sizes.rows else torch.zeros(sizes.rows).long()
        elif index.numel() and not 0 <= int(index.min()) <= int(index.max()) < sizes.elements:
            return 2
        found = interpret(sweep, tensors, shapes, index)
        for slot, o, x in zip(call.opened, results, opened, strict=True):
            value = found[str(slot)]
            x.copy_((value if o.weights else write_operand(o, value.transpose(1, 2))).reshape(x.shape))
        return 0

    return run


def _components(o: Operand, x: Tensor) -> Tensor:
    """A tensor as ``[row or element, component, channel]``."""
    return read_operand(o, x).transpose(1, 2)


def _shape(o: Operand, sizes: Sizes) -> tuple[int, int, int]:
    return sizes.elements if o.weights else sizes.rows, o.dim, sizes.channels if o.channels else 1
