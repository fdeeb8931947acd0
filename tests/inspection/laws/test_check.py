"""A check passes what is right, fails what is wrong, and says why where it cannot tell."""

import json
import math

import pytest
import torch
from torch import Tensor

from tpgen.errors import EmitError, InputError, TpgenError
from tpgen.inspection.laws.check import FAILED, NOT_COMPARED, PASSED, CheckReport, check_module, check_product
from tpgen.inspection.laws.laws import E3NN_LACKS_RIGHT, LAWS, e3nn_product
from tpgen.nn.linear import Linear
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan, make_plan
from tpgen.planner.presets import elementwise, tensor_square

MIXED = make_plan(
    "3x0e+2x1o",
    "2x0e+1x1o",
    "3x0e+2x1e+2x1o",
    [(0, 0, 0, "uvw", True), (1, 1, 1, "uvu", True, 2.0), (1, 0, 2, "uvu", False)],
)
PER_ROW = make_plan(
    "2x1o+1x2e", "1x1o", "2x1e+1x1o", [(0, 0, 0, "uvu", True), (1, 0, 1, "uvw", True)], shared_weights=False
)


def test_a_linear_layer_is_sent_to_verify() -> None:
    with pytest.raises(TpgenError, match=r"give a tpgen TensorProduct, not Linear; .* and tpgen.verify checks it"):
        check_module(Linear("2x0e", "2x0e"))  # type: ignore[arg-type]


def failed(report: CheckReport) -> set[tuple[str, str]]:
    return {(f.law, f.part) for f in report.findings if f.status == FAILED}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("plan", [MIXED, PER_ROW])
def test_a_right_product_passes_in_every_dtype(plan: Plan, dtype: torch.dtype) -> None:
    report = check_product(plan, strategy="grouped", dtype=dtype)
    assert report.passed, str(report)
    assert {f.law for f in report.findings} == set(LAWS)
    assert all(f.status == PASSED for f in report.findings)


@pytest.mark.parametrize("layout", ["ir_mul", ("ir_mul", "mul_ir", "mul_ir"), ("mul_ir", "ir_mul", "ir_mul")])
@pytest.mark.parametrize("strategy", ["einsum", "unrolled"])
def test_layouts_and_strategies_are_checked_as_asked(layout, strategy: str) -> None:
    report = check_product(MIXED, layout, strategy, dtype=torch.float64)
    assert report.passed, str(report)
    assert report.strategy == strategy


def test_a_backend_is_checked_as_asked() -> None:
    report = check_product(MIXED, strategy="grouped", backend="script", rows=2)
    assert report.passed, str(report)
    assert report.backend == "script"


def test_a_product_without_paths_passes() -> None:
    assert check_product(make_plan("2x0e", "1o", "3x1o", []), dtype=torch.float64).passed


class Wrong(TensorProduct):
    """The product of MIXED, spoilt in one way."""

    def __init__(self, spoil) -> None:
        self._setup(MIXED, False, strategy="grouped")
        self.double()
        self.spoil = spoil

    def forward(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.spoil(super().forward(x, y, weight), x)


def turn_vectors(out: Tensor, x: Tensor) -> Tensor:
    """Exchange two components of the vectors: linear, but the directions are wrong."""
    return torch.cat([out[:, :3], out[:, 3:].unflatten(1, (-1, 3)).flip(-1).flatten(1)], dim=1)


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return 1.001 * g


@pytest.mark.parametrize(
    "spoil, laws",
    [
        (lambda out, x: 1.001 * out, {("definition", ""), ("e3nn", ""), ("right = forward", ""), ("gradient", "x1")}),
        (lambda out, x: out + 0.01 * x[:, :1] ** 2, {("linear", "x1"), ("gradient", "x1"), ("definition", "")}),
        (turn_vectors, {("equivariant", "rotations"), ("definition", "")}),
        (lambda out, x: out + 0.01, {("linear", "x2"), ("e3nn", "")}),
        (lambda out, x: NoGradient.apply(out), {("gradient", "x1"), ("gradient", "w"), ("second order", "x1")}),
        (lambda out, x: out.detach() + 0.0 * x.sum(), {("gradient", "x1"), ("second order", "w")}),
        (lambda out, x: out * math.nan, {("definition", ""), ("linear", "x1"), ("gradient", "x2")}),
        (lambda out, x: out[:, :-1], {("definition", ""), ("e3nn", "")}),
    ],
)
def test_a_wrong_product_fails(spoil, laws: set[tuple[str, str]]) -> None:
    report = check_module(Wrong(spoil))
    assert not report.passed
    # a law that the product breaks down under fails as a whole
    assert all((law, part) in failed(report) or (law, "") in failed(report) for law, part in laws), str(report)


def test_wrong_gradients_alone_are_seen() -> None:
    report = check_module(Wrong(lambda out, x: NoGradient.apply(out)))
    assert report.finding("definition").status == PASSED
    assert report.finding("gradient", "x1").relative == pytest.approx(1e-3, rel=1e-3)


def test_a_product_that_breaks_down_fails_with_its_message() -> None:
    def break_down(out: Tensor, x: Tensor) -> Tensor:
        raise RuntimeError("out of luck\nlong story")

    finding = check_module(Wrong(break_down)).finding("definition")
    assert (finding.status, finding.why) == (FAILED, "RuntimeError: out of luck")


def test_what_e3nn_lacks_is_said_and_true() -> None:
    plan = tensor_square("2x1o", irreps_out="2x0e+1e")
    report = check_product(plan, strategy="einsum", dtype=torch.float64)
    finding = report.finding("e3nn right")
    assert (finding.status, finding.why) == (NOT_COMPARED, "e3nn has no right for mode 'u<vw'")
    assert report.passed
    assert report.finding("right = forward").status == PASSED
    for mode, square in (("u<vw", plan), ("uvu<v", tensor_square("2x1o"))):
        assert mode in E3NN_LACKS_RIGHT
        with pytest.raises(NotImplementedError):
            e3nn_product(square, compile_right=True)


def test_a_product_without_weights_says_so() -> None:
    report = check_product(elementwise("2x1o", "2x1o"), strategy="einsum")
    assert report.finding("gradient", "w").why == "the product has no weights"
    assert "3 not compared" in str(report)


# Dynamo looks at the .grad of every input, and hides the warning except where warnings are errors
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_second_order_is_compared_under_torch_compile_too() -> None:
    plan = make_plan("2x1o", "1o", "2x1e", [(0, 0, 0, "uvu", True)])
    report = check_product(plan, strategy="einsum", backend="aot_eager", rows=2)
    assert report.passed, str(report)
    assert report.finding("second order", "x1").status == PASSED


def test_the_report_prints_and_is_strict_json() -> None:
    report = check_module(Wrong(lambda out, x: out * math.nan))
    assert "failed" in str(report)
    assert str(report).startswith(
        "3x0e+2x1o x 2x0e+1x1o -> 3x0e+2x1e+2x1o: grouped, eager, mul_ir, float64, cpu, 8 rows"
    )
    fields = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert fields["passed"] is False
    assert fields["findings"][0]["absolute"] == "nan"


def test_progress_names_each_law() -> None:
    seen: list[str] = []
    check_product(PER_ROW, strategy="einsum", progress=seen.append)
    assert seen == list(LAWS)


def test_rows_and_dtype_are_checked() -> None:
    with pytest.raises(InputError, match="rows: a check needs one row at least, got 0"):
        check_product(MIXED, rows=0)
    with pytest.raises(InputError, match=r"unknown dtype 'torch.float8_e5m2'.*; known dtypes: torch.float64"):
        check_product(MIXED, strategy="einsum", dtype=torch.float8_e5m2)
    with pytest.raises(EmitError, match="unknown strategy 'best'"):
        check_product(MIXED, strategy="best")
