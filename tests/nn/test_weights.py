"""Weights of a product: views of them, lists of them, and given ones in the place of its own."""

from __future__ import annotations

import pytest
import torch

import tpgen
from tests.cases import MIXED
from tpgen.base.errors import InputError


def test_weight_views_skip_unweighted_instructions() -> None:
    product = tpgen.TensorProduct(*MIXED)
    start = 0
    for index, instruction in enumerate(product.instructions):
        if not instruction.has_weight:
            with pytest.raises(InputError, match=rf"instruction {index} \(.*unweighted\) has no weights to view"):
                product.weight_view_for_instruction(index)
            continue
        view = product.weight_view_for_instruction(index)
        assert view.shape == instruction.path_shape
        assert torch.equal(view.flatten(), product.weight[start : start + view.numel()])
        start += view.numel()
    assert start == product.weight_numel


def test_a_weight_view_is_a_view_of_what_its_path_uses() -> None:
    product = tpgen.TensorProduct(*MIXED)
    x, y = torch.randn(4, product.irreps_in1.dim), torch.randn(4, product.irreps_in2.dim)
    before = product(x, y)
    with torch.no_grad():
        product.weight_view_for_instruction(10).zero_()
    changed = (product(x, y) - before).abs().amax(0) > 0
    segment = product.irreps_out.slices()[MIXED[3][10][2]]
    assert changed[segment].all()
    assert not changed[: segment.start].any()
    assert not changed[segment.stop :].any()


def test_weight_views_with_a_batch() -> None:
    product = tpgen.TensorProduct(*MIXED, shared_weights=False)
    weight = torch.randn(2, 5, product.weight_numel)
    views = list(product.weight_views(weight, yield_instruction=True))
    assert [index for index, _, _ in views] == [n for n, i in enumerate(product.instructions) if i.has_weight]
    for _, instruction, view in views:
        assert view.shape == (2, 5, *instruction.path_shape)
    assert torch.equal(torch.cat([v.flatten(2) for v in product.weight_views(weight)], dim=-1), weight)


@pytest.mark.parametrize("shared", [True, False])
def test_weights_as_a_list(shared: bool) -> None:
    product = tpgen.TensorProduct(*MIXED, shared_weights=shared, internal_weights=False)
    flat = torch.randn(product.weight_numel) if shared else torch.randn(4, product.weight_numel)
    x, y = torch.randn(4, product.irreps_in1.dim), torch.randn(4, product.irreps_in2.dim)
    pieces = list(product.weight_views(flat))
    assert torch.equal(product(x, y, pieces), product(x, y, flat))
    assert torch.equal(product.right(y, pieces), product.right(y, flat))


def test_given_weights_take_the_place_of_internal_ones() -> None:
    product = tpgen.TensorProduct(*MIXED)
    x, y = torch.randn(4, product.irreps_in1.dim), torch.randn(4, product.irreps_in2.dim)
    assert torch.equal(product(x, y, product.weight), product(x, y))
    assert (
        product(x, y, torch.zeros_like(product.weight))[:, :3]
        .eq(product(x, y, torch.zeros(product.weight_numel))[:, :3])
        .all()
    )
