"""Run kernels of polynomials: check the tensors, allocate the open slots, call the compiled function."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property

import torch
from torch import Tensor

from tpgen.errors import BackendError, InputError
from tpgen.form.polynomial import Polynomial, form_of
from tpgen.kernels.cpp.text import GeneratedSource
from tpgen.kernels.libraries import build
from tpgen.kernels.libraries.compiler import DTYPES, find_compiler, target, why_no_compiler
from tpgen.kernels.operators import memory
from tpgen.kernels.polynomial.call import Call, Slot
from tpgen.kernels.polynomial.cpp import FAULTS, generate
from tpgen.kernels.polynomial.signature import Signature, short
from tpgen.kernels.polynomial.sweep import PolynomialSweep, make_sweep
from tpgen.planner.polynomial_json import polynomial_from_json
from tpgen.planner.polynomial_plan import OUT, PolynomialPlan

# operations of a row: what takes g++ minutes is refused, and nothing is chosen by itself whose second derivatives, some
# four times its operations, would take it more than a few seconds
_LARGEST, _COMFORTABLE = 100_000, 8_000


class PolynomialKernels:
    """The kernels of one polynomial, each built when it is first called."""

    def __init__(self, plan: PolynomialPlan) -> None:
        self.plan = plan
        self.weights = frozenset(o.name for o in plan.weights)
        self._kernels: dict[tuple[Call, torch.dtype], Callable[..., int]] = {}
        self.called: dict[tuple[str, torch.dtype], Callable[..., int]] = {}  # the same by text, once called
        self._signatures: dict[str, Signature] = {}

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

    def signature(self, text: str) -> Signature:
        """What a call takes and returns, read once.  Raises `PlanError` where the text is no call of the polynomial."""
        found = self._signatures.get(text)
        if found is None:
            found = self._signatures[text] = Signature(self.plan, Call.parse(text))
        return found

    def run(self, text: str, tensors: Sequence[Tensor], index: Tensor | None) -> list[Tensor]:
        """The opened slots of a call."""
        signature = self.signature(text)
        sizes = signature.sizes(tensors, index)
        dtype = signature.dtype(tensors, index)
        results = [memory.empty(shape, dtype) for shape in signature.shapes(tensors, sizes)]
        if not sizes.channels:
            return [x.zero_() for x in results]
        function = self.called.get((text, dtype))
        if function is None:
            function = self.called[text, dtype] = self.kernel(signature.call, dtype)
        dense = [x.contiguous() for x in tensors]
        where = 0 if index is None else (index := index.contiguous()).data_ptr()
        given, opened = _pointers(dense), _pointers(results)
        counts = (ctypes.c_int64 * 2)(sizes.elements, sizes.channels)
        torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
        places = [ctypes.addressof(array) for array in (given, opened, counts)]
        fault = function(places[0], places[1], where, places[2], 0, 0, 0, 0, sizes.rows)
        if fault:
            raise _fault(fault, sizes.elements)
        return results


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*[x.data_ptr() for x in tensors])


def _fault(code: int, elements: int) -> Exception:
    if code == 2:
        return InputError(f"index: elements run from 0 to {elements - 1}, and it holds one out of range")
    return BackendError(f"a kernel stopped: {FAULTS.get(code, f'fault {code}')}; use smaller batches")


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
        return f"kernels compute in float32, float64 or bfloat16, not in {short(dtype)}"
    if find_compiler() is None:
        return f"kernels need a C++ compiler (g++ 12 or later, or clang) and {why_no_compiler()}"
    try:
        operations = kernels_of(plan.to_json()).sweep(forward_call(plan)).operations
    except BackendError as error:
        return str(error)
    if operations > _COMFORTABLE:
        return f"a row takes {operations} operations, and kernels of more than {_COMFORTABLE} take long to compile"
    return None
