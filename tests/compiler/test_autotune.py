"""What ``auto`` takes where there is no compiler, and how it says so."""

from __future__ import annotations

import warnings

import pytest
import torch

from tpgen.compiler import autotune
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.presets import channelwise
from tpgen.planner.product import make_plan

PLAN = channelwise("4x0e+4x1o", "0e+1o", "0e+1o")


@pytest.fixture
def _without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPGEN_CXX", "none")
    autotune.warn_once_of_missing_kernels.cache_clear()


@pytest.mark.usefixtures("_without_compiler")
def test_graphs_are_taken_and_that_is_said_once_where_the_module_is_made() -> None:
    with pytest.warns(UserWarning, match="TPGEN_CXX=none forbids one: products run as fx graphs") as said:
        product = TensorProduct.from_plan(PLAN)
    assert [warning.filename for warning in said] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        conv = TensorProductConv.from_plan(PLAN).double()
    assert product.choice.strategy == conv.choice.strategy == "grouped"
    x, y, w = torch.randn(5, 16), torch.randn(5, 4), torch.randn(5, PLAN.weight_numel)
    assert product(x, y, w).shape == (5, PLAN.irreps_out.dim)


@pytest.mark.usefixtures("_without_compiler")
def test_a_strategy_by_name_is_taken_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TensorProduct.from_plan(PLAN, strategy="grouped").choice.reason == "asked for"


def test_a_product_without_paths_is_a_graph() -> None:
    assert TensorProduct.from_plan(make_plan("4x0e", "0e", "3x0e", [])).choice.strategy == "grouped"
