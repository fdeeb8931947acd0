"""Run kernels of polynomials: check the tensors, allocate the open slots, call the compiled function."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property

import torch
from torch import Tensor

from tpgen.errors import BackendError, InputError, PlanError
from tpgen.form.polynomial import Polynomial, form_of
from tpgen.kernels.cpp.text import GeneratedSource
from tpgen.kernels.libraries import build
from tpgen.kernels.libraries.compiler import DTYPES, find_compiler, target, why_no_compiler
from tpgen.kernels.operators import memory
from tpgen.kernels.polynomial.call import Call, Slot
from tpgen.kernels.polynomial.cpp import FAULTS, generate
from tpgen.kernels.polynomial.sweep import PolynomialSweep, make_sweep
from tpgen.planner.polynomial_json import polynomial_from_json
from tpgen.planner.polynomial_plan import OUT, PolynomialPlan

_LARGEST = 20_000  # operations of a row; g++ takes some 10 s for so many


class PolynomialKernels:
    """The kernels of one polynomial, each built when it is first called."""

    def __init__(self, plan: PolynomialPlan) -> None:
        self.plan = plan
        self.weights = frozenset(o.name for o in plan.weights)
        self._kernels: dict[tuple[Call, torch.dtype], Callable[..., int]] = {}

    @cached_property
    def form(self) -> Polynomial:
        return form_of(self.plan)

    def sweep(self, call: Call) -> PolynomialSweep:
        """The program of a call.  Raises `BackendError` where it is too large to be written out."""
        sweep = make_sweep(self.form, call, self.weights)
        if sweep.operations > _LARGEST:
            raise BackendError(
                f"a kernel of this polynomial ({call}) takes "
                f"{sweep.operations} operations a row, more than {_LARGEST}: "
                "use strategy='einsum', or fewer irreps or a lower degree"
            )
        return sweep

    def source(self, call: Call, dtype: torch.dtype) -> GeneratedSource:
        return generate(self.plan, self.sweep(call), target(dtype))

    def kernel(self, call: Call, dtype: torch.dtype) -> Callable[..., int]:
        found = self._kernels.get((call, dtype))
        if found is None:
            found = self._kernels[call, dtype] = build.load(self.source(call, dtype).text)
        return found

    def build_together(self, calls: Iterable[Call], dtype: torch.dtype) -> None:
        """Build the kernels of several calls side by side, where more than one is missing."""
        missing = [call for call in calls if (call, dtype) not in self._kernels]
        if len(missing) > 1:
            with ThreadPoolExecutor(len(missing)) as pool:
                list(pool.map(lambda call: self.kernel(call, dtype), missing))

    # -- one call --

    def sizes(self, call: Call, tensors: Sequence[Tensor], index: Tensor | None) -> tuple[int, int, int]:
        """Rows, elements and channels of a call; raises `InputError` where a tensor does not fit."""
        self._check_names(call, tensors)
        rows = elements = channels = None
        for slot, x in zip(call.given, tensors, strict=True):
            operand = self.plan.operand(slot.operand)
            if x.dim() == 0:
                raise InputError(f"{slot}: must have rows, got a number")
            width, first = _width(x), x.shape[0]
            if operand.weights:
                elements = _agree(slot, "elements", first, elements)
            else:
                rows = _agree(slot, "rows", first, rows)
            if operand.channels:
                if width % operand.dim:
                    raise InputError(
                        f"{slot}: a row must be whole channels of {operand.dim} ({operand.irreps}), got {width} numbers"
                    )
                channels = _agree(slot, "channels", width // operand.dim, channels)
            elif width != operand.dim:
                raise InputError(f"{slot}: a row must have {operand.dim} numbers ({operand.irreps}), got {width}")
        rows, elements = rows or 0, 1 if elements is None else elements
        self._check_index(index, rows, elements)
        return rows, elements, 1 if channels is None else channels

    def _check_names(self, call: Call, tensors: Sequence[Tensor]) -> None:
        names = {o.name for o in self.plan.operands}
        for slot in (*call.given, *call.opened):
            if slot.operand not in names or slot.levels & ~call.levels:
                raise PlanError(f"call {str(call)[:60]!r}: {slot} is no slot of this polynomial")
        if len(call.given) != len(tensors):
            raise InputError(f"call {str(call)[:60]!r} is given {len(call.given)} tensors, got {len(tensors)}")
        if tensors and all(self.plan.operand(s.operand).weights for s in call.given):
            raise InputError("one tensor at least must have rows: weights alone make no polynomial")

    def _check_index(self, index: Tensor | None, rows: int, elements: int) -> None:
        if index is None:
            if elements not in (1, rows):
                raise InputError(
                    f"index: weights of {elements} elements need the element of "
                    f"each of the {rows} rows (int64); without an "
                    "index they are one for all rows, or one for each"
                )
        elif index.dtype != torch.int64 or tuple(index.shape) != (rows,):
            raise InputError(
                f"index: must be int64 of shape ({rows},), the element of every "
                f"row, got {index.dtype} {tuple(index.shape)}"
            )

    def shapes(self, call: Call, tensors: Sequence[Tensor], index: Tensor | None) -> list[tuple[int, ...]]:
        """Shapes of the opened slots: those of what is given for the same operand, else one flat row for each."""
        rows, _, channels = self.sizes(call, tensors, index)
        known = {s.operand: tuple(x.shape) for s, x in reversed([*zip(call.given, tensors, strict=True)])}
        return [known.get(s.operand) or (rows, self.plan.operand(s.operand).dim * channels) for s in call.opened]

    def run(self, call: Call, tensors: Sequence[Tensor], index: Tensor | None) -> list[Tensor]:
        """The opened slots."""
        rows, elements, channels = self.sizes(call, tensors, index)
        dtype = self._dtype(call, tensors, index)
        shapes = self.shapes(call, tensors, index)
        dense = [x.contiguous() for x in tensors]
        results = [memory.empty(shape, dtype) for shape in shapes]
        if not channels:
            return results
        function = self.kernel(call, dtype)
        where = 0 if index is None else (index := index.contiguous()).data_ptr()
        given = (ctypes.c_void_p * len(dense))(*(x.data_ptr() for x in dense))
        opened = (ctypes.c_void_p * len(results))(*(x.data_ptr() for x in results))
        sizes = (ctypes.c_int64 * 2)(elements, channels)
        torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
        fault = function(
            ctypes.addressof(given), ctypes.addressof(opened), where, ctypes.addressof(sizes), 0, 0, 0, 0, rows
        )
        if fault == 2:
            raise InputError(f"index: elements run from 0 to {elements - 1}, and it holds one out of range")
        if fault:
            raise BackendError(f"a kernel stopped: {FAULTS.get(fault, f'fault {fault}')}; use smaller batches")
        return results

    def _dtype(self, call: Call, tensors: Sequence[Tensor], index: Tensor | None) -> torch.dtype:
        dtype = tensors[0].dtype
        for slot, x in zip(call.given, tensors, strict=True):
            if x.dtype not in DTYPES:
                raise InputError(
                    f"{slot} is {_short(x.dtype)}, and kernels compute in float32, float64 or bfloat16: convert it"
                )
            if x.dtype != dtype:
                raise InputError(
                    f"{slot} must be {_short(dtype)} as {call.given[0]} is, got {_short(x.dtype)}: convert one of them"
                )
            if x.device.type != "cpu":
                raise InputError(
                    f"{slot} must be on the CPU, where the kernels run, got "
                    f"{x.device}; move it, or use strategy='einsum'"
                )
        if index is not None and index.device.type != "cpu":
            raise InputError(f"index must be on the CPU, got {index.device}")
        return dtype


def _width(x: Tensor) -> int:
    width = 1
    for size in x.shape[1:]:
        width = width * size
    return width


def _agree(slot: Slot, what: str, size: int, before: int | None) -> int:
    if before is not None and size != before:
        raise InputError(f"{slot}: has {size} {what}, and the tensors before it have {before}: they must agree")
    return size


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def forward_call(plan: PolynomialPlan) -> Call:
    """The call that computes the output from inputs and weights, in the order of the operands."""
    return Call(tuple(Slot(o.name) for o in plan.operands if o.name != OUT), (Slot(OUT),))


@cache
def kernels_of(description: str) -> PolynomialKernels:
    """The kernels of a described polynomial, prepared once per process."""
    return PolynomialKernels(polynomial_from_json(description))


def why_no_kernel(
    plan: PolynomialPlan, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> str | None:
    """None where a generated kernel can compute the polynomial, otherwise the reason in words.

    >>> from e3nn.o3 import Irreps
    >>> from tpgen.planner.polynomial_plan import Operand, PolynomialTerm, make_polynomial_plan
    >>> operands = [Operand("x", Irreps("1o")), Operand("out", Irreps("0e"))]
    >>> plan = make_polynomial_plan(operands, [PolynomialTerm(("x", "x"), 0)])
    >>> why_no_kernel(plan, torch.float16)
    'kernels compute in float32, float64 or bfloat16, not in float16'
    """
    if torch.device(device).type != "cpu":
        return f"kernels run on the CPU, not on {torch.device(device).type}"
    if dtype not in DTYPES:
        return f"kernels compute in float32, float64 or bfloat16, not in {_short(dtype)}"
    if find_compiler() is None:
        return f"kernels need a C++ compiler (g++ 12 or later, or clang) and {why_no_compiler()}"
    try:
        kernels = kernels_of(plan.to_json())
        kernels.sweep(forward_call(plan))
    except BackendError as error:
        return str(error)
    return None
