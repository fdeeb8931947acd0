"""Launches by the runtime in C++: those of Python to the bit, and no frame of Python on the way."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.fakes import Products
from tests.kernels.plans import operands
from tests.machine import needs_compiler
from tpgen.errors import BackendError
from tpgen.form.reference import reference_product
from tpgen.kernels.runtime import ops
from tpgen.kernels.runtime.call import OUT, ProductCall, W
from tpgen.kernels.runtime.ops import describe, kernel_product
from tpgen.kernels.runtime.runtime import Kernels
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, fully_connected

pytestmark = needs_compiler
PLANS = {
    "shared": channelwise("20x0e+3x1o", "0e+1o", "0e+1o", shared_weights=True),
    "rows": channelwise("20x0e+3x1o", "0e+1o", "0e+1o", shared_weights=False),
    "mixed": fully_connected("3x0e+2x1o", "0e+1o", "4x1o", shared_weights=False),
}
ROWS = 7


def call_of(name: str, mask: int = OUT, rows: int = ROWS) -> ProductCall:
    x1, x2, w, g = operands(PLANS[name], rows).values()
    return ProductCall(x1, x2, w, None if mask == OUT else g, None, None, describe(PLANS[name]), mask)


def both(call: ProductCall) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """By Python, which enters the kernel, and then by C++ alone."""
    kernels = ops.kernels_of(call.description)
    return kernels._run(call.listed()), kernels.quick(call)


def same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return len(found) == len(wanted) > 0 and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("mask", [OUT, 7, W, 15])
def test_rows(name: str, mask: int, native_gpu: Products) -> None:
    by_python, by_runtime = both(call_of(name, mask))
    assert same(by_runtime, by_python)
