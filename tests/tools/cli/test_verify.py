"""``tpgen verify`` by name: findings, JSON that is nothing but JSON, exit codes."""

import json

import pytest

from tests.tools.cli.calls import VECTORS, run
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.read import read_plan
from tpgen.tools.cli.options import DTYPE_OPTIONS
from tpgen.tools.verification.verify import verify

ASKED = ("--strategy", "einsum", "--only", "definition", "--only", "e3nn", "--only", "linear", "--only", "second order")


def test_verify_prints_its_findings_and_passes() -> None:
    result = run("verify", *VECTORS, *ASKED, "--dtype", "float64", "--rows", "2")
    assert "product 4x1o x 1x1o -> 4x1e: every law holds\neinsum, eager, mul_ir\nfloat64 on cpu" in result.stdout
    assert "10 passed, 0 failed" in result.stdout


def test_verify_as_json_is_json_alone() -> None:
    report = json.loads(run("verify", *VECTORS, *ASKED, "--json").stdout)
    assert report["passed"] is True
    assert {f["law"] for f in report["findings"]} == {"definition", "e3nn", "linear", "second order"}


def test_a_broken_law_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpgen.tools.verification.findings.TOLERANCES", dict.fromkeys(DTYPE_OPTIONS.values(), -1.0))
    assert "0 passed, 10 failed" in run("verify", *VECTORS, *ASKED, code=1).stdout


@pytest.mark.parametrize("name", ["harmonics", "mace-readout"])
def test_polynomials_and_linear_layers_are_verified_by_name(name: str) -> None:
    report = run("verify", name, "--strategy", "einsum", "--only", "definition", "--only", "equivariant").stdout
    assert "every law holds" in report


def test_a_law_that_is_none_is_answered_with_the_one_it_is_like() -> None:
    assert run("verify", *VECTORS, "--only", "linaer", code=2).stderr.startswith(
        "error: unknown law 'linaer': did you mean 'linear'?"
    )


def test_the_report_of_the_command_is_that_of_the_function() -> None:
    plan = read_plan(run("plan", *VECTORS, "--json").stdout)
    report = json.loads(run("verify", *VECTORS, *ASKED, "--json").stdout)
    made = TensorProduct.from_plan(plan, internal_weights=False, strategy="einsum")
    wanted = json.loads(verify(made, only=ASKED[3::2]).to_json())
    assert {**report, "seconds": 0} == {**wanted, "seconds": 0}
