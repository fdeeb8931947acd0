"""Checks of polynomials: they pass for every strategy and dtype, and see what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.machine import KERNEL
from tests.polynomials import PLANS, mixed, symmetric
from tpgen.errors import InputError
from tpgen.inspection.laws import polynomial
from tpgen.inspection.laws.polynomial import check_polynomial

Fault = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _turning(x: torch.Tensor) -> torch.Tensor:
    """A tensor with a gradient that is none of any function."""
    same = x * 1.0
    same.register_hook(lambda g: g * x.roll(1, 1))
    return same


@pytest.mark.parametrize("strategy", ["einsum", "unrolled", KERNEL])
@pytest.mark.parametrize("name", ["symmetric ir_mul", "mixed", "mixed unweighted"])
def test_every_law_holds(name: str, strategy: str) -> None:
    for dtype in (torch.float64, torch.float32):
        report = check_polynomial(PLANS[name](), strategy, dtype=dtype)
        assert report.passed, str(report)


def test_laws_and_parts() -> None:
    report = check_polynomial(symmetric(degree=1), "einsum")
    assert {(f.law, f.part) for f in report.findings} >= {
        ("reference", ""),
        ("gradient", "x"),
        ("second derivative", "w1_1"),
        ("symmetry", ""),
        ("linear", "x"),
        ("rows", ""),
        ("equivariance", "inversion"),
    }
    squared = check_polynomial(symmetric(degree=2), "einsum")
    assert ("degree", "x") in {(f.law, f.part) for f in squared.findings}
    assert ("linear", "x") not in {(f.law, f.part) for f in squared.findings}
    assert "passed" in str(report)


def test_a_wrong_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = polynomial.emit_polynomial

    class Wrong(torch.nn.Module):
        def __init__(self, program: torch.nn.Module) -> None:
            super().__init__()
            self.program = program

        def forward(self, a: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            return self.program(a * 1.001, *rest) + 0.001

    class Emission:
        def __init__(self, *arguments: object) -> None:
            self.arguments = arguments

        def module(self) -> torch.nn.Module:
            return Wrong(right(*self.arguments).module())

    monkeypatch.setattr(polynomial, "emit_polynomial", Emission)
    report = check_polynomial(mixed())
    failed = {f.law for f in report.findings if f.status == "failed"}
    assert failed == {"reference", "gradient", "second derivative", "equivariance"}


@pytest.mark.parametrize(
    "wrong, laws",
    [
        (lambda y, x: y + x.pow(3).sum(1, keepdim=True), {"degree"}),
        (lambda y, x: y + x[:1].sum(), {"rows"}),
        (lambda y, x: y + _turning(x).sum(1, keepdim=True), {"symmetry"}),
    ],
)
def test_each_law_sees_its_own_fault(wrong: Fault, laws: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the definition beside it."""
    right = polynomial.emit_polynomial

    class Wrong(torch.nn.Module):
        def __init__(self, program: torch.nn.Module) -> None:
            super().__init__()
            self.program = program

        def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            return wrong(self.program(x, *rest), x)

    class Emission:
        def __init__(self, *arguments: object) -> None:
            self.arguments = arguments

        def module(self) -> torch.nn.Module:
            return Wrong(right(*self.arguments).module())

    monkeypatch.setattr(polynomial, "emit_polynomial", Emission)
    report = check_polynomial(symmetric(degree=2, layout="ir_mul"), dtype=torch.float64)
    assert laws <= {f.law for f in report.findings if f.status == "failed"}


@pytest.mark.parametrize("strategy", ["einsum", KERNEL])
def test_weights_by_element(strategy: str) -> None:
    assert check_polynomial(symmetric(degree=2), strategy, elements=3).passed


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown dtype 'torch\.int32'"):
        check_polynomial(mixed(), dtype=torch.int32)
    with pytest.raises(InputError, match="channels: a check needs one at least, got 0"):
        check_polynomial(mixed(), channels=0)
