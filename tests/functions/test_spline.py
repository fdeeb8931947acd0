"""Cubic splines: the kernel against their definition, errors between steps, and what has no derivative."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.machine import needs_compiler
from tpgen.base.errors import TpgenError
from tpgen.functions.spline import SLOPE_ERROR, Spline, evaluate_spline, make_interpolant, make_spline


def waves(r: Tensor) -> Tensor:
    """Nineteen functions: no multiple of a vector."""
    return torch.cat([(k * r).sin() / k for k in range(1, 20)], 1)


@pytest.fixture(scope="module")
def spline() -> Spline:
    return make_spline(waves, 0.5, 5.0)


def test_errors_are_those_between_steps(spline: Spline) -> None:
    r = torch.linspace(0.5, 5.0, 100_001, dtype=torch.float64).unsqueeze(1)
    for order, said in enumerate((spline.values_error, spline.slopes_error)):
        wanted, found = (
            torch.func.jvp(f, (r,), (torch.ones_like(r),))[order] for f in (waves, make_interpolant(spline))
        )
        error = (wanted - found).abs().max() / wanted.abs().max()
        assert 0.5 * said < error < 1.5 * said
        assert error <= SLOPE_ERROR
    assert str(spline).startswith("cubic splines of lengths, 2048 steps, values within ")


def test_what_no_table_is_close_to_says_so() -> None:
    kink = make_spline(lambda r: (r - 1.01).abs(), 0.0, 2.0)
    assert len(kink.table) == 4096
    assert kink.slopes_error > SLOPE_ERROR


@needs_compiler
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-13), (torch.float32, 3e-6)])
def test_the_kernel_computes_the_definition(spline: Spline, dtype: torch.dtype, limit: float) -> None:
    r = (0.3 + 5 * torch.rand(500, 1, dtype=dtype)).requires_grad_()  # some outside, on both sides
    cast = spline.to(dtype)
    found, wanted = evaluate_spline(cast, r), make_interpolant(cast)(r)
    torch.testing.assert_close(found, wanted, rtol=limit, atol=limit)
    g = torch.randn(500, 19, dtype=dtype)
    slopes = [torch.autograd.grad(y, r, g)[0] for y in (found, wanted)]
    torch.testing.assert_close(*slopes, rtol=10 * limit, atol=10 * limit)
    assert (slopes[0][(r < 0.5) | (r > 5)] == 0).all()
    assert torch.equal(evaluate_spline(cast, r.detach()), found)
    assert evaluate_spline(cast, r[:0]).shape == (0, 19)
    assert evaluate_spline(cast, torch.full((1, 1), torch.nan, dtype=dtype)).isnan().all()


@needs_compiler
def test_what_is_no_derivative_is_an_error(spline: Spline) -> None:
    r = torch.rand(3, 1, dtype=torch.float64, requires_grad=True)
    weight = torch.ones(2, requires_grad=True)
    energy = evaluate_spline(spline, r, (weight,)).sum()
    (slope,) = torch.autograd.grad(energy, r, create_graph=True)
    with pytest.raises(TpgenError, match="for inference: it has values and forces, and no second derivatives"):
        slope.sum().backward(inputs=[r])
    with pytest.raises(TpgenError, match="and no gradients of parameters"):
        energy.backward(inputs=[weight])
