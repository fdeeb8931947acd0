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


def on_edges(call: ProductCall, dtype: torch.dtype = torch.int64, nodes: int = 4) -> ProductCall:
    src, dst = torch.randint(nodes, (2, call.x2.shape[0]), generator=torch.Generator().manual_seed(1)).to(dtype)
    g = None if call.g is None else call.g[:nodes].clone()
    return call._replace(x1=call.x1[:nodes].clone(), g=g, src=src, dst=dst, nodes=nodes)


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


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("name, mask", [("rows", OUT), ("shared", 7), ("rows", 15), ("rows", W), ("mixed", 15)])
def test_edges(name: str, mask: int, dtype: torch.dtype, native_gpu: Products) -> None:
    """Every kind of owner; as many edges as take a second launch for those that lie across runs."""
    by_python, by_runtime = both(on_edges(call_of(name, mask, 300), dtype))
    assert same(by_runtime, by_python)
