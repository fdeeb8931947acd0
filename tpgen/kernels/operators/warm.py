"""Build kernels ahead of use: C++ for this machine, or CUDA C++ for any compute capability, without a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from tpgen.errors import BackendError, unknown
from tpgen.form.form import Layout, make_form, split_layout
from tpgen.form.linear import AnyPlan, layouts_of
from tpgen.kernels.cuda.chips import OLDEST, Chip, chip_of
from tpgen.kernels.cuda.cubins import cubin
from tpgen.kernels.cuda.driver import cuda_taken
from tpgen.kernels.cuda.nvrtc import known_architectures, need_nvrtc
from tpgen.kernels.cuda.polynomials.generate import generate_polynomial
from tpgen.kernels.cuda.target import cuda_source
from tpgen.kernels.libraries.build import load_all
from tpgen.kernels.libraries.compiler import DTYPES
from tpgen.kernels.operators.description import DIRECTIONS, Description
from tpgen.kernels.polynomial.runtime import CALLS, kernels_of, named_call
from tpgen.planner.plan import Plan
from tpgen.planner.polynomial_plan import PolynomialPlan

# slots opened by the gradient of x2, and by the gradients of that
_FORCES = (("x2",), ("x1", "w", "out"))


def warm(
    plans: Iterable[Plan],
    layout: Layout = "mul_ir",
    dtypes: Iterable[torch.dtype] = (torch.float32,),
    convolution: bool = False,
    forces: bool = False,
) -> int:
    """Build the kernels of plans ahead of use, side by side; returns how many there are.

    Forward and backward; with ``forces`` those that training on the gradient of x2 needs besides.  ``convolution``
    builds them for `TensorProductConv`.  A product without paths has none.  Raises `BackendError` where there is no
    compiler or it fails.
    """
    live = [plan for plan in plans if make_form(plan, layout).live_terms]
    texts = [
        (Description(plan, split_layout(layout)).source(slots, dtype, convolution).text, convolution)
        for plan in live
        for dtype in tuple(dtypes)
        for slots in _opened(convolution, forces)
    ]
    load_all(texts)
    return len(texts)


def _opened(convolution: bool, forces: bool) -> list[tuple[str, ...]]:
    opened = [*DIRECTIONS.values(), *(_FORCES if forces else ())]
    if convolution:  # x1 and out are the two ends of a gather, each with a sweep of its own
        opened = [tuple(s for s in slots if s != "out" or "x1" not in slots) for slots in opened if slots]
    return opened


def warm_cuda(
    plan: AnyPlan | PolynomialPlan,
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
    plan: AnyPlan | PolynomialPlan,
    chip: Chip,
    layout: str | tuple[str, ...],
    dtype: torch.dtype,
    convolution: bool,
    forces: bool,
) -> list[str]:
    if isinstance(plan, PolynomialPlan):
        kernels = kernels_of(plan.to_json())
        sweeps = [kernels.sweep(named_call(plan, call)) for call in CALLS[: 3 if forces else 2]]
        return [generate_polynomial(plan, sweep, DTYPES[dtype], chip).text for sweep in sweeps]
    form = Description(plan, layouts_of(plan, layout)).form
    if not form.live_terms:
        return []
    there = [o.name for o in form.operands if o.dim]
    opened = [tuple(s for s in slots if s in there) for slots in _opened(convolution, forces)]
    return [cuda_source(form, dtype, slots, chip, convolution).text for slots in opened if slots]
