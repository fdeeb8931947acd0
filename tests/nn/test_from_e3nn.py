"""One of e3nn's products as tpgen's."""

from __future__ import annotations

import pytest
import torch
from e3nn import o3
from e3nn.util.jit import compile as e3nn_compile
from torch import nn

import tpgen
from tpgen.base.errors import OptionError, PlanError, TpgenError
from tpgen.nn.from_e3nn import from_e3nn
from tpgen.nn.products import FullyConnectedTensorProduct, TensorSquare
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.harmonics import make_harmonics_plan

GRAPHS = {"strategy": "grouped"}


@pytest.mark.parametrize("normalization", ["component", "norm", "none"])
def test_a_converted_product_computes_the_same(normalization: str) -> None:
    theirs = o3.FullyConnectedTensorProduct("3x0e+2x1o", "0e+1o", "2x0e+4x1o", irrep_normalization=normalization)
    ours = from_e3nn(theirs, **GRAPHS)
    x, y = torch.randn(5, 9), torch.randn(5, 4)
    torch.testing.assert_close(ours(x, y), theirs(x, y))
    assert ours.weight is theirs.weight


def test_a_square_stays_a_square() -> None:
    theirs = o3.TensorSquare("2x0e+1o", "3x0e+1o").double()
    ours = from_e3nn(theirs, **GRAPHS)
    assert isinstance(ours, TensorSquare)
    x = torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-12)


def test_scripting_by_e3nn_leaves_the_state_dict_alone() -> None:
    instructions = [(0, 0, 0, "uvu", True)]
    product = TensorProduct("3x1e", "3x1o", "3x2o", instructions, **GRAPHS)
    x, y = torch.randn(2, 9), torch.randn(2, 9)
    scripted = e3nn_compile(product)
    torch.testing.assert_close(scripted.right(y), product.right(y))
    assert set(product.state_dict()) == {"weight", "output_mask"}
    TensorProduct("3x1e", "3x1o", "3x2o", instructions).load_state_dict(product.state_dict())
    torch.testing.assert_close(scripted(x, y), product(x, y))


def test_only_products_are_taken_over() -> None:
    with pytest.raises(TpgenError, match=r"takes an e3nn.o3.TensorProduct or one of its subclasses, got Linear"):
        from_e3nn(nn.Linear(2, 2))


@pytest.mark.parametrize("make", [lambda **o: TensorProduct("0e", "0e", "0e", [(0, 0, 0, "uuu", False)], **o),
                                  lambda **o: FullyConnectedTensorProduct("0e", "0e", "0e", **o)])  # fmt: skip
def test_an_unknown_option_lists_the_known_ones(make) -> None:
    with pytest.raises(OptionError, match=r"'layuot':.*'layout'.*internal_weights"):
        make(layuot="mul_ir")
    with pytest.raises(TypeError):
        make(layuot="mul_ir")


@pytest.mark.parametrize(
    "cls, maker",
    [
        (tpgen.TensorProduct, "tpgen.make_plan"),
        (tpgen.TensorProductConv, "tpgen.make_plan"),
        (tpgen.Linear, "make_linear_plan"),
    ],
)
def test_from_plan_takes_plans(cls, maker: str) -> None:
    with pytest.raises(PlanError, match=f"from_plan takes a Plan as {maker} makes it, got int"):
        cls.from_plan(3)
    with pytest.raises(PlanError, match=r"makes it, got tpgen.polynomial/1"):
        cls.from_plan(make_harmonics_plan("1o", [1], "norm"))
