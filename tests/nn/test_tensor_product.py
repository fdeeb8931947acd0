"""The modules against e3nn's: attributes, values, gradients, state, and every call error."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

import tpgen
from tests.cases import CASES, LAYOUTS, MIXED, STRATEGIES, Case, assert_close, operands, random_arguments
from tpgen._e3nn import default_dtype
from tpgen.compiler.backends import script
from tpgen.errors import EmitError, InputError, PlanError, TpgenError
from tpgen.form.reference import reference_product
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import make_plan
from tpgen.planner.presets import channelwise

IN1, IN2, OUT = "3x0e + 2x1o + 1x2e", "2x1o + 1x0e + 1x2e", "2x0e + 3x1o + 1x1e + 2x2e + 1x0o"

# the five classes: how to construct them, for e3nn's module and for tpgen's alike
FIVE: dict[str, Callable[[Any], Any]] = {
    "product": lambda o: o.TensorProduct(*MIXED),
    "product-rows": lambda o: o.TensorProduct(*MIXED, shared_weights=False),
    "product-norm": lambda o: o.TensorProduct(*MIXED, irrep_normalization="norm", path_normalization="path"),
    "product-external": lambda o: o.TensorProduct(*MIXED, internal_weights=False),
    "connected": lambda o: o.FullyConnectedTensorProduct(IN1, IN2, OUT),
    "connected-rows": lambda o: o.FullyConnectedTensorProduct(IN1, IN2, OUT, shared_weights=False),
    "connected-norm": lambda o: o.FullyConnectedTensorProduct(IN1, IN2, OUT, "norm", "path"),
    "elementwise": lambda o: o.ElementwiseTensorProduct("3x0e + 2x1o", "2x1o + 3x0e", ["0e", "1o"]),
    "full": lambda o: o.FullTensorProduct(IN1, IN2, irrep_normalization="norm"),
    "square": lambda o: o.TensorSquare("3x0e + 2x1o"),
    "square-filter": lambda o: o.TensorSquare("3x0e + 2x1o", filter_ir_out=["0e", "2e"]),
    "square-connected": lambda o: o.TensorSquare("3x0e + 2x1o", "2x0e + 1x1o + 2x2e"),
    "empty": lambda o: o.FullyConnectedTensorProduct("0x0e", "1o", "2x1o"),
}


def inputs(product: Any, batch: tuple[int, ...] = (4,), dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Operands of a call: one tensor for a square, two otherwise, and weights where the product has none of its own."""
    given = [torch.randn(*batch, product.irreps_in1.dim, dtype=dtype)]
    if not hasattr(product, "irreps_in"):
        given.append(torch.randn(*batch, product.irreps_in2.dim, dtype=dtype))
    if product.weight_numel > 0 and not product.internal_weights:
        rows = () if product.shared_weights else batch
        given.append(torch.randn(*rows, product.weight_numel, dtype=dtype))
    return given


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


# --- shapes -----------------------------------------------------------------------------------------------------------


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


# --- weights ----------------------------------------------------------------------------------------------------------


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
        ({}, lambda x, y: (x.int(), y), r"x: the product is float32 but x is int32"),
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
    with pytest.raises(InputError, match=r"to broadcast, got y \(3, 22\), weight \(4, "):
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


def test_integers_are_not_a_dtype_to_move_a_product_to() -> None:
    product = tpgen.TensorProduct(*MIXED)
    with pytest.raises(InputError, match=r"x is int32; convert: x.to\(torch.float32\)$"):
        product(torch.ones(4, 18, dtype=torch.int32), torch.randn(4, 22))


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
    with pytest.raises(EmitError, match=r"unknown layout 'ir': did you mean 'ir_mul'\?; known layouts: mul_ir, ir_mul"):
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


# --- state ------------------------------------------------------------------------------------------------------------


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


def saved(product: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(product, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p)), saved], ids=["deepcopy", "pickle", "save"]
)
@pytest.mark.parametrize("name", FIVE)
def test_copies(name: str, again: Callable) -> None:
    product = FIVE[name](tpgen).double()
    given = inputs(product)
    want = product(*given)
    other = again(product)
    assert type(other) is type(product)
    assert repr(other) == repr(product)
    assert torch.equal(other(*given), want)
    assert [i for i, _ in other.named_parameters()] == [i for i, _ in product.named_parameters()]
    if other.weight.numel():
        with torch.no_grad():
            other.weight.zero_()
        assert not product.weight.eq(0).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_copy_of_a_compiled_module_runs_its_own_weights(strategy: str) -> None:
    product = tpgen.TensorProduct(*MIXED, strategy=strategy).double()
    given = inputs(product)
    product.compile(backend="aot_eager")
    product(*given)
    for other in (copy.deepcopy(product), pickle.loads(pickle.dumps(product))):
        with torch.no_grad():
            other.weight.mul_(2.0)
        assert_close(other(*given), product(*given, other.weight))


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


# --- dtypes -----------------------------------------------------------------------------------------------------------


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


# --- deployment -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["product", "product-rows", "elementwise", "square-connected", "empty"])
def test_torchscript(name: str) -> None:
    product = FIVE[name](tpgen)
    file = io.BytesIO()
    torch.jit.save(script(product), file)
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
    assert_close(script(network)(x), network(x), 1e-6)


def test_scripted_products_check_their_weights() -> None:
    scripted = script(tpgen.TensorProduct(*MIXED, shared_weights=False))
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


# --- drawing ----------------------------------------------------------------------------------------------------------


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
    plt.close("all")
