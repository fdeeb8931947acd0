"""Batch norms are the definition: widths around vectors, rows around parts, any number of threads, large means."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.machine import needs_compiler
from tpgen.base.errors import InputError
from tpgen.functions.batch_norm import NormalizedRows, NormTable, batch_norm, make_norm_table

pytestmark = needs_compiler

SCALAR, VECTOR, TENSOR = (1, True), (3, False), (5, False)
WIDTHS = {
    1: [SCALAR],
    3: [VECTOR],
    9: [SCALAR, TENSOR, VECTOR],
    16: [SCALAR] * 8 + [TENSOR, VECTOR],
    17: [TENSOR] + [SCALAR] * 9 + [VECTOR],
    32: [SCALAR] * 10 + [TENSOR] * 2 + [VECTOR] * 4,
    47: [SCALAR, VECTOR] * 5 + [(1, False)] * 2 + [TENSOR] * 5,
}
ROWS = [1, 2, 63, 64, 65, 129, 64 * 64, 64 * 64 + 1, 64 * 64 + 4097]


def definition(table: NormTable, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> NormalizedRows:
    mean = x.mean(0)[table.scalars]
    y = x.index_add(1, table.scalars, -mean.expand(len(x), -1))
    variance = x.new_zeros(len(weight)).index_add(0, table.copy, y.square().mean(0)) / table.divisor
    scale = (weight / (variance + eps).sqrt())[table.copy]
    return NormalizedRows((y * scale).index_add(1, table.scalars, bias.expand(len(x), -1)), mean, variance)


def given(table: NormTable, rows: int, dtype: torch.dtype) -> list[Tensor]:
    made = [
        2 * torch.randn(rows, len(table.copy), dtype=dtype) + 1,
        torch.rand(len(table.divisor), dtype=dtype) + 0.5,
        torch.randn(len(table.scalars), dtype=dtype),
    ]
    return [x.requires_grad_() for x in made]


def results(out: NormalizedRows, x: list[Tensor], second: bool = False) -> list[Tensor]:
    cotangent = torch.arange(out.rows.numel(), dtype=out.rows.dtype).cos().view_as(out.rows)
    first = torch.autograd.grad(out.rows, x, cotangent, create_graph=second)
    squares = torch.stack([g.square().sum() for g in first]).sum()
    return [*out, *first, *(torch.autograd.grad(squares, x[:2]) if second else ())]


@pytest.mark.parametrize("normalization", ["component", "norm"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_the_definition(width: int, rows: int, normalization: str) -> None:
    table = make_norm_table(WIDTHS[width], normalization)
    assert len(table.copy) == width
    x = given(table, rows, torch.float64)
    for one, other in zip(
        *(results(norm(table, *x, 1e-3), x, rows < 100) for norm in (batch_norm, definition)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_threads_change_no_bit() -> None:
    table = make_norm_table(WIDTHS[47], "component")
    x = given(table, 5000, torch.float32)
    threads = torch.get_num_threads()
    made = []
    try:
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            made.append(results(batch_norm(table, *x, 1e-5), x))
    finally:
        torch.set_num_threads(threads)
    for other in made[1:]:
        assert all(torch.equal(a, b) for a, b in zip(made[0], other, strict=True))


def test_many_cotangents_at_once() -> None:
    table = make_norm_table(WIDTHS[9], "component")
    x = given(table, 7, torch.float64)
    many = torch.randn(3, 7, 9, dtype=torch.float64)
    out = batch_norm(table, *x, 1e-3).rows
    found = torch.autograd.grad(out, x, many, is_grads_batched=True, retain_graph=True)
    assert not any(each.requires_grad for each in found)
    for n, one in enumerate(many):
        for each, wanted in zip(found, torch.autograd.grad(out, x, one, retain_graph=True), strict=True):
            torch.testing.assert_close(each[n], wanted)


def test_other_shapes_and_dtypes_are_refused() -> None:
    table = make_norm_table(WIDTHS[9], "component")
    x, weight, bias = given(table, 7, torch.float64)
    wrong = {
        "rows": [(x[:0], weight, bias), (x[:, :8], weight, bias), (x[0], weight, bias)],
        "weight": [(x, weight[:2], bias), (x, weight.float(), bias)],
        "bias": [(x, weight, weight), (x, weight, bias.float())],
    }
    for name, calls in wrong.items():
        for call in calls:
            with pytest.raises(InputError, match=f"{name}: the norm takes shape"):
                batch_norm(table, *call, 1e-3)


def test_small_variances_about_large_means() -> None:
    table = make_norm_table([SCALAR] * 4, "component")
    x = (torch.randn(3000, 4) * 1e-2 + 1000).requires_grad_()
    ones = torch.ones(4), torch.zeros(4)
    made, wanted = batch_norm(table, x, *ones, 0.0), definition(table, x.double(), *(t.double() for t in ones), 0.0)
    torch.testing.assert_close(made.variance.double(), wanted.variance, rtol=2e-3, atol=0)
    torch.testing.assert_close(made.rows.double(), wanted.rows, rtol=0, atol=2e-2)
