"""Whether a product that mixes copies is faster as a kernel, or as matrix products of the library.

A kernel keeps what stands between in shared memory and is launched once, but reads every number of a matrix for each
step of rows.  A matrix product reads it for many rows; its graph is launched operation by operation, and moves all that
stands between through memory.  So kernels win where weights are few, or each row has its own.
"""

from __future__ import annotations

from tpgen.form.form import Form
from tpgen.kernels.cuda.chips import Chip
from tpgen.kernels.cuda.model import predict
from tpgen.kernels.cuda.placement import cuda_target, place_cuda
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.kernels.placement.values import BatchSchedule
from tpgen.remember import remembered
from tpgen.text import duration

_ROWS = 10_000
_LAUNCH = 5e-6  # seconds that PyTorch takes for an operation
_OPERATIONS = 4  # of a graph for each path, forwards
_DIRECTIONS = 3  # a backward pass is two more of the same size
_MOVES = 3  # times that inputs, coupled, pass through memory: written, turned, read
_REACHED = 0.6  # of all multiply-adds that a chip can start, by matrix products


@remembered("products that graphs do faster on a GPU", entries=64)
def graphs_are_faster(form: Form, dtype: str, chip: Chip) -> str | None:
    """Why a product is left to graphs, in words; None where a kernel is worth it.

    >>> from tpgen.form.form import form_of
    >>> from tpgen.kernels.cuda.chips import chip_of
    >>> from tpgen.planner.problems import find_problem
    >>> graphs_are_faster(form_of(find_problem("diffdock-l1").plan, "mul_ir"), "float32", chip_of(90))
    >>> print(graphs_are_faster(form_of(find_problem("self-connection").plan, "mul_ir"), "float32", chip_of(90)))
    matrix products of the library are faster: about 654 µs forward and backward of 10000 rows, a kernel 1.47 ms
    """
    schedule = plan_schedule(form, cuda_target(dtype))
    if not isinstance(schedule, BatchSchedule):
        return None
    kernels, graphs = _kernels(schedule, chip), _graphs(schedule, chip)
    if kernels <= graphs:
        return None
    return (
        f"matrix products of the library are faster: about {duration(graphs)} forward and backward of {_ROWS} rows, "
        f"a kernel {duration(kernels)}"
    )


def _kernels(schedule: BatchSchedule, chip: Chip) -> float:
    tasks = (("out",), ("x1", "x2", "w"))
    return sum(predict(place_cuda(schedule, opened, chip)).seconds(_ROWS) + _LAUNCH for opened in tasks)


def _graphs(schedule: BatchSchedule, chip: Chip) -> float:
    rows = _ROWS * _DIRECTIONS
    coupled = sum(t.size(t.inputs) * t.size("k") for t in schedule.terms)
    weights = 0 if schedule.shared_weights else schedule.dims[2]
    moved = rows * schedule.target.itemsize * (sum(schedule.dims) - schedule.dims[2] + weights + _MOVES * coupled)
    products = rows * sum(t.size(t.mode.weight) * t.size("k") for t in schedule.terms)
    computed = 2 * products / (chip.matrix_flops(schedule.target.dtype) * _REACHED)
    launched = _DIRECTIONS * _OPERATIONS * len(schedule.terms) * _LAUNCH
    return moved / chip.bandwidth + computed + launched
