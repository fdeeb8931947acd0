"""Build kernels ahead of use: C++ for this machine, or CUDA C++ for any compute capability, without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from tpgen.errors import BackendError, unknown
from tpgen.form.form import Layout, form_of, layouts_of
from tpgen.kernels.build.build import load_all
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda.chips import OLDEST, Chip, chip_of
from tpgen.kernels.cuda.cubins import cubin
from tpgen.kernels.cuda.driver import cuda_taken
from tpgen.kernels.cuda.nvrtc import known_architectures, need_nvrtc
from tpgen.kernels.cuda.polynomials.generate import generate_polynomial
from tpgen.kernels.cuda.target import cuda_source
from tpgen.kernels.runtime.call import call_of
from tpgen.kernels.runtime.description import DIRECTIONS, Description
from tpgen.kernels.runtime.load import KernelSpec, source_of
from tpgen.kernels.runtime.polynomials import CALLS, describe_polynomial, named_call
from tpgen.kernels.runtime.targets import KERNEL_TARGETS, obstacle
from tpgen.kernels.sweep.terms import SLOTS, raised_call
from tpgen.planner.plan import Plan

# The gradient of x2, the gradients of that, and those of all gradients together.
_FORCES = (call_of(("x2",)), call_of(("x1", "w", "out")), raised_call(SLOTS, SLOTS[:3]))


def warm(
    plans: Iterable[Plan],
    layout: Layout = "mul_ir",
    dtypes: Iterable[torch.dtype] = (torch.float32,),
    convolution: bool = False,
    forces: bool = False,
) -> int:
    """Build the kernels of plans ahead of use, side by side; returns how many there are.

    Forward and backward; with ``forces`` those that training on gradients of the inputs needs besides.  ``convolution``
    builds them for `TensorProductConv`.  A product without paths has none.  Raises `BackendError` where there is no
    compiler or it fails.
    """
    live, wanted, target = (
        [plan for plan in plans if form_of(plan, layout).live_terms],
        tuple(dtypes),
        KERNEL_TARGETS["cpp"],
    )
    texts = [
        (source_of(spec).text, convolution)
        for plan in live
        for dtype in wanted
        for spec in _specs(Description(plan, layouts_of(plan, layout)), dtype, convolution, forces)
        if not (spec.call.levels and obstacle(target, spec, torch.device("cpu")))
    ]
    load_all(texts)
    return len(texts)


def _specs(description: Description, dtype: torch.dtype, convolution: bool, forces: bool) -> list[KernelSpec]:
    calls = [*map(call_of, DIRECTIONS.values()), *(_FORCES if forces else ())]
    parts = dict.fromkeys(part for call in calls for part in description.parts(call, convolution))
    return [KernelSpec(description, part, dtype, convolution) for part in parts]


def warm_cuda(
    plan: Plan,
    capabilities: Sequence[int],
    layout: str | tuple[str, ...] = "mul_ir",
    dtype: torch.dtype = torch.float32,
    convolution: bool = False,
    forces: bool = False,
) -> int:
    """Build CUDA kernels of a product, a linear layer or a polynomial for compute capabilities (80 is 8.0), as `warm`.

    It needs NVRTC, and no GPU.  Raises `BackendError` where there is no NVRTC, where it fails or knows no such
    capability, and for products without a kernel; `EmitError` where a row does not fit.
    """
    check_capabilities(capabilities)
    texts = [
        (text, arch)
        for arch in dict.fromkeys(capabilities)
        for text in _cuda_texts(plan, chip_of(arch), layout, dtype, convolution, forces)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda one: cubin(*one), texts))
    return len(texts)


def check_capabilities(capabilities: Iterable[int]) -> None:
    """Raise `BackendError` where there are no GPUs of a compute capability, or no kernels for them."""
    cuda = cuda_taken()
    for arch in capabilities:
        if arch < OLDEST:
            raise BackendError(f"sm_{arch}: kernels need a GPU of compute capability {OLDEST / 10} or later")
        need_nvrtc(arch, cuda)
        known = [one for one in known_architectures(cuda) if one >= OLDEST]
        if arch not in known:
            raise BackendError(unknown("compute capability", f"sm_{arch}", [f"sm_{one}" for one in known]))


def _cuda_texts(
    plan: Plan,
    chip: Chip,
    layout: str | tuple[str, ...],
    dtype: torch.dtype,
    convolution: bool,
    forces: bool,
) -> list[str]:
    if plan.polynomial:
        kernels = describe_polynomial(plan)
        sweeps = [kernels.sweep(named_call(plan, call)) for call in CALLS[: 3 if forces else 2]]
        return [generate_polynomial(plan, sweep, DTYPES[dtype], chip).text for sweep in sweeps]
    description = Description(plan, layouts_of(plan, layout))
    if not description.live:
        return []
    there = [o.name for o in description.form.operands if o.dim]
    specs = [spec for spec in _specs(description, dtype, convolution, forces) if not spec.call.levels]
    opened = [tuple(slot.operand for slot in spec.call.opened if slot.operand in there) for spec in specs]
    return [cuda_source(description.form, dtype, slots, chip, convolution).text for slots in opened if slots]
