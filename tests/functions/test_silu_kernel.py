"""The kernel of SiLU's second derivative against torch in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.machine import needs_compiler
from tpgen.functions.silu import silu_second_grad

pytestmark = needs_compiler


def slow(c: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The same by torch, in float64."""
    x, g = (t.detach().double().requires_grad_() for t in (x, g))
    (first,) = torch.autograd.grad(torch.nn.functional.silu(x), x, g, create_graph=True)
    by_g, by_x = torch.autograd.grad(first, (g, x), c.double())
    return by_g, by_x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_as_exact_as_its_dtype(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-25, 25, 9973), 1e-3 * torch.randn(100), torch.zeros(1)]).to(dtype)
    c, g = torch.randn_like(x), torch.randn_like(x)
    tolerance = 50 * torch.finfo(dtype).eps  # torch's own 1 - s loses as many digits
    for found, wanted in zip(silu_second_grad(c, g, x), slow(c, g, x), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("count", [0, 1, 3, 15, 16, 17, 31, 33])
def test_any_number_of_numbers_and_nothing_behind_them(count: int) -> None:
    wide = torch.randn(3, count + 1, dtype=torch.float64)
    c, g, x = (row[:count].clone() for row in wide)
    for found, wanted in zip(silu_second_grad(c, g, x), slow(c, g, x), strict=True):
        torch.testing.assert_close(found, wanted)


def test_strided_tensors_and_many_blocks() -> None:
    c, g, x = (torch.randn(300, 300, dtype=torch.float64)[:, ::2] for _ in range(3))
    assert x.numel() > 2 * 2**14
    for found, wanted in zip(silu_second_grad(c, g, x), slow(c, g, x), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_out_and_nan(dtype: torch.dtype) -> None:
    x = torch.tensor([-3e38, -1000.0, 1000.0, 3e38, -math.inf, math.inf, math.nan], dtype=dtype)
    one = torch.ones_like(x)
    slope, bend = silu_second_grad(one, one, x)
    torch.testing.assert_close(slope[:4], torch.tensor([0.0] * 2 + [1.0] * 2, dtype=dtype))
    torch.testing.assert_close(bend[:4], torch.zeros(4, dtype=dtype))
    assert slope[4:].isnan().all()
    assert bend[4:].isnan().all()
