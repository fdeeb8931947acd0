"""Every law holds for what is right; the report and the command say so."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import tpgen
from tests.machine import KERNEL
from tests.polynomials import PLANS as POLYNOMIALS
from tests.tools.verification.planted import OF_PRODUCTS
from tests.tools.verification.potentials import FAULTS, Pairs, inputs
from tests.tools.verification.products import PER_ROW, PLAN, Wrong, product
from tpgen.base.errors import InputError
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan import Plan
from tpgen.planner.presets import channelwise, elementwise, tensor_square
from tpgen.planner.product import make_plan
from tpgen.tools.cli import main
from tpgen.tools.verification.findings import NOT_COMPARED, PASSED
from tpgen.tools.verification.laws import E3NN_LACKS_RIGHT, build_e3nn_product
from tpgen.tools.verification.verify import LAWS, Verification, verify

RIGHT: dict[str, Callable[[str], nn.Module]] = {
    "product": product,
    "convolution": lambda s: tpgen.TensorProductConv.from_plan(channelwise("2x0e+2x1o", "0e+1o", "1o"), strategy=s),
    "linear layer": lambda s: tpgen.Linear("2x0e+2x1o", "3x0e+2x1o", biases=True, strategy=s),
    "layer with channels": lambda s: tpgen.Linear("2x0e+1o", "2x0e+1o", f_in=2, f_out=2, biases=True, strategy=s),
    "contraction": lambda s: tpgen.SymmetricContraction("2x0e+2x1o", "2x0e+2x1o", 2, num_elements=2, strategy=s),
    "contraction with given weights": lambda s: tpgen.SymmetricContraction(
        "2x0e+2x1o", "2x0e+2x1o", 2, num_elements=2, internal_weights=False, strategy=s
    ),
    "polynomial": lambda s: tpgen.Polynomial(
        {"x": "2x0e+2x1o", "y": "0e+1o"}, "2x0e+2x1o", [("x", "x", "y"), ("x",)], weights="given", strategy=s
    ),
}


@pytest.mark.parametrize("strategy", ["einsum", KERNEL])
@pytest.mark.parametrize("name", RIGHT)
def test_every_law_holds(name: str, strategy: str) -> None:
    report = verify(RIGHT[name](strategy), rows=4)
    assert report.passed, str(report)
    assert {"equivariant", "linear", "third order", "Hessian", "compiled", "saved"} <= {f.law for f in report.findings}
    assert all(f.status != NOT_COMPARED for f in report.findings), str(report)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_law_holds_of_a_potential(dtype: torch.dtype) -> None:
    report = verify(Pairs().to(dtype), inputs(dtype))
    assert report.passed, str(report)
    assert {f.law for f in report.findings} == set(LAWS) - OF_PRODUCTS
    assert set(report.not_compared) == {"stress", "images", "edges", "basis", "batch", "sum"}
    assert report.settings == "positions: points; forces: 1x1o"


OF_VALUES = ("definition", "e3nn", "right", "linear", "equivariant", "permutation", "second order")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("plan", [PLAN, PER_ROW])
def test_a_right_product_passes_in_every_dtype(plan: Plan, dtype: torch.dtype) -> None:
    report = verify(TensorProduct.from_plan(plan, False, strategy="grouped").to(dtype), only=OF_VALUES)
    assert all(f.status == PASSED for f in report.findings), str(report)


@pytest.mark.parametrize("layout", ["ir_mul", ("ir_mul", "mul_ir", "mul_ir"), ("mul_ir", "ir_mul", "ir_mul")])
@pytest.mark.parametrize("strategy", ["einsum", "unrolled"])
def test_layouts_and_strategies_are_verified_as_asked(layout, strategy: str) -> None:
    report = verify(product(strategy, layout=layout), only=OF_VALUES)
    assert report.passed, str(report)
    assert report.settings.startswith(strategy)


def test_a_product_without_paths_or_without_weights_passes() -> None:
    for plan in (make_plan("2x0e", "1o", "3x1o", []), elementwise("2x1o", "2x1o")):
        assert verify(plan, only=OF_VALUES).passed


def test_what_e3nn_lacks_is_said_and_true() -> None:
    plan = tensor_square("2x1o", irreps_out="2x0e+1e")
    report = verify(plan, only=["e3nn", "right"])
    finding = report.finding("e3nn", "right")
    assert (finding.status, finding.why) == (NOT_COMPARED, "e3nn has no right for mode 'u<vw'")
    assert report.finding("right").status == PASSED
    for mode, square in (("u<vw", plan), ("uvu<v", tensor_square("2x1o"))):
        assert mode in E3NN_LACKS_RIGHT
        with pytest.raises(NotImplementedError):
            build_e3nn_product(square, compile_right=True)


@pytest.mark.parametrize("strategy", ["einsum", "unrolled", KERNEL])
@pytest.mark.parametrize("elements", [None, 3])
@pytest.mark.parametrize("name", ["symmetric ir_mul", "mixed", "mixed unweighted"])
def test_plans_of_polynomials_pass(name: str, elements: int | None, strategy: str) -> None:
    plan = POLYNOMIALS[name]()
    if elements and not plan.weights:
        return
    module = tpgen.Polynomial.from_plan(plan, 2, num_elements=elements, internal_weights=False, strategy=strategy)
    report = verify(module, rows=4, only=["degree", *OF_VALUES])
    assert report.finding("definition").status == PASSED
    assert not report.failed, str(report)


def test_laws_of_a_polynomial_follow_its_degrees() -> None:
    report = verify(POLYNOMIALS["mixed"](), only=["linear", "degree"])
    assert {(f.law, f.part) for f in report.findings} == {
        ("linear", "b"),
        ("linear", "weights"),
        ("degree", "a"),
        ("degree", "y"),
    }
    assert "every law holds" in str(report)


def test_the_report_prints_and_is_strict_json() -> None:
    report = verify(Wrong(lambda out, x, y: out * float("nan")), only=["definition", "linear"])
    assert str(report).startswith(
        f"product {PLAN.irreps_in1} x {PLAN.irreps_in2} -> {PLAN.irreps_out}: BROKEN: definition, linear"
    )
    fields = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert fields["passed"] is False
    assert fields["failed"] == ["definition", "linear"]
    assert fields["findings"][0]["absolute"] == "nan"


def test_the_worst_of_each_law_is_shown() -> None:
    report = verify(product(), only=["linear"])
    (worst,) = report.worst()
    assert worst.relative == max(f.relative for f in report.findings)


def test_progress_names_the_laws() -> None:
    seen: list[str] = []
    verify(product(), only=["definition", "saved"], progress=seen.append)
    assert seen == ["definition", "saved"]


SINGLE = inputs(torch.float32)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: verify("article"), "give a torch.nn.Module or a plan, got a str"),
        (lambda: verify(Pairs()), r"Pairs is no module of tpgen's: give the arguments of a call, as in verify\(net"),
        (lambda: verify(Pairs(), torch.ones(3)), "inputs: give the arguments of a call as a tuple, got a Tensor"),
        (lambda: verify(nn.Identity(), (torch.ones(3).long(),)), "with floating tensors as inputs, and there is none"),
        (lambda: verify(Pairs(), SINGLE, irreps_in=["1o"]), "irreps_in: give one for each of the floating tensors pos"),
        (lambda: verify(Pairs(), SINGLE, irreps_out={"force": "1o"}), "unknown tensor 'force': did you mean 'forces'"),
        (lambda: verify(Pairs(), SINGLE, irreps_out={"forces": "2e"}), r"of \(5, 3\) must have 5 entries to be 1x2e"),
        (lambda: verify(product(), SINGLE), "inputs and irreps are for networks: a product brings its own"),
        (lambda: verify(product(), only=["linaer"]), "unknown law 'linaer': did you mean 'linear'"),
        (lambda: verify(product(), rows=0), "rows: a verification needs one row at least, got 0"),
        (lambda: verify(product(), backend="eager"), "unknown backend 'eager'.*Known backends: inductor, aot_eager"),
        (lambda: verify(nn.Identity(), (torch.ones(3).to(torch.float8_e5m2),)), "unknown dtype 'torch.float8_e5m2'"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], Verification], said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()


def wrong_network() -> tuple[nn.Module, list[Tensor]]:
    return FAULTS["heights"].made().double(), list(inputs())


def test_the_command_says_it_by_its_exit_code() -> None:
    run = CliRunner()
    done = run.invoke(main, ["verify", "article", "--strategy", "einsum", "--only", "definition", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["passed"] is True
    where = f"{__name__}:wrong_network"
    done = run.invoke(main, ["verify", "--network", where, "--only", "equivariant"])
    assert done.exit_code == 1
    assert "BROKEN: equivariant" in done.output


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["article", "--turns", "x=1o"], "--turns is for networks"),
        (["--network", f"{__name__}:wrong_network", "--turns", "x"], "write NAME=IRREPS"),
        (["--network", f"{__name__}:wrong_network", "--dtype", "float64"], "leave out --dtype"),
    ],
)
def test_the_command_names_wrong_options(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["verify", *arguments])
    assert done.exit_code == 2
    assert said in done.output


def test_a_report_survives_a_file() -> None:
    held = io.BytesIO()
    torch.save(verify(product(), only=["definition"]), held)
    held.seek(0)
    assert torch.load(held, weights_only=False).passed


def test_one_law_may_be_a_string() -> None:
    product = tpgen.TensorProduct("2x1o", "1o", "2x0e", [(0, 0, 0, "uvu", True)], strategy="einsum")
    assert {finding.law for finding in tpgen.verify(product, only="definition").findings} == {"definition"}
    with pytest.raises(InputError, match="unknown law 'definitoin': did you mean 'definition'"):
        tpgen.verify(product, only="definitoin")
