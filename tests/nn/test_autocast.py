"""Autocast of a CUDA device, asked of tensors without numbers: which dtype kernels are called with."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from tpgen.base.errors import InputError
from tpgen.nn.conv import TensorProductConv
from tpgen.nn.linear import Linear
from tpgen.nn.polynomial import Polynomial
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.presets import channelwise

PLAN = channelwise("8x0e+8x1o", "0e+1o", "0e+1o", shared_weights=False)
HALF, FLOAT = torch.float16, torch.float32


@pytest.fixture
def cuda() -> Iterator[Callable[[nn.Module], nn.Module]]:
    """Moves a module to a GPU that need not be there, where autocast is on."""

    def move(module: nn.Module) -> nn.Module:
        return module._apply(lambda x: torch.empty(x.shape, dtype=x.dtype, device="cuda"))

    with FakeTensorMode():
        torch.set_autocast_enabled("cuda", True)
        try:
            yield move
        finally:
            torch.set_autocast_enabled("cuda", False)


def rows(count: int, dim: int, dtype: torch.dtype = FLOAT) -> Tensor:
    return torch.empty(count, dim, dtype=dtype, device="cuda")


@pytest.mark.parametrize("strategy", ["kernel", "grouped"])
@pytest.mark.parametrize(
    "own, given, wanted", [(FLOAT, HALF, FLOAT), (FLOAT, torch.bfloat16, FLOAT), (torch.bfloat16, HALF, FLOAT)]
)
def test_products_and_convolutions_compute_in_the_widest_dtype(
    strategy: str, own: torch.dtype, given: torch.dtype, wanted: torch.dtype, cuda: Callable[..., nn.Module]
) -> None:
    edges = torch.zeros(5, dtype=torch.int64, device="cuda")
    for cls, more in ((TensorProduct, ()), (TensorProductConv, (edges, edges, 5))):
        module = cuda(cls.from_plan(PLAN, strategy=strategy).to(own))
        w = rows(5, module.weight_numel, own)
        for x, y in ((given, own), (given, given), (own, own)):
            found = module(rows(5, 32, x), rows(5, 4, y), w, *more)
            assert (found.dtype, found.device.type) == (own if x == y == own else wanted, "cuda")


def test_layers_and_polynomials_do_too(cuda: Callable[..., nn.Module]) -> None:
    layer = cuda(Linear("8x0e", "4x0e", strategy="kernel", internal_weights=False, shared_weights=True))
    weight = torch.empty(layer.weight_numel, device="cuda")
    assert layer(rows(5, 8, HALF), weight).dtype == FLOAT
    dot = cuda(Polynomial({"a": "4x1o"}, "4x0e", [("a", "a")], weights="none", strategy="kernel"))
    assert dot(rows(5, 12, HALF)).dtype == FLOAT
    assert dot(rows(5, 12)).dtype == FLOAT


def test_without_autocast_dtypes_must_agree(cuda: Callable[..., nn.Module]) -> None:
    product = cuda(TensorProduct.from_plan(PLAN, strategy="kernel"))
    operands = rows(5, 32, HALF), rows(5, 4), rows(5, product.weight_numel)
    torch.set_autocast_enabled("cuda", False)
    with pytest.raises(InputError, match=r"float32.*float16; convert: product.to"):
        product(*operands)
