"""Kernel targets: CPU and CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tpgen.base.errors import BackendError, TpgenError
from tpgen.base.remember import remembered
from tpgen.form.form import Layout
from tpgen.kernels.arguments import CallSizes, Kernel, KernelSpec, dispatch_by_form
from tpgen.kernels.build.compiler import COMPILERS, COMPUTED, DTYPES, find_compiler, why_no_compiler
from tpgen.kernels.cuda import target as cuda
from tpgen.kernels.placement.values import ChannelSchedule
from tpgen.kernels.rows import RowRules
from tpgen.kernels.runtime import load, memory
from tpgen.kernels.runtime.description import description_of_plan
from tpgen.kernels.runtime.failures import find_build_failure
from tpgen.planner.plan import Plan

NO_PATHS = "nothing to compute: the product has no paths that contribute, so its result is zero"
_FUSED_ENTRIES = 600  # coupling entries: some sixteen statements each, and compilers take seconds for ten thousand
# Operations of a row of a polynomial: nothing is chosen by itself whose second derivatives, some four times its
# operations, would take g++ more than a few seconds.
_COMFORTABLE = 8_000


@dataclass(frozen=True)
class KernelTarget:
    """How kernels of a device type are generated, loaded and refused."""

    device: str  # the type of the tensors that it is taken for
    about: str
    missing: Callable[[torch.device], str | None]  # what this machine lacks for tensors of a device
    obstacle: Callable[[KernelSpec, Any], str | None]  # why a call has no kernel, by `chip`
    load: Callable[[KernelSpec], Kernel]
    empty: Callable[[tuple[int, ...], torch.dtype, torch.device], Tensor]
    remedy: str  # what to do where something is missing; nothing: what a device lacks is said in the choice alone
    language: str  # of its kernels
    # the source of a kernel, by `chip`; none where a call is a sum of other calls
    text: Callable[[KernelSpec, Any], str]
    # bytes that a call of a kernel takes beside operands and results
    workspace: Callable[[KernelSpec, CallSizes], int]
    # what of a device an obstacle depends on, as a value: the answer is remembered by it
    chip: Callable[[torch.device], Any] = lambda _device: None
    # whether sums over edges may go through memory in the operands' dtype, which rounds each part of them
    rounds_sums: bool = False
    # whether kernels take edges by owner, so that compiled graphs sort them once for all
    sorts: bool = False
    # the rules of a description's call by which kernels find rows: for others, each row gets one of its own before
    takes: Callable[[Any, RowRules], RowRules] = lambda _description, rules: rules
    # why a graph is faster all the same, by `chip`: asked for `auto` alone
    slower: Callable[[KernelSpec, Any], str | None] = lambda *_: None


@cache
def target_of(device: str) -> KernelTarget | None:
    return next((t for t in KERNEL_TARGETS.values() if t.device == device), None)


def devices() -> str:
    """Devices that run kernels, as text."""
    return " or ".join(t.about for t in KERNEL_TARGETS.values()) or "no device here"


def why_kernel_unsupported(
    plan: Plan,
    layout: str | tuple[str, ...] = "mul_ir",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> str | None:
    """Why a generated kernel cannot compute a product, layer or polynomial, or None.

    >>> from tpgen.planner.product import make_plan
    >>> plan = make_plan("8x0e", "1o", "8x1o", [(0, 0, 0, "uvu", True)])
    >>> why_kernel_unsupported(plan, dtype=torch.float16)
    'kernels compute in float32, float64 or bfloat16, not in float16'
    """
    target = find_kernel_target(dtype, device)
    if isinstance(target, str):
        return target
    spec = _make_spec_of_forward_call(plan, layout if isinstance(layout, str) else tuple(layout), dtype)
    if not spec.description.has_live_paths:
        return NO_PATHS
    where = torch.device(device)
    failed = find_build_failure(spec.description, dtype, where.type)
    return failed or target.missing(where) or _why_no_kernel_on_chip(target.obstacle, spec, target.chip(where))


def why_auto_takes_no_kernel(
    plan: Plan, layout: str | tuple[str, ...], dtype: torch.dtype, device: torch.device | str
) -> str | None:
    """Why strategy ``auto`` takes no kernel (unsupported, or slower), or None."""
    reason = why_kernel_unsupported(plan, layout, dtype, device)
    target = target_of(torch.device(device).type)
    if reason or target is None:
        return reason
    return target.slower(_make_spec_of_forward_call(plan, layout, dtype), target.chip(torch.device(device)))


def find_kernel_target(dtype: torch.dtype, device: torch.device | str) -> KernelTarget | str:
    """Kernel target of a dtype and device, or why none exists."""
    kind = torch.device(device).type
    target = target_of(kind)
    if target is None:
        return f"kernels run on {devices()}, not on {kind}"
    if dtype not in DTYPES:
        return f"{COMPUTED}, not in {str(dtype).removeprefix('torch.')}"
    return target


# Asked at every large call of `conversion.operations.matmul`; anew each time, as what a machine lacks can change.
@remembered("forward calls of plans")
def _make_spec_of_forward_call(plan: Plan, layout: Layout, dtype: torch.dtype) -> KernelSpec:
    description = description_of_plan(plan, layout)
    return KernelSpec(description, description.calls()[0], dtype)


@remembered("obstacles to kernels")
def _why_no_kernel_on_chip(
    find_obstacle: Callable[[KernelSpec, Any], str | None], spec: KernelSpec, chip: Any
) -> str | None:
    return _TOO_LARGE(spec) or find_obstacle(spec, chip)


def _why_polynomial_too_large(spec: KernelSpec) -> str | None:
    try:
        operations = spec.description.sweep(spec.call).operations
    except BackendError as error:
        return str(error)
    if operations <= _COMFORTABLE:
        return None
    return f"a row takes {operations} operations, and kernels of more than {_COMFORTABLE} take long to compile"


_TOO_LARGE = dispatch_by_form(lambda _spec: None, _why_polynomial_too_large)


# -- C++ on the CPU ----------------------------------------------------------------------------------------------------


def _why_no_compiler(_device: torch.device) -> str | None:
    if find_compiler() is None:
        return f"kernels need a C++ compiler ({COMPILERS}) and {why_no_compiler()}"
    return None


def _why_no_cpu_product_kernel(spec: KernelSpec, _chip: None) -> str | None:
    try:
        planned = spec.description.schedule(spec.dtype)
    except TpgenError as error:
        return str(error)
    if not spec.call.levels:
        return None
    if not isinstance(planned, ChannelSchedule):
        return "second derivatives are one kernel where vectors run over channels"
    if sum(len(t.entries) for t in planned.terms) > _FUSED_ENTRIES:
        return f"second derivatives of more than {_FUSED_ENTRIES} coupling entries take long to compile"
    return None


_cpp_obstacle = dispatch_by_form(_why_no_cpu_product_kernel, lambda *_: None)


def _cpp_text_of_kernel(spec: KernelSpec, _chip: None) -> str:
    return "" if spec.call.levels and _cpp_obstacle(spec, None) else load.generate_kernel_source(spec).text


KERNEL_TARGETS: dict[str, KernelTarget] = {
    "cpp": KernelTarget(
        device="cpu",
        about="the CPU",
        missing=_why_no_compiler,
        obstacle=_cpp_obstacle,
        load=load.CompiledKernel,
        empty=lambda shape, dtype, _device: memory.empty_tensor(shape, dtype),
        remedy=f"Install {COMPILERS}, or 'pip install ziglang', or name one in TPGEN_CXX",
        language="C++",
        text=_cpp_text_of_kernel,
        workspace=dispatch_by_form(load.count_product_scratch_bytes, load.count_polynomial_scratch_bytes),
        rounds_sums=True,
    ),
    "cuda": KernelTarget(
        device="cuda",
        about="CUDA GPUs",
        missing=cuda.why_no_cuda_kernels,
        obstacle=cuda.kernel_obstacle,
        chip=cuda.chip_at,
        load=cuda.load_gpu_kernel,
        empty=lambda shape, dtype, device: torch.empty(shape, dtype=dtype, device=device),
        remedy="",
        language="CUDA C++",
        text=cuda.kernel_text,
        workspace=cuda.count_call_scratch_bytes,
        sorts=True,
        takes=cuda.select_supported_row_rules,
        slower=cuda.slower,
    ),
}
