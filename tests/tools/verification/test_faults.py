"""Every law is seen to be broken by a fault planted for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests import interpreter
from tests.machine import needs_compiler
from tests.tools.verification.planted import OF_PRODUCTS
from tests.tools.verification.products import Wrong, product
from tpgen.kernels.build import build
from tpgen.kernels.runtime import runtime, targets
from tpgen.kernels.sweep.statements import Accumulate, Component
from tpgen.tools.verification.verify import verify

OF_MODULES: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "a path a little too large": ("definition", lambda: Wrong(lambda out, x, y: out * 1.00001)),
    "another normalisation": ("normalisation", lambda: Wrong(lambda out, x, y: 1.1 * out)),
    "another than e3nn's": ("e3nn", lambda: Wrong(lambda out, x, y: 1.1 * out)),
    "right is another product": ("right", lambda: Wrong(lambda out, x, y: out, right=1.001)),
    "a square of an input": ("linear", lambda: Wrong(lambda out, x, y: out + 0.01 * x[:, :1] ** 2)),
    "components exchanged": ("equivariant", lambda: Wrong(lambda out, x, y: out.roll(1, 1))),
    "rows that know of each other": ("permutation", lambda: Wrong(lambda out, x, y: out + 0.01 * x[:, :1].cumsum(0))),
    "a result cut off from its inputs": ("first order", lambda: Wrong(lambda out, x, y: out.detach() + 0.0 * x.sum())),
    "shared memory of two calls": ("repeated", lambda: Wrong(lambda out, x, y: out + 1e-12 * torch.rand(1).item())),
}  # fmt: skip


class WrongSquare(tpgen.Polynomial):
    """A polynomial of second degree with a part of third."""

    def forward(self, x: Tensor, **rest) -> Tensor:
        return super().forward(x, **rest) + 0.01 * x[:, :1] ** 3


OF_POLYNOMIALS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "a degree too high": ("degree", lambda: WrongSquare({"x": "2x0e+2x1o"}, "2x0e", [("x", "x")], strategy="einsum")),
}


@pytest.mark.parametrize("fault", [*OF_MODULES, *OF_POLYNOMIALS])
def test_a_fault_of_a_product_is_caught(fault: str) -> None:
    law, made = (OF_MODULES | OF_POLYNOMIALS)[fault]
    assert verify(made(), only=[law]).failed == (law,)


@pytest.fixture
def fresh_kernels() -> Iterator[None]:
    """Kernels of a fault live no longer than its test."""
    for found in (targets.target_of, runtime.kernels_of):
        found.cache_clear()
    yield
    for found in (targets.target_of, runtime.kernels_of):
        found.cache_clear()


def spoilt(sweep, slot: str, change: Callable[[Accumulate], Accumulate]):
    """A sweep with the last addition to an operand changed."""
    paths = list(sweep.paths)
    for n, path in reversed(list(enumerate(paths))):
        stages = list(path.stages)
        for s, stage in reversed(list(enumerate(stages))):
            statements = list(stage.statements)
            for k, found in reversed(list(enumerate(statements))):
                if isinstance(found, Accumulate) and found.target.operand == slot:
                    statements[k] = change(found)
                    stages[s] = replace(stage, statements=tuple(statements))
                    paths[n] = replace(path, stages=tuple(stages))
                    return replace(sweep, paths=tuple(paths))
    return sweep


def _elsewhere(found: Accumulate) -> Accumulate:
    where = found.target
    return replace(found, target=Component(where.operand, where.segment, (where.index + 1) % 3))


def _scaled(found: Accumulate) -> Accumulate:
    return replace(
        found, terms=(replace(found.terms[0], coefficient=1.001 * found.terms[0].coefficient), *found.terms[1:])
    )


def _left_out(found: Accumulate) -> Accumulate:
    return replace(found, terms=(replace(found.terms[0], coefficient=0.0),))


OF_SWEEPS = {
    "a sum into another component": ("equivariant", "out", _elsewhere),
    "a number of the product": ("definition", "out", _scaled),
    "an addition left out": ("definition", "out", _left_out),
    "a number of the gradient of input 1": ("first order", "x1", _scaled),
    "a sign of the gradient of input 2": (
        "first order",
        "x2",
        lambda found: replace(found, terms=tuple(replace(t, coefficient=-t.coefficient) for t in found.terms)),
    ),
    "an addition to the gradient of weights left out": ("Hessian", "w", _left_out),
    "the gradient of weights in second derivatives": ("second order", "w", _scaled),
    "the gradient of input 2 in third derivatives": ("third order", "x2", _scaled),
}


@pytest.mark.usefixtures("fresh_kernels")
@pytest.mark.parametrize("fault", OF_SWEEPS)
def test_a_fault_of_a_sweep_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, slot, change = OF_SWEEPS[fault]
    right = interpreter.make_sweep
    monkeypatch.setattr(interpreter, "make_sweep", lambda *given: spoilt(right(*given), slot, change))
    monkeypatch.setitem(targets.KERNEL_TARGETS, "cpp", interpreter.INTERPRETER)
    assert verify(product("kernel"), only=[law], rows=3).failed == (law,)


OF_TEXTS = {
    "a constant": ("definition", r"(\d\.\d{3})\d{4,}", r"\g<1>9999"),
    "a sum for a difference": ("equivariant", r"(?<=ci1j2) - (?=[^;]*ci2j1)", " + "),
    "a component for another": ("equivariant", r"(const vec ci1j2 = x\[1\] \* y)\[2\]", r"\g<1>[1]"),
    "a path left out": ("definition", r"(?m)^ *path_1\(.*;$", ""),
    "a weight for another": ("linear", r"weights\[2 \+ \(", r"weights[0 * n + 2] * weights[2 + ("),
    "one row for all": ("permutation", r"x1 \+ e \* 8", "x1 + q * 8"),
}


@needs_compiler
@pytest.mark.usefixtures("fresh_kernels")
@pytest.mark.parametrize("fault", OF_TEXTS)
def test_a_fault_of_the_generated_text_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, pattern, other = OF_TEXTS[fault]
    right = build.load_kernel

    def load(text: str, *rest):
        changed, count = re.subn(pattern, other, text, count=1)
        assert count == 1
        return right(changed, *rest)

    monkeypatch.setattr(build, "load_kernel", load)
    assert verify(product("kernel"), only=[law], rows=3).failed == (law,)


def test_every_law_of_products_has_a_fault() -> None:
    """Those of networks are caught in test_planted.py."""
    tables = (OF_MODULES, OF_POLYNOMIALS, OF_SWEEPS, OF_TEXTS)
    assert {law for table in tables for law, *_ in table.values()} >= OF_PRODUCTS | {"third order"}


def test_a_module_that_breaks_down_breaks_the_law_and_the_others_go_on() -> None:
    def break_down(out: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if len(x) == 64:
            raise RuntimeError("out of luck\nlong story")
        return out

    report = verify(Wrong(break_down), only=["normalisation", "definition"])
    assert report.finding("normalisation").why == "RuntimeError: out of luck"
    assert report.failed == ("normalisation",)
