"""Bessel functions times a polynomial cutoff: the kernel against their definition, and what surrounds a call."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.machine import needs_compiler
from tpgen.functions import bessel as module
from tpgen.functions.bessel import CutBessel, bessel_by_torch, bessel_length_gradient, bessel_values, cut_bessel

SHAPES = {
    "six": CutBessel(math.sqrt(2 / 5), 5.0, 6),
    "odd": CutBessel(0.7, 3.0, 5),
    "one": CutBessel(1.0, 4.0, 1),
    "on and on": CutBessel(2 / 5, 5.0, 6, ends=False),
    "with a limit": CutBessel(1 / math.pi, 1.0, 6, limit=True),
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def inputs(shape: CutBessel, lengths: int = 40, functions: int = 8) -> tuple[Tensor, Tensor]:
    """Lengths up to beyond the cutoff, in a column, and frequencies that are no multiples of one."""
    r = torch.linspace(0.02, 1.2, lengths, dtype=torch.float64)[torch.randperm(lengths)] * shape.cutoff
    w = torch.arange(1, functions + 1, dtype=torch.float64) * math.pi / shape.cutoff
    return r.unsqueeze(1).requires_grad_(), (w + 0.1 * torch.rand(functions, dtype=torch.float64)).requires_grad_()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What kernels were asked for."""
    seen: list[str] = []

    def told(name: str, run: Callable) -> Callable:
        return lambda *given: seen.append(name) or run(*given)

    for name, run in (("bessel_values", bessel_values), ("bessel_length_gradient", bessel_length_gradient)):
        monkeypatch.setattr(module, name, told(name, run))
    return seen


@needs_compiler
@shapes
def test_values_and_gradients_are_those_of_the_definition(shape: CutBessel, kernels: list[str]) -> None:
    r, w = inputs(shape)
    found, wanted = cut_bessel(r, w, shape), bessel_by_torch(r, w, shape)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
    g, h = torch.randn(40, 8, dtype=torch.float64), torch.randn(40, 1, dtype=torch.float64)
    for outputs, cotangents in (((0, 1), (g, h)), ((0,), (g,)), ((1,), (h,))):
        of = (r, w) if 0 in outputs else (r,)  # the cutoff has no frequencies
        ours, theirs = (
            torch.autograd.grad([made[n] for n in outputs], of, cotangents, retain_graph=True)
            for made in (found, wanted)
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert kernels == ["bessel_values", *["bessel_length_gradient"] * 3]


@needs_compiler
@shapes
def test_derivatives_of_higher_order(shape: CutBessel) -> None:
    r, w = inputs(shape)
    g = torch.randn(40, 8, dtype=torch.float64, requires_grad=True)
    results = []
    for functions in (cut_bessel, bessel_by_torch):
        rows, alone = functions(r, w, shape)
        total, of = (g * rows).sum() + alone.square().sum(), (r, w, g)
        for _ in range(3):
            slopes = torch.autograd.grad(total, of, create_graph=True)
            total = sum(x.tanh().sum() for x in slopes)
            results.append(slopes)
    for ours, theirs in zip(results[:3], results[3:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@needs_compiler
@shapes
def test_float32_is_as_exact_as_its_arguments(shape: CutBessel) -> None:
    r, w = (x.detach().float() for x in inputs(shape, 5000, 20))
    g, h = torch.randn(5000, 20), torch.randn(5000, 1)
    exact = [x.double().requires_grad_() for x in (r, w)]
    wanted = bessel_by_torch(*exact, shape)
    slope = torch.autograd.grad(wanted, exact[0], (g.double(), h.double()))[0]
    for ours, theirs in zip(bessel_values(r, w, shape), wanted, strict=True):
        scale = theirs.abs().max().item()
        torch.testing.assert_close(ours.double(), theirs.detach(), rtol=0, atol=2e-5 * scale)
    ours = bessel_length_gradient(r, w, shape, g, h)
    torch.testing.assert_close(ours.double(), slope, rtol=1e-3, atol=1e-4 * slope.abs().max().item())


@needs_compiler
@pytest.mark.parametrize("count", [0, 1, 3, 7, 8, 9, 31, 33, 20_000])
def test_any_number_of_lengths_and_nothing_behind_them(count: int) -> None:
    shape, functions = SHAPES["six"], 5
    r, w = (x.detach() for x in inputs(shape, count + 1, functions))
    g, h = torch.randn(count, functions, dtype=torch.float64), torch.randn(count, 1, dtype=torch.float64)
    r = r[:count].requires_grad_()
    wanted = bessel_by_torch(r, w, shape)
    torch.testing.assert_close(bessel_values(r.detach(), w, shape), wanted)
    (slope,) = torch.autograd.grad(wanted, r, (g, h))
    torch.testing.assert_close(bessel_length_gradient(r.detach(), w, shape, g, h), slope)


@needs_compiler
def test_strided_tensors_and_lengths_that_are_no_column() -> None:
    shape = SHAPES["six"]
    r, w = (x.detach() for x in inputs(shape))
    wide, g = torch.cat([r, r, r], 1), torch.randn(8, 40, dtype=torch.float64).T
    rows, alone = cut_bessel(r, w, shape)
    for own in (wide[:, 1:2], wide[:, 1]):
        found = cut_bessel(own, w, shape)
        assert torch.equal(found[0], rows)
        assert torch.equal(found[1], alone.reshape(own.shape))
        assert bessel_length_gradient(own, w, shape, g, None).shape == own.shape


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_length(dtype: torch.dtype) -> None:
    r, w = torch.zeros(1, 1, dtype=dtype), torch.tensor([1.0, 2.0], dtype=dtype)
    one = torch.ones(1, 2, dtype=dtype)
    for shape in (SHAPES["six"], SHAPES["with a limit"]):
        rows, slope = bessel_values(r, w, shape)[0], bessel_length_gradient(r, w, shape, one, None)
        assert torch.isnan(rows).tolist() == [[not shape.limit] * 2]
        assert torch.isnan(slope).tolist() == [[not shape.limit]]
    torch.testing.assert_close(rows[0], shape.prefactor * w)
    assert slope == 0
    assert bessel_by_torch(r, w, shape)[0][0].tolist() == rows[0].tolist()


@shapes
def test_transforms_and_modes(shape: CutBessel) -> None:
    r, w = inputs(shape)
    r, w = r.detach(), w.detach()
    wanted, own = bessel_by_torch(r, w, shape), r.clone().requires_grad_()
    with torch.inference_mode():
        torch.testing.assert_close(cut_bessel(r, w, shape), wanted)
    torch.testing.assert_close(torch.vmap(lambda x: cut_bessel(x, w, shape)[1])(r.squeeze(1)[:, None]), wanted[1])
    (slope,) = torch.autograd.grad(cut_bessel(own, w, shape)[0].sum(), own)
    by_func = torch.func.grad(lambda x: cut_bessel(x, w, shape)[0].sum())(r)
    _, tangent = torch.func.jvp(lambda x: cut_bessel(x, w, shape)[0].sum(), (r,), (torch.ones_like(r),))
    torch.testing.assert_close(by_func, slope)
    torch.testing.assert_close(tangent, slope.sum())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(r, torch.ones_like(r))
        rows = cut_bessel(dual, w, shape)[0]
        assert torch.autograd.forward_ad.unpack_dual(rows).tangent is not None
    rows, cotangents = cut_bessel(own, w, shape)[0], torch.randn(3, 40, 8, dtype=torch.float64)
    (many,) = torch.autograd.grad(rows, own, cotangents, retain_graph=True, is_grads_batched=True)
    for each, g in zip(many, cotangents, strict=True):
        torch.testing.assert_close(each, torch.autograd.grad(rows, own, g, retain_graph=True)[0])


def test_what_no_kernel_takes_is_torch(kernels: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    r, w = (x.detach() for x in inputs(SHAPES["six"]))
    cut_bessel(r.half(), w.half(), SHAPES["six"])
    cut_bessel(r, w.float(), SHAPES["six"])
    with torch.autocast("cpu"):
        cut_bessel(r.float(), w.float(), SHAPES["six"])
    monkeypatch.setattr(module, "can_build_kernel", lambda *_: False)
    cut_bessel(r, w, SHAPES["six"])
    assert kernels == []


def test_the_report_names_no_kernel_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_compiler", lambda: None)
    monkeypatch.setattr(module, "why_no_compiler", lambda: "there is no g++")
    assert module.name_cut_bessel_code() == "its own code (kernels need a C++ compiler, and there is no g++)"
