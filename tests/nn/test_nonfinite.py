"""NaN, infinities and zeros in operands of products, layers and polynomials: no kernel hides one.

A kernel multiplies by couplings that are not zero.  Dense einsums, as e3nn's, multiply by the others too, and NaN times
zero is NaN: within a row they have more of it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from e3nn import o3
from torch import Tensor

from tests.machine import needs_compiler
from tests.nonfinite import KINDS, Function, derivatives, spoiled, spread_further
from tpgen import (
    FullyConnectedTensorProduct,
    Linear,
    Polynomial,
    SymmetricContraction,
    TensorProduct,
    TensorProductConv,
)
from tpgen.base._e3nn import default_dtype
from tpgen.planner.polynomial_plan import PolynomialTerm

LIMITS = {torch.float32: 1e-4, torch.float64: 1e-10}
ENDS = "4x0e+4x1o", "0e+1o+2e", "4x0e+4x1o+4x1e"
PATHS = [
    (0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True), (1, 0, 1, "uvu", True), (1, 1, 0, "uvu", True),
    (1, 1, 2, "uvu", True), (1, 2, 1, "uvu", True),
]  # fmt: skip
SRC, DST = torch.tensor([0, 1, 2, 2, 1, 0]), torch.tensor([1, 0, 1, 0, 2, 2])
ELEMENTS = torch.tensor([0, 2, 2, 1, 0])
pytestmark = needs_compiler


def rows(*widths: int) -> list[Tensor]:
    return [torch.randn(5, width) for width in widths]


def channelwise() -> tuple[Function, Function, list[Tensor]]:
    ours = TensorProduct(*ENDS, PATHS, shared_weights=False, internal_weights=False, strategy="kernel")
    theirs = o3.TensorProduct(*ENDS, PATHS, shared_weights=False, internal_weights=False)
    return ours, theirs, rows(ours.irreps_in1.dim, ours.irreps_in2.dim, ours.weight_numel)


def connected() -> tuple[Function, Function, list[Tensor]]:
    ends = "4x0e+4x1o", "2x0e+1o", "4x0e+4x1o"
    ours = FullyConnectedTensorProduct(*ends, internal_weights=False, shared_weights=True, strategy="kernel")
    theirs = o3.FullyConnectedTensorProduct(*ends, internal_weights=False, shared_weights=True)
    return ours, theirs, [*rows(ours.irreps_in1.dim, ours.irreps_in2.dim), torch.randn(ours.weight_numel)]


def convolution() -> tuple[Function, Function, list[Tensor]]:
    ours = TensorProductConv(*ENDS, PATHS, shared_weights=False, internal_weights=False, strategy="kernel")
    theirs = o3.TensorProduct(*ENDS, PATHS, shared_weights=False, internal_weights=False)

    def gathered(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return x.new_zeros(3, theirs.irreps_out.dim).index_add(0, DST, theirs(x[SRC], y, w))

    own = [
        torch.randn(3, theirs.irreps_in1.dim),
        torch.randn(6, theirs.irreps_in2.dim),
        torch.randn(6, theirs.weight_numel),
    ]
    return lambda x, y, w: ours(x, y, w, SRC, DST), gathered, own


def linear() -> tuple[Function, Function, list[Tensor]]:
    ends = "8x0e+4x1o", "6x1o+5x0e"
    ours = Linear(*ends, internal_weights=False, shared_weights=True, strategy="kernel")
    return (
        ours,
        o3.Linear(*ends, internal_weights=False, shared_weights=True),
        [*rows(20), torch.randn(ours.weight_numel)],
    )


def by_element() -> tuple[Function, Function, list[Tensor]]:
    ours = Linear("8x0e+4x1o", "6x1o+5x0e", num_elements=3, biases=True, internal_weights=False, strategy="kernel")
    each = Linear.from_plan(ours.plan.remade(shared_weights=False), strategy="einsum")
    operands = [*rows(20), torch.randn(3, ours.weight_numel), torch.randn(3, ours.bias_numel)]
    return (
        lambda x, w, b: ours(x, w, b, index=ELEMENTS),
        lambda x, w, b: each(x, w[ELEMENTS], b[ELEMENTS]),
        operands,
    )


def contraction() -> tuple[Function, Function, list[Tensor]]:
    ours, dense = (
        SymmetricContraction(
            "4x0e+4x1o", "4x0e+4x1o", correlation=3, num_elements=3, internal_weights=False, strategy=name
        )
        for name in ("kernel", "einsum")
    )
    weights = [torch.randn(3, *shape) for shape in ours.weight_shapes]
    return (
        lambda x, *w: ours(x, ELEMENTS, list(w)),
        lambda x, *w: dense(x, ELEMENTS, list(w)),
        [torch.randn(5, 4, 4), *weights],
    )


def polynomial() -> tuple[Function, Function, list[Tensor]]:
    terms = [PolynomialTerm(("a", "a", "y"), 1), PolynomialTerm(("a", "y"), 0)]
    ours, dense = (
        Polynomial({"a": "4x0e+4x1o", "y": "4x0e+4x1o"}, "4x0e+4x1o", terms, strategy=name)
        for name in ("kernel", "einsum")
    )
    dense.load_state_dict(ours.state_dict())
    return ours, dense, [torch.randn(5, 16), torch.randn(5, 16)]


CASES: dict[str, Callable[[], tuple[Function, Function, list[Tensor]]]] = {
    made.__name__: made for made in (channelwise, connected, convolution, linear, by_element, contraction, polynomial)
}


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_number_in_any_operand(case: str, dtype: torch.dtype) -> None:
    with default_dtype(dtype):  # in which e3nn rounds its couplings
        ours, definition, operands = CASES[case]()
    lines = []
    for kind in KINDS:
        for n, given in spoiled(operands, kind):
            found, wanted = (derivatives(of, given) for of in (ours, definition))
            lines += [
                f"{kind} in operand {n}: {name}: {line}"
                for name, x in wanted.items()
                if (line := spread_further(found[name], x, LIMITS[dtype]))
            ]
    assert not lines, "\n".join(lines)
