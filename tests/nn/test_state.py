"""States, copies and pickles of products, and other dtypes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import nn

import tpgen
from tests.cases import MIXED, STRATEGIES, assert_close
from tests.nn.modules import IN1, IN2, OUT, inputs
from tpgen.base.errors import InputError
from tpgen.form.reference import reference_product
from tpgen.planner.product import make_plan


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_state_loads_across_strategies_backends_and_dtypes(strategy: str) -> None:
    source = tpgen.TensorProduct(*MIXED, strategy="einsum").double()
    target = tpgen.TensorProduct(*MIXED, strategy=strategy, backend="aot_eager")
    target.load_state_dict(source.state_dict())
    assert torch.equal(target.weight, source.weight.float())
    target.load_state_dict(tpgen.TensorProduct(*MIXED, backend="script").bfloat16().state_dict())


def test_a_network_loads_the_checkpoint_of_its_e3nn_twin() -> None:
    def network(o: Any) -> nn.Module:
        return nn.ModuleDict(
            {"a": o.FullyConnectedTensorProduct(IN1, IN2, OUT), "b": nn.ModuleList([o.TensorSquare(OUT, "1o")])}
        )

    theirs, mine = network(o3), network(tpgen)
    mine.load_state_dict(theirs.state_dict())
    assert all(torch.equal(mine.state_dict()[name], theirs.state_dict()[name]) for name in mine.state_dict())
    with pytest.raises(RuntimeError, match="size mismatch"):
        mine["a"].load_state_dict({"weight": torch.zeros(3), "output_mask": theirs["a"].output_mask})


def test_a_pickle_holds_the_plan_and_no_program() -> None:
    product = tpgen.TensorProduct(*MIXED, strategy="unrolled", layout="ir_mul", compile_right=True)
    data = pickle.dumps(product)
    assert b"GraphModule" not in data
    assert b"einsum" not in data
    other = pickle.loads(data)
    assert (other.choice, other.layout, other.backend) == (product.choice, product.layout, product.backend)


def test_copies_keep_options_and_still_run_under_their_backend() -> None:
    product = tpgen.TensorProduct(*MIXED, backend="script", strategy="einsum").double()
    given = inputs(product)
    want = product(*given)
    other = pickle.loads(pickle.dumps(product))
    assert other.backend == "script"
    assert_close(other(*given), want)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_converting_to_float64_is_exact(strategy: str) -> None:
    product = tpgen.TensorProduct(*MIXED, strategy=strategy).bfloat16().float().double()
    plan = make_plan(*MIXED)
    x, y = torch.randn(4, plan.irreps_in1.dim).double(), torch.randn(4, plan.irreps_in2.dim).double()
    assert_close(product(x, y), reference_product(plan, x, y, product.weight))
    assert_close(product.right(y), product.double().right(y))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 1e-1)])
def test_lower_precision(strategy: str, dtype: torch.dtype, tolerance: float) -> None:
    product = tpgen.TensorProduct(*MIXED, strategy=strategy).to(dtype)
    x, y = (torch.randn(4, i.dim, dtype=dtype, requires_grad=True) for i in (product.irreps_in1, product.irreps_in2))
    out = product(x, y)
    out.sum().backward()
    assert out.dtype == x.grad.dtype == y.grad.dtype == product.weight.grad.dtype == dtype
    plan = make_plan(*MIXED)
    leaves = [t.detach().double().requires_grad_() for t in (x, y, product.weight)]
    want = reference_product(plan, *leaves)
    want.sum().backward()
    assert_close(out.double(), want, tolerance)
    for got, leaf in zip((x, y, product.weight), leaves, strict=True):
        assert_close(got.grad.double(), leaf.grad, tolerance)


def test_autocast_computes_in_the_widest_dtype_of_the_operands() -> None:
    product = tpgen.TensorProduct(*MIXED, shared_weights=False)
    x, y, w = inputs(product, dtype=torch.float32)
    want = product(x, y, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(product(x, y, w), want)  # nothing inside is rounded to bfloat16
        mixed = product(x.bfloat16(), y, w.bfloat16())
        assert mixed.dtype == torch.float32
        assert torch.equal(mixed, product(x.bfloat16().float(), y, w.bfloat16().float()))
        assert product.right(y, w).dtype == torch.float32
        assert product(x.bfloat16(), y.bfloat16(), w.bfloat16()).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False), pytest.raises(InputError, match="is bfloat16"):
        product(x.bfloat16(), y, w)


def test_autocast_in_a_network_and_back() -> None:
    linear, product = nn.Linear(18, 18), tpgen.TensorProduct(*MIXED)
    x, y = torch.randn(4, 18), torch.randn(4, 22)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = linear(x)
        assert hidden.dtype == torch.bfloat16
        product(hidden, y).sum().backward()
    assert linear.weight.grad is not None
    assert linear.weight.grad.isfinite().all()
