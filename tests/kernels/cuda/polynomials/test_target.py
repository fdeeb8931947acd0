"""From a polynomial on a CUDA device to the driver and back, with a driver that runs the kernels' text on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.kernels.cuda.fakes import FakeDriver
from tests.machine import needs_compiler
from tests.polynomials import mixed, operands_of, slow, symmetric
from tpgen.base.errors import EmitError, InputError
from tpgen.compiler.autotune import choose_strategy
from tpgen.compiler.config import Config
from tpgen.kernels.cuda import driver, orders
from tpgen.kernels.cuda.chips import chip_of
from tpgen.kernels.cuda.placement import place_polynomial, why_derivatives_do_not_fit
from tpgen.kernels.runtime.ops import kernel_polynomial
from tpgen.kernels.runtime.polynomials import describe_polynomial, forward_call, parse_polynomial_call
from tpgen.kernels.runtime.targets import KERNEL_TARGETS, target_of
from tpgen.planner.plan import Plan
from tpgen.planner.problems import POLYNOMIALS

pytestmark = needs_compiler
INDEX = torch.tensor([0, 2, 2, 0, 0, 2, 0])


def both(plan: Plan, tensors: Sequence[Tensor], index: Tensor | None) -> list[Tensor]:
    fast = partial(kernel_polynomial, tensors, index, plan.to_json(), str(forward_call(plan)))
    return [fast(), slow(plan, tensors, index)]


@pytest.mark.parametrize("plan, index", [(symmetric(), INDEX), (mixed("ir_mul"), None)], ids=["elements", "one"])
def test_derivatives_of_two_orders(plan: Plan, index: Tensor | None, gpu: FakeDriver) -> None:
    tensors = operands_of(plan, 7, 1 if index is None else 3, 5)
    values = both(plan, tensors, index)
    torch.testing.assert_close(*values, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn_like(values[0])
    first = [torch.autograd.grad(y, tensors, cotangent, create_graph=True) for y in values]
    torch.testing.assert_close(*first, rtol=1e-11, atol=1e-11)
    directions = [torch.randn_like(x) for x in tensors]
    sums = [torch.stack([(g * d).sum() for g, d in zip(f, directions, strict=True)]).sum() for f in first]
    torch.testing.assert_close(*(torch.autograd.grad(s, tensors) for s in sums), rtol=1e-10, atol=1e-10)
    rest = ["tpgen_channels"] * (index is None)
    assert gpu.launched == ["tpgen_kernel", *["tpgen_kernel", "tpgen_sum", *rest] * 2]


def test_a_launch_is_on_the_device_of_the_tensors(gpu: FakeDriver) -> None:
    """In its context, on its stream, by code for its capability: every launch asserts them."""
    plan = symmetric(degree=2)
    tensors = operands_of(plan, 7, 3, 5)
    for gpu.device in (0, 1):
        found, wanted = both(plan, tensors, INDEX)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        torch.autograd.grad(found, tensors, torch.ones_like(found))
    assert gpu.launched == ["tpgen_kernel", "tpgen_kernel", "tpgen_sum"] * 2


def test_rows_are_sorted_once_for_an_index(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_ = list[int]()
    monkeypatch.setattr(orders, "sort_by_owner", lambda i, n, f=orders.sort_by_owner: sorted_.append(n) or f(i, n))
    plan = symmetric(degree=2)
    tensors, index = operands_of(plan, 7, 3, 5), INDEX.clone()
    result = both(plan, tensors, index)[0]
    torch.autograd.grad(result, tensors, torch.ones_like(result))
    assert sorted_ == [3]


def test_a_captured_polynomial_sorts_once_in_its_graph(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_ = list[int]()
    monkeypatch.setattr(orders, "sort_by_owner", lambda i, n, f=orders.sort_by_owner: sorted_.append(n) or f(i, n))
    plan = symmetric(degree=2)
    tensors, index = operands_of(plan, 7, 3, 5, grad=False), INDEX.clone()
    both(plan, tensors, index)
    for gpu.capture, sorts in ((1, 2), (2, 3)):
        for _ in range(2):
            torch.testing.assert_close(*both(plan, tensors, index))
        assert sorted_ == [3] * sorts


def test_an_element_out_of_range_is_refused(gpu: FakeDriver) -> None:
    plan = symmetric(degree=2)
    tensors = operands_of(plan, 7, 2, 5, grad=False)
    with pytest.raises(InputError, match="index: elements run from 0 to 1, got 0 to 2"):
        kernel_polynomial(tensors, INDEX, plan.to_json(), str(forward_call(plan)))


def test_no_rows_launch_nothing(gpu: FakeDriver) -> None:
    plan = symmetric(degree=2)
    tensors = operands_of(plan, 0, 3, 6)
    result = kernel_polynomial(tensors, INDEX[:0], plan.to_json(), str(forward_call(plan)))
    gradients = torch.autograd.grad(result, tensors, result)
    assert result.shape == (0, 24)
    assert not any(g.any() for g in gradients)
    assert not gpu.launched


def test_what_a_small_chip_has_no_room_for() -> None:
    plan = POLYNOMIALS["mace-contraction"].plan
    kernels = describe_polynomial(plan)
    forward, second = (kernels.sweep(parse_polynomial_call(plan, name)) for name in ("forward", "second"))
    assert why_derivatives_do_not_fit(plan, forward, "float32", chip_of(75)) is None
    refused = "with 130 coefficients, needs .* bytes of shared memory, and a block of sm_75 has 65536: use strategy="
    with pytest.raises(EmitError, match=refused):
        place_polynomial(plan, second, "float64", chip_of(75))
    assert "use strategy='einsum'" in str(why_derivatives_do_not_fit(plan, forward, "float64", chip_of(75)))
    warps = [place_polynomial(plan, second, "float32", chip_of(arch)).warps for arch in (75, 80, 90)]
    assert warps == [1, 2, 4]


def test_without_a_gpu_the_choice_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    choice = choose_strategy(symmetric(), Config(device="cuda"))
    assert (choice.strategy, choice.reason) == ("einsum", "torch sees no CUDA device")


def test_with_a_gpu_it_is_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KERNEL_TARGETS, "cuda", replace(KERNEL_TARGETS["cuda"], missing=lambda device: None))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(driver, "capability", lambda device: 75)
    caches = (target_of,)
    for one in caches:
        one.cache_clear()
    plan = POLYNOMIALS["mace-contraction"].plan
    found = [choose_strategy(plan, Config(dtype=dtype, device="cuda")) for dtype in (torch.float32, torch.float64)]
    for one in caches:
        one.cache_clear()
    assert str(found[0]) == "kernel (a generated CUDA C++ kernel, compiled at the first call)"
    assert "bytes of shared memory" in found[1].reason
