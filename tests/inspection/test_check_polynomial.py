"""Checks of polynomials: they pass for every strategy and dtype, and see what is wrong."""

from __future__ import annotations

import pytest
import torch

from tests.machine import KERNEL
from tests.polynomials import PLANS, mixed, symmetric
from tpgen.inspection.laws import polynomial
from tpgen.inspection.laws.polynomial import check_polynomial


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
        ("equivariance", "inversion"),
    }
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
