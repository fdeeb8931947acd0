"""CUDA devices as a kernel target."""

from __future__ import annotations

from typing import Any

import torch

from tpgen.base.errors import TpgenError
from tpgen.kernels.arguments import CallSizes, KernelSpec, dispatch_by_form
from tpgen.kernels.build.compiler import DTYPES
from tpgen.kernels.cuda import driver
from tpgen.kernels.cuda.chips import OLDEST, Chip, chip_of
from tpgen.kernels.cuda.driver import why_no_driver
from tpgen.kernels.cuda.generate import generate_cuda
from tpgen.kernels.cuda.launch import count_workspace_bytes
from tpgen.kernels.cuda.nvrtc import find_nvrtc, why_no_nvrtc
from tpgen.kernels.cuda.placement import cuda_target, place_form, why_derivatives_do_not_fit
from tpgen.kernels.cuda.polynomial_kernel import PolynomialKernel
from tpgen.kernels.cuda.product_kernel import ProductKernel
from tpgen.kernels.placement.planning import plan_schedule
from tpgen.kernels.placement.values import BatchSchedule
from tpgen.kernels.rows import EDGES, RowRules
from tpgen.kernels.sweep.terms import SLOTS

# The most that a kernel can open at once: where these have room, all others have.
_LARGEST = ((SLOTS, False), (("x1", "x2", "w"), True), (("x2", "w", "out"), True))
_MATRIX = 64 * 64  # the most weights of a path, shared by all rows, that ``auto`` gives to a kernel


def why_no_cuda_kernels(device: torch.device) -> str | None:
    """Why this machine cannot run kernels on a device, or None."""
    if reason := why_no_driver():
        return reason
    number, there = driver.device_number(device), torch.cuda.device_count()
    if number >= there:
        return f"there is no cuda:{number}, only cuda:0{f' to cuda:{there - 1}' if there > 1 else ''}"
    arch = driver.capability(number)
    if arch < OLDEST:
        return f"kernels need a GPU of compute capability {OLDEST / 10} or later, and cuda:{number} has {arch / 10}"
    if find_nvrtc(arch, cuda := driver.driver_cuda_version()) is None:
        return f"kernels on a GPU need NVRTC, and {why_no_nvrtc(arch, cuda)}"
    return None


def chip_at(device: torch.device) -> Chip:
    return chip_of(driver.capability(driver.device_number(device)))


def count_call_scratch_bytes(spec: KernelSpec, sizes: CallSizes) -> int:
    """Bytes of temporary GPU memory that a call allocates."""
    chip = chip_at(sizes.device) if torch.cuda.is_available() else chip_of(90)
    return count_workspace_bytes(place_kernel(spec, chip), sizes)


# -- by what a form consists of ----------------------------------------------------------------------------------------


def _why_product_does_not_fit(spec: KernelSpec, chip: Chip) -> str | None:
    if spec.description.plan.by_element:
        return "weights of elements have kernels on a CPU alone: use strategy='grouped'"
    if spec.call.levels:
        return "second derivatives are expanded into calls without levels on a GPU"
    try:
        for opened, indexed in _LARGEST:
            place_form(spec.description.form, DTYPES[spec.dtype], opened, chip, indexed)
    except TpgenError as error:
        return str(error)
    return None


def _why_polynomial_does_not_fit(spec: KernelSpec, chip: Chip) -> str | None:
    description = spec.description
    return why_derivatives_do_not_fit(description.plan, description.sweep(spec.call), DTYPES[spec.dtype], chip)


def _cuda_text_of_product(spec: KernelSpec, chip: Chip) -> str:
    # empty for a call that is expanded into other calls
    form = spec.description.form
    there = {o.name for o in form.operands if o.dim}
    opened = tuple(name for name in spec.description.computed_and_cotangent_operands(spec.call)[0] if name in there)
    if spec.call.levels or not opened:
        return ""
    return generate_cuda(place_form(form, DTYPES[spec.dtype], opened, chip, bool(spec.rules))).text


def _why_kernel_is_slower_than_torch(spec: KernelSpec, _chip: Chip) -> str | None:
    # a kernel reads shared weights for a few rows at a time, a matrix product for many
    schedule = plan_schedule(spec.description.form, cuda_target(DTYPES[spec.dtype]))
    if not isinstance(schedule, BatchSchedule) or not schedule.shared_weights:
        return None
    largest = max(t.size(t.mode.weight) for t in schedule.terms)
    if largest <= _MATRIX:
        return None
    return (
        f"a path has {largest} weights that all rows share: above {_MATRIX} they are for the library's matrix products"
    )


def select_supported_row_rules(description: Any, rules: RowRules) -> RowRules:
    """Row rules that GPU kernels support: edges, and elements of polynomials."""
    if description.any_level:
        return rules
    return EDGES if set(EDGES) <= set(rules) else ()


load_gpu_kernel = dispatch_by_form(ProductKernel, PolynomialKernel)
place_kernel = dispatch_by_form(ProductKernel.place_on_chip, PolynomialKernel.place_on_chip)
kernel_obstacle = dispatch_by_form(_why_product_does_not_fit, _why_polynomial_does_not_fit)
kernel_text = dispatch_by_form(
    _cuda_text_of_product, lambda spec, chip: generate_cuda(PolynomialKernel.place_on_chip(spec, chip)).text
)
slower = dispatch_by_form(_why_kernel_is_slower_than_torch, lambda *_: None)
