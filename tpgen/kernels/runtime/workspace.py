"""Scratch bytes of kernel calls."""

from __future__ import annotations

import torch

from tpgen.form.call import Call
from tpgen.kernels.arguments import CallSizes, KernelSpec
from tpgen.kernels.rows import ROWS
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.runtime import Kernels, kernels_of
from tpgen.kernels.runtime.signature import AxisSizes, CallSignature
from tpgen.kernels.runtime.targets import target_of


def count_call_workspace(call: FormCall) -> int:
    """Scratch bytes of a call, copies of operands included.

    >>> from tpgen.kernels.runtime.description import describe
    >>> from tpgen.planner.product import make_plan
    >>> text = describe(make_plan("8x0e", "1o", "8x1o", [(0, 0, 0, "uvu", True)]))
    >>> x, y, w = torch.ones(2, 8), torch.ones(2, 3), torch.ones(8)
    >>> count_call_workspace(FormCall([x, y, w], (), text, "x1 x2 w -> out")) < 10_000
    True
    """
    kernels = kernels_of(call.description)
    if not kernels.description.has_live_paths:
        return 0
    signature = kernels.signature(call.call, call.rules)
    counts = signature.measure_axes(call)
    device, dtype = call.tensors[0].device, call.tensors[0].dtype
    read = (*call.tensors, *(index.tensor for index in call.indices if index.tensor is not None))
    copies = sum(x.numel() * x.itemsize for x in read if not x.is_contiguous())  # kernels read dense rows
    if not kernels.computes_in_float32(signature.call, dtype, call.rules, device.type):
        return copies + _bytes_of_largest_kernel_workspace(kernels, signature, call, counts, dtype)
    results = sum(torch.Size(shape).numel() for shape in signature.result_shapes(call.tensors, counts))
    wide = sum(2 * x.nbytes for x in call.tensors) + 2 * results * dtype.itemsize
    return copies + wide + _bytes_of_largest_kernel_workspace(kernels, signature, call, counts, torch.float32)


def _bytes_of_largest_kernel_workspace(
    kernels: Kernels, signature: CallSignature, call: FormCall, axis_sizes: AxisSizes, dtype: torch.dtype
) -> int:
    device = call.tensors[0].device
    target = target_of(device.type)
    if target is None:
        return 0
    indices, unsupported = (
        kernels.prepare_row_indices(call, axis_sizes),
        kernels.unsupported_rules(call.rules, dtype, device.type),
    )
    if unsupported:
        kernels = kernels_of(kernels.text_with_weights_by_row(unsupported))
        indices = tuple(index for index in indices if index.rule not in unsupported)
    measured, rules = (
        CallSizes(device, axis_sizes[ROWS], axis_sizes["channels"], indices),
        tuple(x.rule for x in indices),
    )

    def bytes_of(part: Call) -> int:
        return target.workspace(KernelSpec(kernels.description, part, dtype, rules), measured)

    return max(map(bytes_of, signature.parts))
