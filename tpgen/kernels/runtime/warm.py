"""Kernels built ahead of use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from tpgen.base.errors import BackendError, unknown
from tpgen.form.form import Layout
from tpgen.kernels.arguments import KernelSpec
from tpgen.kernels.build.build import load_kernels_in_parallel
from tpgen.kernels.cuda.chips import OLDEST, chip_of
from tpgen.kernels.cuda.driver import driver_cuda_version
from tpgen.kernels.cuda.nvrtc import compile_machine_code, list_supported_architectures, need_nvrtc
from tpgen.kernels.rows import EDGES, ELEMENTS
from tpgen.kernels.runtime.description import description_of_plan
from tpgen.kernels.runtime.targets import KERNEL_TARGETS, KernelTarget
from tpgen.planner.plan import Plan


def warm(
    plans: Iterable[Plan],
    layout: Layout = "mul_ir",
    dtypes: Iterable[torch.dtype] = (torch.float32,),
    convolution: bool = False,
    forces: bool = False,
) -> int:
    """Build the C++ kernels of plans in parallel, forward and backward; return their number.

    ``forces`` adds kernels for training on input gradients; ``convolution`` builds for `TensorProductConv`.  Raises
    `BackendError` without a working compiler.
    """
    target, wanted = KERNEL_TARGETS["cpp"], tuple(dtypes)
    texts = [
        text
        for plan in plans
        for dtype in wanted
        for text in _generate_kernel_sources(target, plan, None, layout, dtype, convolution, forces)
    ]
    load_kernels_in_parallel(texts)
    return len(texts)


def warm_cuda(
    plan: Plan,
    capabilities: Sequence[int],
    layout: Layout = "mul_ir",
    dtype: torch.dtype = torch.float32,
    convolution: bool = False,
    forces: bool = False,
) -> int:
    """Build CUDA kernels of a plan for compute capabilities (80 is 8.0), without a GPU, as `warm`.

    Raises `BackendError` without an NVRTC for the capabilities, and for products without kernel; `EmitError` for a row
    that does not fit.
    """
    check_capabilities(capabilities)
    texts = [
        (text, arch)
        for arch in dict.fromkeys(capabilities)
        for text in _generate_kernel_sources(
            KERNEL_TARGETS["cuda"], plan, chip_of(arch), layout, dtype, convolution, forces
        )
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda one: compile_machine_code(*one), texts))
    return len(texts)


def check_capabilities(capabilities: Iterable[int]) -> None:
    """Raise `BackendError` for a capability without GPUs or kernels."""
    cuda = driver_cuda_version()
    for arch in capabilities:
        if arch < OLDEST:
            raise BackendError(f"sm_{arch}: kernels need a GPU of compute capability {OLDEST / 10} or later")
        need_nvrtc(arch, cuda)
        known = [one for one in list_supported_architectures(cuda) if one >= OLDEST]
        if arch not in known:
            raise BackendError(unknown("compute capability", f"sm_{arch}", [f"sm_{one}" for one in known]))


def _generate_kernel_sources(
    target: KernelTarget, plan: Plan, chip: Any, layout: Layout, dtype: torch.dtype, convolution: bool, forces: bool
) -> list[str]:
    description = description_of_plan(plan, layout)
    if not description.has_live_paths:
        return []
    rules = (*(EDGES if convolution else ()), *((ELEMENTS,) if plan.by_element else ()))
    description.operand_shapes(rules)  # or it has no edges
    parts = dict.fromkeys(part for call in description.calls(forces) for part in description.split_call(call, rules))
    specs = [KernelSpec(description, part, dtype, rules) for part in parts]
    return [text for spec in specs if (text := target.text(spec, chip))]
