"""What can be built, and for which tensors: one row for each target.

A target says in words why it cannot take a product (`KernelTarget.obstacle`), and makes of a description and its open
slots a function of operands, results, rows and edges (`KernelTarget.load`).  Nothing else names a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tpgen.errors import TpgenError
from tpgen.form.form import Form
from tpgen.form.linear import AnyPlan, form_of
from tpgen.kernels.cpp.workspace import product_bytes as cpp_bytes
from tpgen.kernels.cuda import target as cuda
from tpgen.kernels.cuda.polynomials import target as cuda_polynomials
from tpgen.kernels.interpreter.interpret import interpret
from tpgen.kernels.libraries import build
from tpgen.kernels.libraries.compiler import DTYPES, find_compiler, why_no_compiler
from tpgen.kernels.operators import memory
from tpgen.kernels.operators.amounts import Amounts
from tpgen.kernels.operators.description import Description, schedule
from tpgen.kernels.operators.edges import Edges
from tpgen.kernels.polynomial.load import PolynomialKernel, Sizes, compiled, compiled_bytes, interpreted
from tpgen.kernels.polynomial.sweep import PolynomialSweep
from tpgen.kernels.sweep.sweep import make_sweep, path_terms
from tpgen.kernels.sweep.terms import SLOTS
from tpgen.planner.polynomial_plan import PolynomialPlan
from tpgen.remember import remembered

NOTHING = "nothing to compute: the product has no paths that contribute, so its result is zero"
Slots = Sequence[Tensor | None]  # one for each of `SLOTS`
Kernel = Callable[[Slots, Slots, int, Edges | None], int]  # operands, results, rows, edges -> fault, 0 for none


@dataclass(frozen=True)
class KernelTarget:
    """One way to run kernels."""

    device: str | None  # the type of the tensors that it is taken for; None: only by name
    about: str
    missing: Callable[[torch.device], str | None]  # what this machine lacks for tensors of a device
    obstacle: Callable[[Form, torch.dtype, Any], str | None]  # by `chip`
    load: Callable[[Description, tuple[str, ...], torch.dtype, bool], Kernel]
    empty: Callable[[tuple[int, ...], torch.dtype, torch.device], Tensor]
    remedy: str  # what to do where something is missing; nothing: what a device lacks is said in the choice alone
    language: str  # of its kernels
    # bytes that a call of a kernel takes beside operands and results
    workspace: Callable[[Form, tuple[str, ...], torch.dtype, Amounts], int]
    # what of a device an obstacle depends on, as a value: the answer is remembered by it
    chip: Callable[[torch.device], Any] = lambda _device: None
    # whether sums over edges may go through memory in the operands' dtype, which rounds each part of them
    rounds_sums: bool = False
    # why a graph is faster all the same: asked for `auto` alone
    slower: Callable[[Form, torch.dtype, torch.device], str | None] = lambda *_: None
    # the same of a polynomial's sweep; None: products alone run there
    load_polynomial: Callable[[PolynomialPlan, PolynomialSweep, torch.dtype], PolynomialKernel] | None = None
    # why a polynomial, by its forward sweep, has none there
    obstacle_polynomial: Callable[[PolynomialPlan, PolynomialSweep, torch.dtype, torch.device], str | None] = (
        lambda *_: None
    )
    # bytes that a call of one takes beside operands and results, with an index of elements or without
    workspace_polynomial: Callable[[PolynomialPlan, PolynomialSweep, torch.dtype, Sizes, bool, torch.device], int] = (
        lambda *_: 0
    )


@cache
def target_of(device: str) -> KernelTarget | None:
    """The target that takes the tensors of a device."""
    return next((t for t in KERNEL_TARGETS.values() if t.device == device), None)


@cache
def polynomial_target_of(device: str) -> KernelTarget | None:
    """The target that takes the tensors of a device, where it takes those of polynomials."""
    target = target_of(device)
    return target if target and target.load_polynomial else None


def devices(polynomials: bool = False) -> str:
    """The devices that kernels run on, in words."""
    rows = [t for t in KERNEL_TARGETS.values() if t.device and (t.load_polynomial or not polynomials)]
    return " or ".join(t.about for t in rows) or "no device here"


def kernel_supported(
    plan: AnyPlan,
    layout: str | tuple[str, ...] = "mul_ir",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> str | None:
    """None where a generated kernel can compute the product, otherwise the reason in words.

    >>> from tpgen.planner.plan import make_plan
    >>> plan = make_plan("8x0e", "1o", "8x1o", [(0, 0, 0, "uvu", True)])
    >>> kernel_supported(plan, dtype=torch.float16)
    'kernels compute in float32, float64 or bfloat16, not in float16'
    """
    target = kernel_target(dtype, device)
    if isinstance(target, str):
        return target
    layout = layout if isinstance(layout, str) else tuple(layout)
    if not _contributes(plan, layout):
        return NOTHING
    where = torch.device(device)
    return target.missing(where) or _obstacle(target.obstacle, plan, layout, dtype, target.chip(where))


# Asked at every large call of `tpgen.nn.matmul`.  What a machine lacks can change, so that is asked anew each time.
@remembered("whether products contribute")
def _contributes(plan: AnyPlan, layout: str | tuple[str, ...]) -> bool:
    return bool(form_of(plan, layout).live_terms)


@remembered("obstacles to kernels")
def _obstacle(
    asked: Callable[[Form, torch.dtype, Any], str | None],
    plan: AnyPlan,
    layout: str | tuple[str, ...],
    dtype: torch.dtype,
    chip: Any,
) -> str | None:
    return asked(form_of(plan, layout), dtype, chip)


def why_no_kernel(
    plan: AnyPlan, layout: str | tuple[str, ...], dtype: torch.dtype, device: torch.device | str
) -> str | None:
    """Why ``auto`` takes no kernel: the product has none, or is faster without."""
    target = kernel_target(dtype, device)
    reason = kernel_supported(plan, layout, dtype, device)
    if reason is None and isinstance(target, KernelTarget):
        reason = target.slower(form_of(plan, layout), dtype, torch.device(device))
    return reason


def kernel_target(
    dtype: torch.dtype, device: torch.device | str, find: Callable[[str], KernelTarget | None] = target_of
) -> KernelTarget | str:
    """The target for tensors of a dtype on a device, or the reason in words why there is none."""
    kind = torch.device(device).type
    target = find(kind)
    if target is None:
        return f"kernels run on {devices(find is not target_of)}, not on {kind}"
    if dtype not in DTYPES:
        return f"kernels compute in float32, float64 or bfloat16, not in {str(dtype).removeprefix('torch.')}"
    return target


# -- C++ on the CPU ----------------------------------------------------------------------------------------------------


def _no_compiler(_device: torch.device) -> str | None:
    if find_compiler() is None:
        return f"kernels need a C++ compiler (g++ 12 or later, or clang) and {why_no_compiler()}"
    return None


def _no_schedule(form: Form, dtype: torch.dtype, _chip: None) -> str | None:
    try:
        schedule(form, dtype)
    except TpgenError as error:
        return str(error)
    return None


class CompiledKernel:
    """A compiled function, with its address where it stands in a library: there the runtime can call it."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.address = build.address_of(function)

    def __call__(self, operands: Slots, results: Slots, rows: int, edges: Edges | None) -> int:
        pointers = [0 if x is None else x.data_ptr() for x in (*operands, *results)]
        if edges is None:
            return self._function(*pointers, rows)
        indices = edges.src.data_ptr(), edges.dst.data_ptr()
        return self._function(*pointers, rows, *indices, edges.sources, edges.destinations, edges.how)


def _compiled(description: Description, opened: tuple[str, ...], dtype: torch.dtype, indexed: bool) -> Kernel:
    return CompiledKernel(build.load(description.source(opened, dtype, indexed).text, indexed))


# -- statement by statement, in float64 --------------------------------------------------------------------------------


def _interpreted(description: Description, opened: tuple[str, ...], dtype: torch.dtype, indexed: bool) -> Kernel:
    form = description.form
    sweep = make_sweep(path_terms(form), opened)

    def run(operands: Slots, results: Slots, rows: int, edges: Edges | None) -> int:
        index = {} if edges is None else {"x1": edges.wide().src, "out": edges.wide().dst}
        given = {name: x for name, x in zip(SLOTS, operands, strict=True) if x is not None}
        found = interpret(sweep, form, {name: x[index[name]] if name in index else x for name, x in given.items()})
        for name, result in zip(SLOTS, results, strict=True):
            if result is not None and name in index:
                result.copy_(torch.zeros_like(result, dtype=torch.float64).index_add_(0, index[name], found[name]))
            elif result is not None:
                result.copy_(found[name])
        return 0

    return run


def _plain(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def _reused(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return memory.empty(shape, dtype)


# -- CUDA C++ on a GPU -------------------------------------------------------------------------------------------------


def _on_gpu(description: Description, opened: tuple[str, ...], dtype: torch.dtype, indexed: bool) -> Kernel:
    return cuda.CudaKernel(description.form, opened, dtype, indexed)


KERNEL_TARGETS: dict[str, KernelTarget] = {
    "cpp": KernelTarget(
        device="cpu",
        about="the CPU",
        missing=_no_compiler,
        obstacle=_no_schedule,
        load=_compiled,
        empty=_reused,
        remedy="Install g++ 12 or later or clang, or name one in TPGEN_CXX",
        language="C++",
        workspace=cpp_bytes,
        rounds_sums=True,
        load_polynomial=compiled,
        workspace_polynomial=compiled_bytes,
    ),
    "cuda": KernelTarget(
        device="cuda",
        about="CUDA GPUs",
        missing=cuda.missing,
        obstacle=cuda.obstacle,
        chip=cuda.chip_at,
        load=_on_gpu,
        empty=_plain,
        remedy="",
        language="CUDA C++",
        workspace=cuda.workspace,
        load_polynomial=cuda_polynomials.CudaPolynomialKernel,
        obstacle_polynomial=cuda_polynomials.obstacle,
        slower=cuda.slower,
        workspace_polynomial=cuda_polynomials.workspace,
    ),
    "interpreter": KernelTarget(
        device=None,
        about="plain PyTorch",
        missing=lambda _device: None,
        obstacle=lambda *_: None,
        load=_interpreted,
        empty=_plain,
        remedy="",
        language="Python",
        workspace=lambda *_: 0,
        load_polynomial=interpreted,
    ),
}
