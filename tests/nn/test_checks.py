"""What a product refuses when it is made and when it is called, and what it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tpgen
from tests.cases import MIXED
from tpgen.base.errors import EmitError, InputError, PlanError, TpgenError

ROWS, EXTERNAL = {"shared_weights": False}, {"internal_weights": False}
N = tpgen.TensorProduct(*MIXED).weight_numel


@pytest.mark.parametrize(
    "options, call, match",
    [
        ({}, lambda x, y: (x[:, :-1], y), r"x: the last dimension must be 18 \(3x0e\+3x1o\+2x1e\), got 17"),
        ({}, lambda x, y: (x, y[:, :-1]), r"y: the last dimension must be 22 \(3x0e\+3x1o\+2x2e\), got 21"),
        ({}, lambda x, y: (x[0, 0], y), r"x: the last dimension must be 18 .*, got no dimension"),
        ({}, lambda x, y: (x.double(), y), r"x: the product is float32 but x is float64; convert: product.to\("),
        ({}, lambda x, y: (x, y.bfloat16()), r"y: the product is float32 but y is bfloat16"),
        ({}, lambda x, y: (x.to("meta"), y), r"x: the product is on cpu but x is on meta; move one of them"),
        ({}, lambda x, y: (x, y, torch.randn(N + 1)), rf"shape must be \({N},\), got \({N + 1},\).*weights of its own"),
        ({}, lambda x, y: (x, y, torch.randn(4, N)), r"shares its weights .*construct it with shared_weights=False"),
        ({}, lambda x, y: (x, y, torch.randn(N).double()), r"weight: the product is float32 but weight is float64"),
        (EXTERNAL, lambda x, y: (x, y), rf"\(internal_weights=False\): give weight with {N} entries$"),
        (ROWS, lambda x, y: (x, y), rf"give weight with {N} entries for each row"),
        (ROWS, lambda x, y: (x, y, torch.randn(N)), rf"every row has its own .* must be \(…, {N}\)"),
        (ROWS, lambda x, y: (x, y, torch.randn(4, N - 1)), r"every row has its own weights"),
        ({}, lambda x, y: (x, y, [torch.randn(3)]), r"one tensor for each of the 8 weighted instructions, got 1"),
        ({}, lambda x, y: (x, y, [torch.randn(7)] * 8), r"weight\[0\]: must have the shape \(3, 3\), got \(7,\)"),
        (ROWS, lambda x, y: (x, y, [torch.randn(7)] * 8), r"\[0\]: must have the shape \(rows, \*\(3, 3\)\)"),
    ],
)  # fmt: skip
def test_call_errors(options: dict, call: Callable, match: str) -> None:
    product = tpgen.TensorProduct(*MIXED, **options)
    x, y = torch.randn(4, product.irreps_in1.dim), torch.randn(4, product.irreps_in2.dim)
    with pytest.raises(InputError, match=match):
        product(*call(x, y))
    if "x" not in match.split(":")[0]:
        with pytest.raises(InputError, match=match):
            product.right(*call(x, y)[1:])


def test_batches_that_do_not_broadcast() -> None:
    product = tpgen.TensorProduct(*MIXED)
    with pytest.raises(InputError, match=r"must be equal or 1 to broadcast, got x \(4, 18\), y \(3, 22\), weight"):
        product(torch.randn(4, 18), torch.randn(3, 22))
    rows = tpgen.TensorProduct(*MIXED, shared_weights=False)
    with pytest.raises(InputError, match=r"\(3, 22\), weight \(4"):
        rows.right(torch.randn(3, 22), torch.randn(4, rows.weight_numel))


@pytest.mark.parametrize("weight", ["w", 3.0, {"w": 1}, [1.0] * 8])
def test_weights_that_are_no_tensors(weight: object) -> None:
    product = tpgen.TensorProduct(*MIXED)
    with pytest.raises(InputError, match="weight: must be a tensor, or a list of tensors, got"):
        product(torch.randn(4, 18), torch.randn(4, 22), weight)


def test_operands_that_are_no_tensors() -> None:
    product = tpgen.TensorProduct(*MIXED)
    with pytest.raises(InputError, match="y: must be a tensor, got list"):
        product(torch.randn(4, 18), [1.0])


def test_views_of_instructions_that_are_not_there() -> None:
    product = tpgen.TensorProduct(*MIXED)
    assert torch.equal(product.weight_view_for_instruction(-1), product.weight_view_for_instruction(10))
    for index in (11, -12):
        with pytest.raises(InputError, match=f"instruction {index} is out of range: this product has 11 instructions"):
            product.weight_view_for_instruction(index)


def test_weights_given_to_a_product_without() -> None:
    product = tpgen.FullTensorProduct("1o", "1o")
    with pytest.raises(InputError, match="no weighted path, so it takes no weights"):
        product(torch.randn(1, 3), torch.randn(1, 3), torch.randn(2))


def test_construction_errors() -> None:
    with pytest.raises(PlanError, match="internal weights are the same for every row: set shared_weights=True"):
        tpgen.TensorProduct(*MIXED, shared_weights=False, internal_weights=True)
    with pytest.raises(EmitError, match=r"unknown strategy 'best'; known strategies: einsum, .*auto"):
        tpgen.TensorProduct(*MIXED, strategy="best")
    with pytest.raises(EmitError, match=r"'ir':.*'ir_mul'.*mul_ir, ir_mul"):
        tpgen.TensorProduct(*MIXED, layout="ir")
    for make in (lambda **k: tpgen.FullTensorProduct("1o", "1o", **k), lambda **k: tpgen.TensorSquare("1o", **k)):
        with pytest.raises(PlanError, match="unknown irrep_normalization 'all'; known irrep_normalizations: component"):
            make(irrep_normalization="all")
    with pytest.raises(TpgenError, match="unknown option 'colour'; known options: internal_weights"):
        tpgen.TensorProduct(*MIXED, colour=1)


def test_the_deprecated_name_of_the_normalisation_still_works() -> None:
    with pytest.warns(DeprecationWarning, match="use irrep_normalization"):
        product = tpgen.TensorProduct(*MIXED, normalization="norm")
    assert product.plan.irrep_normalization == "norm"
