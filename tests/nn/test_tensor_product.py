"""The modules against e3nn's: attributes, values, gradients, shapes, scripts."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

import tpgen
from tests.cases import CASES, LAYOUTS, MIXED, STRATEGIES, Case, assert_close, operands, random_arguments
from tests.nn.modules import FIVE, inputs
from tpgen.base._e3nn import default_dtype
from tpgen.base.errors import TpgenError
from tpgen.compiler.backends import script_module
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.presets import channelwise


@pytest.mark.parametrize("name", FIVE)
def test_drop_in(name: str) -> None:
    """Same attributes, same random start, same state_dict, same values and gradients as e3nn's class."""
    with default_dtype(torch.float64):
        torch.manual_seed(3)
        theirs = FIVE[name](o3)
        torch.manual_seed(3)
        mine = FIVE[name](tpgen)
        for attribute in (
            "irreps_in1",
            "irreps_in2",
            "irreps_out",
            "weight_numel",
            "shared_weights",
            "internal_weights",
        ):
            assert getattr(mine, attribute) == getattr(theirs, attribute), attribute
        assert hasattr(mine, "irreps_in") == hasattr(theirs, "irreps_in")
        assert type(mine.irreps_in1) is o3.Irreps
        assert repr(mine) == repr(theirs)
        assert torch.equal(mine.output_mask, theirs.output_mask)
        assert torch.equal(mine.weight, theirs.weight)
        assert type(mine.weight) is type(theirs.weight)
        assert [tuple(i[:5]) for i in mine.instructions] == [tuple(i[:5]) for i in theirs.instructions]
        assert [i.path_shape for i in mine.instructions] == [tuple(i.path_shape) for i in theirs.instructions]

        given = [x.requires_grad_() for x in inputs(theirs)]
        out, want = mine(*given), theirs(*given)
        assert_close(out, want)
        g = torch.randn_like(want)
        leaves = [x for x in given if x.numel() > 0]
        if leaves and want.numel() > 0 and want.requires_grad:
            for got, expected in zip(
                torch.autograd.grad(out, leaves, g, allow_unused=True),
                torch.autograd.grad(want, leaves, g, allow_unused=True),
                strict=True,
            ):
                assert_close(
                    got if got is not None else torch.zeros(()), expected if expected is not None else torch.zeros(())
                )

        assert set(mine.state_dict()) == {"weight", "output_mask"}
        other = FIVE[name](tpgen)
        other.load_state_dict(theirs.state_dict())
        assert_close(other(*given), want)


def test_random_products_equal_e3nns() -> None:
    with default_dtype(torch.float64):
        for seed in range(15):
            arguments, keywords = random_arguments(1000 + seed)
            theirs = o3.TensorProduct(*arguments, **keywords)
            mine = tpgen.TensorProduct(*arguments, **keywords, strategy="einsum")
            mine.load_state_dict(theirs.state_dict())
            given = inputs(theirs)
            assert_close(mine(*given), theirs(*given))
            assert torch.equal(mine.output_mask, theirs.output_mask)


@pytest.mark.parametrize("case", [c for c in CASES if "<" not in c.mode], ids=str)
def test_right_equals_e3nns(case: Case) -> None:
    plan = case.plan
    with default_dtype(torch.float64):
        theirs = o3.TensorProduct(
            plan.irreps_in1,
            plan.irreps_in2,
            plan.irreps_out,
            [tuple(i[:6]) for i in plan.instructions],
            shared_weights=case.shared,
            internal_weights=False,
            compile_right=True,
        )
        mine = TensorProduct.from_plan(plan, internal_weights=False, strategy="einsum")
        _, y, w = operands(plan).values()
        w = w if case.weighted else w.new_zeros(0)
        args = (y, w) if case.weighted else (y,)
        assert_close(mine.right(*args), theirs.right(*args))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_right_is_forward(case: Case, layout: Any) -> None:
    product = TensorProduct.from_plan(case.plan, internal_weights=False, strategy="grouped", layout=layout).double()
    x, y, w = operands(case.plan).values()
    args = (w,) if case.weighted else ()
    matrix = product.right(y, *args)
    assert matrix.shape == (x.shape[0], case.plan.irreps_in1.dim, case.plan.irreps_out.dim)
    assert_close(torch.einsum("zi,zik->zk", x, matrix), product(x, y, *args))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES[::2], ids=str)
def test_bilinear(case: Case, strategy: str) -> None:
    product = TensorProduct.from_plan(case.plan, internal_weights=False, strategy=strategy).double()
    (x, y, w), (x2, y2, w2) = operands(case.plan).values(), operands(case.plan).values()
    a, b = 0.3, -1.7

    def f(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return product(x, y, w) if case.weighted else product(x, y)

    assert_close(f(a * x + b * x2, y, w), a * f(x, y, w) + b * f(x2, y, w))
    assert_close(f(x, a * y + b * y2, w), a * f(x, y, w) + b * f(x, y2, w))
    if case.weighted and all(i.has_weight for i in case.plan.instructions):
        assert_close(f(x, y, a * w + b * w2), a * f(x, y, w) + b * f(x, y, w2))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equivariant(case: Case) -> None:
    product = TensorProduct.from_plan(case.plan, internal_weights=False, strategy="unrolled").double()
    x, y, w = operands(case.plan).values()
    args = (w,) if case.weighted else ()
    with default_dtype(torch.float64):
        for parity in (0, 1):
            rotation = o3.rand_matrix() * (-1) ** parity
            d1, d2, d3 = (
                i.D_from_matrix(rotation) for i in (product.irreps_in1, product.irreps_in2, product.irreps_out)
            )
            assert_close(product(x @ d1.T, y @ d2.T, *args), product(x, y, *args) @ d3.T, 1e-11)


def test_outputs_have_the_variance_that_normalisation_promises() -> None:
    product = tpgen.FullyConnectedTensorProduct("16x0e + 16x1o", "8x0e + 8x1o", "64x0e + 64x1o", internal_weights=False)
    x, y = torch.randn(500, 64), torch.randn(500, 32)
    out = torch.cat([product(x, y, torch.randn(product.weight_numel)) for _ in range(3)])
    assert out.pow(2).mean(0).mean().item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("make", ["product", "product-rows"])
def test_batch_dimensions_broadcast_as_in_e3nn(make: str, strategy: str) -> None:
    with default_dtype(torch.float64):
        theirs = FIVE[make](o3)
        mine = tpgen.TensorProduct(*MIXED, shared_weights=theirs.shared_weights, strategy=strategy)
        mine.load_state_dict(theirs.state_dict())
        for batch1, batch2 in [
            ((2, 1, 0, 1, 4), (1, 2, 0, 3, 4)),
            ((2, 1, 3), (1, 4, 3)),
            ((5,), (1,)),
            ((), ()),
            ((0,), (0,)),
        ]:
            if not theirs.shared_weights and not batch1:
                continue
            x, y = torch.randn(*batch1, theirs.irreps_in1.dim), torch.randn(*batch2, theirs.irreps_in2.dim)
            w = () if theirs.shared_weights else (torch.randn(*batch1, theirs.weight_numel),)
            out = mine(x, y, *w)
            assert out.shape == (*torch.broadcast_shapes(batch1, batch2), theirs.irreps_out.dim)
            assert_close(out, theirs(x, y, *w))


def test_outputs_that_no_path_reaches_are_zero() -> None:
    product = tpgen.TensorProduct("2x0e", "1x0e", "3x1o + 2x0e + 2x0e", [(0, 0, 1, "uvu", True)])
    out = product(torch.randn(4, 2), torch.randn(4, 1))
    assert out[:, :9].eq(0).all()
    assert out[:, 11:].eq(0).all()
    assert product.output_mask.tolist() == [0.0] * 9 + [1.0] * 2 + [0.0] * 2


@pytest.mark.parametrize("strategy", [*STRATEGIES, "kernel", "auto"])
@pytest.mark.parametrize("irreps", [("", "", ""), ("0x0e", "1o", "0x1o"), ("2x1o", "", "1x0e"), ("1o", "1o", "")])
def test_empty_irreps(irreps: tuple[str, str, str], strategy: str) -> None:
    product = tpgen.FullyConnectedTensorProduct(*irreps, strategy=strategy)
    x, y = torch.randn(3, product.irreps_in1.dim), torch.randn(3, product.irreps_in2.dim)
    assert product(x, y).shape == (3, product.irreps_out.dim)
    assert product.right(y).shape == (3, product.irreps_in1.dim, product.irreps_out.dim)
    assert product(x, y).eq(0).all()


@pytest.mark.parametrize("name", ["product", "product-rows", "elementwise", "square-connected", "empty"])
def test_torchscript(name: str) -> None:
    product = FIVE[name](tpgen)
    file = io.BytesIO()
    torch.jit.save(script_module(product), file)
    file.seek(0)
    loaded = torch.jit.load(file)
    for batch in [(4,), (2, 3), (0,)]:
        given = inputs(product, batch, torch.float32)
        assert_close(loaded(*given), product(*given), 1e-6)
        y = given[0] if hasattr(product, "irreps_in") else given[1]
        weights = given[2:] if not hasattr(product, "irreps_in") else given[1:]
        assert_close(loaded.right(y, *weights), product.right(y, *weights), 1e-6)


def test_a_network_of_products_scripts() -> None:
    network = nn.Sequential()
    network.add_module("square", tpgen.TensorSquare("3x0e + 2x1o", "2x0e + 1x1o"))
    x = torch.randn(4, 9)
    assert_close(script_module(network)(x), network(x), 1e-6)


def test_scripted_products_check_their_weights() -> None:
    scripted = script_module(tpgen.TensorProduct(*MIXED, shared_weights=False))
    x, y = torch.randn(4, 18), torch.randn(4, 22)
    with pytest.raises(Exception, match="give weight"):
        scripted(x, y)
    with pytest.raises(Exception, match="wrong number of entries"):
        scripted(x, y, torch.randn(4, 3))


def test_products_of_a_plan() -> None:
    plan = channelwise("4x0e + 4x1o", "0e + 1o", "0e + 1o")
    product = TensorProduct.from_plan(plan)
    assert product.plan is plan
    assert not product.internal_weights
    assert not product.shared_weights


def test_auto_says_what_it_chose_and_why() -> None:
    product = tpgen.TensorProduct(*MIXED)
    assert product.choice.strategy in STRATEGIES or product.choice.strategy
    assert "(" in str(product.choice)
    assert str(tpgen.TensorProduct(*MIXED, strategy="einsum").choice) == "einsum (asked for)"


@pytest.mark.parametrize("name", FIVE)
def test_visualize(name: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    product = FIVE[name](tpgen)
    figure, axes = product.visualize()
    assert figure is axes.get_figure()
    if not product.internal_weights and product.weight_numel:
        rows = () if product.shared_weights else (3,)
        product.visualize(weight=torch.randn(*rows, product.weight_numel))
    figure, given = plt.subplots()
    assert product.visualize(plot_weight=False, aspect_ratio="auto", ax=given) == (figure, given)
    labels = [text.get_text() for text in given.texts]
    assert len(labels) == len(product.irreps_in1) + len(product.irreps_in2) + len(product.irreps_out)
    rounded = tpgen.TensorProduct(*MIXED).bfloat16()
    rounded.visualize()
    torch.nn.init.zeros_(rounded.weight)
    rounded.visualize()  # no colour where there is nothing to compare
    with pytest.raises(TpgenError, match=r"aspect_ratio.*'auto'"):
        rounded.visualize(aspect_ratio="wide")
    plt.close("all")
