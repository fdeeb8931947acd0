"""Launches of a polynomial's kernels by the runtime in C++: those of Python to the bit."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cuda.polynomials.fakes import Polynomials
from tests.machine import needs_compiler
from tests.polynomials import mixed, operands_of, symmetric
from tpgen.kernels.runtime.call import FormCall
from tpgen.kernels.runtime.polynomials import named_call
from tpgen.kernels.runtime.runtime import kernels_of

pytestmark = needs_compiler
INDEX = torch.tensor([0, 2, 2, 0, 0, 2, 0])


@pytest.mark.parametrize("name", ["forward", "backward", "second"])
@pytest.mark.parametrize("indexed, channels", [(True, 5), (False, 40)])
def test_all_calls(name: str, indexed: bool, channels: int, native_gpu: Polynomials) -> None:
    """Rows of elements, and of one; channels in one chunk and in two."""
    plan = symmetric(degree=2) if indexed else mixed("ir_mul")
    slots = named_call(plan, name)
    there, out = operands_of(plan, 7, 3 if indexed else 1, channels, grad=False), plan.operand("out")
    cotangent = torch.randn(7, out.dim * (channels if out.channels else 1), dtype=torch.float64)
    by_name = dict(zip([o.name for o in plan.operands], [*there, cotangent], strict=True))
    tensors = [by_name[slot.operand] for slot in slots.given]
    call = FormCall(tensors, None, None, plan.to_json(), str(slots), INDEX if indexed else None)
    kernels = kernels_of(call.description)
    assert not kernels.quick_form(call)
    by_python = kernels._run(call)
    launched = list(native_gpu.launched)
    by_runtime = kernels.quick_form(call)
    assert native_gpu.launched == launched * 2
    assert len(by_runtime) == len(by_python) > 0
    assert all(map(torch.equal, by_runtime, by_python))
