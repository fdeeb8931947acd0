"""Run kernels of polynomials: check the tensors, allocate the open slots, call the kernel of their device."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import torch
from torch import Tensor

from tpgen.errors import BackendError, InputError, PlanError
from tpgen.form.polynomial import Polynomial, form_of
from tpgen.kernels.cpp.text import GeneratedSource
from tpgen.kernels.libraries.compiler import DTYPES, target
from tpgen.kernels.native.runtime import NOTHING, runtime
from tpgen.kernels.operators.memory import LARGE
from tpgen.kernels.operators.targets import KernelTarget, kernel_target, polynomial_target_of
from tpgen.kernels.polynomial.call import Call, Slot
from tpgen.kernels.polynomial.cpp import FAULTS, generate
from tpgen.kernels.polynomial.load import PolynomialKernel
from tpgen.kernels.polynomial.placement import PolynomialPlacement
from tpgen.kernels.polynomial.signature import Signature, check_slots
from tpgen.kernels.polynomial.sweep import PolynomialSweep, make_sweep
from tpgen.planner.polynomial_json import polynomial_from_json
from tpgen.planner.polynomial_plan import OUT, PolynomialPlan
from tpgen.remember import remembered

# operations of a row: what takes g++ minutes is refused, and nothing is chosen by itself whose second derivatives, some
# four times its operations, would take it more than a few seconds
_LARGEST, _COMFORTABLE = 100_000, 8_000


class PolynomialKernels:
    """The kernels of one polynomial, each built when it is first called."""

    def __init__(self, plan: PolynomialPlan) -> None:
        self.plan = plan
        self.weights = frozenset(o.name for o in plan.weights)
        self._kernels: dict[tuple[Call, torch.dtype, str], PolynomialKernel] = {}
        self._called: dict[tuple[str, torch.dtype, str], PolynomialKernel] = {}  # the same by text, once called
        self._signatures: dict[str, Signature] = {}
        self._numbers: dict[tuple[str, torch.dtype], int] = {}  # of calls that the runtime has a kernel for

    def quick(self, text: str, tensors: Sequence[Tensor], index: Tensor | None) -> Sequence[Tensor]:
        """The opened slots of a usual call whose kernel is built, by the runtime; nothing for others, nor at faults."""
        number = self._numbers.get((text, tensors[0].dtype)) if tensors else None
        native = None if number is None else runtime()
        return native.polynomial(tensors, index, number) if native else ()

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
        return generate(self.placement(call, dtype))

    def placement(self, call: Call, dtype: torch.dtype) -> PolynomialPlacement:
        """Where the C++ of a call computes."""
        return PolynomialPlacement(self.plan, self.sweep(call), target(dtype))

    def kernel(self, call: Call, dtype: torch.dtype, device: str = "cpu") -> PolynomialKernel:
        """What computes a call of tensors of a dtype on a device that kernels of polynomials run on."""
        key = call, dtype, device
        found = self._kernels.get(key)
        if found is None:
            load = _need_target(device).load_polynomial
            assert load is not None
            found = self._kernels[key] = load(self.plan, self.sweep(call), dtype)
        return found

    def build_ahead(self, text: str, wanted: Sequence[bool], like: Tensor) -> None:
        """Build the kernel of a call beside that of the gradients which are wanted of it."""
        dtype, device = like.dtype, like.device.type
        call = Call.parse(text)
        if (text, dtype, device) in self._called or call.levels or dtype not in DTYPES:
            return
        calls = (call, call.pulled_back([True] * len(call.opened), wanted))
        missing = [call for call in calls if (call, dtype, device) not in self._kernels]
        if len(missing) > 1 and polynomial_target_of(device):
            with ThreadPoolExecutor(len(missing)) as pool:
                list(pool.map(lambda call: self.kernel(call, dtype, device), missing))

    def signature(self, text: str) -> Signature:
        """What a call takes and returns, read once.  Raises `PlanError` where the text is no call of the polynomial."""
        found = self._signatures.get(text)
        if found is None:
            found = self._signatures[text] = Signature(self.plan, Call.parse(text))
        return found

    def run(self, text: str, tensors: Sequence[Tensor], index: Tensor | None) -> list[Tensor]:
        """The opened slots of a call."""
        made = self.quick(text, tensors, index)
        if made:
            return list(made)
        signature = self.signature(text)
        sizes = signature.sizes(tensors, index)
        dtype = signature.dtype(tensors, index)
        device, empty = tensors[0].device.type, _need_target(tensors[0].device.type).empty
        results = [empty(shape, dtype, tensors[0].device) for shape in signature.shapes(tensors, sizes)]
        if not sizes.channels:
            return [x.zero_() for x in results]
        kernel = self._called.get((text, dtype, device))
        if kernel is None:
            kernel = self._called[text, dtype, device] = self.kernel(signature.call, dtype, device)
            self._enter(text, signature, dtype, getattr(kernel, "address", None))
        torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
        dense = [x.contiguous() for x in tensors]
        fault = kernel(dense, results, None if index is None else index.contiguous(), sizes)
        if fault:
            raise _fault(fault, sizes.elements, index)
        return results

    def _enter(self, text: str, signature: Signature, dtype: torch.dtype, address: int | None) -> None:
        """Give the kernel of a call to the runtime, where there is one that can call it."""
        native = runtime() if address else None
        if native is None or address is None:
            return
        given = [(g.dim, g.channels, g.weights) for g in signature.given]
        opened = [(-1 if place is None else place, dim) for place, dim in signature.opened]
        number = native.add_polynomial(dtype, LARGE, given, opened, address)
        if number != NOTHING:
            self._numbers[text, dtype] = number


def _need_target(device: str) -> KernelTarget:
    """The target of a device that the tensors have been checked to be on."""
    target = polynomial_target_of(device)
    assert target is not None, device
    return target


def _fault(code: int, elements: int, index: Tensor | None) -> Exception:
    if code == 2 and index is not None:
        low, high = (int(v) for v in torch.aminmax(index))
        return InputError(f"index: elements run from 0 to {elements - 1}, got {low} to {high}")
    return BackendError(f"a kernel stopped: {FAULTS.get(code, f'fault {code}')}; use smaller batches")


def forward_call(plan: PolynomialPlan) -> Call:
    """The call that computes the output from inputs and weights, in the order of the operands."""
    return Call(tuple(Slot(o.name) for o in plan.operands if o.name != OUT), (Slot(OUT),))


CALLS = ("forward", "backward", "second")


def named_call(plan: PolynomialPlan, name: str) -> Call:
    """The ``forward`` call, its ``backward`` (all gradients), the ``second`` (the gradients of those), or any in full.

    >>> from e3nn.o3 import Irreps
    >>> from tpgen.planner.polynomial_plan import Operand, PolynomialTerm, make_polynomial_plan
    >>> plan = make_polynomial_plan([Operand("x", Irreps("1o")), Operand("out", Irreps("0e"))],
    ...                             [PolynomialTerm(("x", "x"), 0)])
    >>> print(named_call(plan, "backward"))
    x out.1 -> x
    """
    if name not in CALLS:
        if "->" not in name:
            raise PlanError(
                f"not a call: {name[:60]!r}; calls are {', '.join(CALLS)}, or one in full like 'x w -> out'"
            )
        call = Call.parse(name)
        check_slots(plan, call)
        return call
    call = forward_call(plan)
    for _ in range(CALLS.index(name)):
        call = call.pulled_back([True] * len(call.opened), [True] * len(call.given))
    return call


@remembered("kernels of polynomials, by description")
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
    found = kernel_target(dtype, device, polynomial_target_of)
    if isinstance(found, str):
        return found
    where = torch.device(device)
    if missing := found.missing(where):
        return missing
    try:
        sweep = kernels_of(plan.to_json()).sweep(forward_call(plan))
    except BackendError as error:
        return str(error)
    if sweep.operations > _COMFORTABLE:
        return (
            f"a row takes {sweep.operations} operations, and kernels of more than {_COMFORTABLE} take long to compile"
        )
    return found.obstacle_polynomial(plan, sweep, dtype, where)
