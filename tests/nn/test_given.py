"""What stands in the place of numbers: one rule for products, layers, polynomials, functions and converted modules."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tpgen.base.errors import InputError
from tpgen.functions.bessel import CutBessel, cut_bessel
from tpgen.functions.gate import gate, make_gate_table
from tpgen.kernels.runtime.ops import describe, kernel_conv, kernel_layer, kernel_polynomial, kernel_product
from tpgen.kernels.runtime.polynomials import forward_call
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.presets import channelwise, fully_connected

INDEX, EDGES = torch.tensor([0, 1, 1, 0, 2]), (torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1, 1, 0, 2, 4]))
PLAN, MIXING = channelwise("4x0e + 4x1o", "0e + 1o", "4x0e + 4x1o"), fully_connected("4x0e + 2x1o", "3x0e", "2x0e")
LAYER = make_linear_plan("2x0e", "3x0e", shared_weights="element")
Door = tuple[Callable[..., Any], tuple[int, ...]]  # a function of tensors of five rows, and the lengths of their rows


def double(module: nn.Module) -> nn.Module:
    return module.double()


def contraction() -> Door:
    module = double(tpgen.SymmetricContraction("2x0e + 2x1o", "2x0e + 2x1o", 2, num_elements=3))
    return lambda x: module(x.reshape(5, 2, 4) if isinstance(x, Tensor) else x, INDEX), (8,)


def polynomial() -> Door:
    plan = tpgen.SymmetricContraction("2x0e + 2x1o", "2x0e", 2).plan
    module = tpgen.Polynomial.from_plan(plan, 2).double()
    return lambda x: module(x.reshape(5, 2, 4) if isinstance(x, Tensor) else x), (8,)


def weights(plan: Any) -> Tensor:
    return torch.linspace(-1, 1, plan.weight_numel, dtype=torch.float64)


def product_kernel() -> Door:
    return lambda x, y: kernel_product(x, y, weights(MIXING), describe(MIXING)), (10, 3)


def conv_kernel() -> Door:
    w = weights(PLAN).expand(5, -1)
    return lambda x, y: kernel_conv(x, y, w, *EDGES, 5, describe(PLAN)), (16, 4)


def layer_kernel() -> Door:
    w = torch.linspace(-1, 1, 18, dtype=torch.float64).reshape(3, 6)
    return lambda x: kernel_layer(x, w, INDEX, describe(LAYER)), (2,)


def converted(stock: nn.Module, *dims: int) -> Door:
    return double(tpgen.convert(nn.Sequential(copy.deepcopy(stock)))[0]), dims


def right() -> Door:
    module = double(tpgen.TensorProduct.from_plan(MIXING))
    return module.right, (3,)


def conv(**options: Any) -> Door:
    module = double(tpgen.TensorProductConv.from_plan(PLAN, **options))
    return lambda x, y: module(x, y, weights(PLAN).expand(5, -1), *EDGES), (16, 4)


def gates() -> Door:
    table = make_gate_table([("tanh", 1.5, 0, 0, 0), ("sigmoid", 1.0, 1, 2, 3)])
    return lambda x: gate(table, x), (5,)


DOORS: dict[str, Callable[[], Door]] = {
    "product": lambda: (double(tpgen.TensorProduct.from_plan(MIXING)), (10, 3)),
    "product, grouped": lambda: (double(tpgen.TensorProduct.from_plan(MIXING, strategy="grouped")), (10, 3)),
    "right": right,
    "square": lambda: (double(tpgen.TensorSquare("3x0e + 2x1o")), (9,)),
    "convolution": conv,
    "convolution, grouped": lambda: conv(strategy="grouped"),
    "layer": lambda: (double(tpgen.Linear("4x0e + 2x1o", "3x0e", biases=True)), (10,)),
    "layer, grouped": lambda: (double(tpgen.Linear("4x0e + 2x1o", "3x0e", strategy="grouped")), (10,)),
    "contraction": contraction,
    "polynomial": polynomial,
    "converted product": lambda: converted(o3.TensorProduct("4x0e", "4x1o", "4x1o", [(0, 0, 0, "uuu", True)]), 4, 12),
    "converted by species": lambda: converted(o3.FullyConnectedTensorProduct("4x0e + 2x1o", "3x0e", "2x0e"), 10, 3),
    "converted elementwise": lambda: converted(o3.ElementwiseTensorProduct("4x0e", "4x1o"), 4, 12),
    "converted full": lambda: converted(o3.FullTensorProduct("2x0e", "1o"), 2, 3),
    "converted square": lambda: converted(o3.TensorSquare("3x0e + 2x1o"), 9),
    "converted layer": lambda: converted(o3.Linear("4x0e + 2x1o", "3x0e"), 10),
    "converted gate": lambda: converted(e3nn_nn.Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o"), 12),
    "converted harmonics": lambda: converted(o3.SphericalHarmonics([0, 1, 2], False), 3),
    "gate": gates,
    "bessel": lambda: (lambda r: cut_bessel(r, torch.ones(3, dtype=torch.float64), CutBessel(1.0, 9.0, 6))[0], (1,)),
    "kernel_product": product_kernel,
    "kernel_conv": conv_kernel,
    "kernel_layer": layer_kernel,
}
WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "int64": lambda x: (3 * x).long() + 1,
    "int32": lambda x: (3 * x).int() + 1,
    "bool": lambda x: x > 0,
}
NONE: dict[str, Callable[[Tensor], Any]] = {"array": lambda x: x.numpy(), "list": lambda x: x.tolist()}


@pytest.fixture(autouse=True)
def in_double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def operands(dims: tuple[int, ...]) -> list[Tensor]:
    return [torch.rand(5, dim) * 2 - 0.7 for dim in dims]


@needs_compiler
@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("door", DOORS)
def test_integers_and_booleans_are_numbers(door: str, kind: str) -> None:
    call, dims = DOORS[door]()
    given = [WHOLE[kind](x) for x in operands(dims)]
    exact = [x.double() for x in given]
    wanted = call(*exact)
    assert wanted.dtype == torch.float64
    for place in range(len(dims)):  # one of them, and then all
        mixed = [given[n] if n <= place else x for n, x in enumerate(exact)]
        torch.testing.assert_close(call(*mixed), wanted, equal_nan=True)


@needs_compiler
@pytest.mark.parametrize("kind", NONE)
@pytest.mark.parametrize("door", DOORS)
def test_what_is_no_tensor_is_named(door: str, kind: str) -> None:
    call, dims = DOORS[door]()
    given = operands(dims)
    for place in range(len(dims)):
        wrong = [NONE[kind](x) if n == place else x for n, x in enumerate(given)]
        name = {"array": "ndarray", "list": "list"}[kind]
        with pytest.raises(InputError, match=rf"\w+: must be a tensor, got {name}; make one with torch.as_tensor"):
            call(*wrong)


def test_other_floating_dtypes_are_refused_by_modules() -> None:
    for door in ("product", "layer", "contraction", "converted layer", "convolution"):
        call, dims = DOORS[door]()
        with pytest.raises(InputError, match="float32"):
            call(*(x.float() for x in operands(dims)))


def test_weights_are_numbers_too() -> None:
    product = tpgen.TensorProduct.from_plan(MIXING, internal_weights=False, strategy="grouped").double()
    x, y = operands((10, 3))
    w = torch.arange(product.weight_numel)
    torch.testing.assert_close(product(x, y, w), product(x, y, w.double()))


@needs_compiler
def test_tensors_of_a_polynomial() -> None:
    plan = tpgen.SymmetricContraction("2x0e + 2x1o", "2x0e", 2).plan
    w = [torch.rand(1, o.dim, 2) for o in plan.weights]
    x, call = torch.randint(-3, 3, (5, 2, 4)), str(forward_call(plan))
    found = kernel_polynomial([x, *w], None, plan.to_json(), call)
    torch.testing.assert_close(found, kernel_polynomial([x.double(), *w], None, plan.to_json(), call))
    with pytest.raises(InputError, match=r"tensors\[0\]: must be a tensor, got ndarray"):
        kernel_polynomial([x.double().numpy(), *w], None, plan.to_json(), call)
