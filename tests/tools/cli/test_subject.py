"""Every way to name a product, and polynomials in their place."""

import json
from pathlib import Path

import pytest

from tests.tools.cli.calls import VECTORS, run
from tpgen.planner.linear import make_linear_plan
from tpgen.planner.presets import PRESETS, channelwise
from tpgen.planner.problems import POLYNOMIALS, find_problem
from tpgen.planner.read import read_plan


def test_a_problem_has_a_name() -> None:
    assert run("plan", "--problem", "article").stdout == f"{find_problem('article').plan}\n"


def test_irreps_and_a_preset_are_a_product() -> None:
    result = run(
        "plan", "--preset", "channelwise", "--in1", "8x0e+8x1o", "--in2", "0e+1o", "--irreps-out", "0e+1o", "--json"
    )
    assert read_plan(result.stdout) == channelwise("8x0e+8x1o", "0e+1o", "0e+1o")


@pytest.mark.parametrize(
    "preset, irreps",
    [
        ("fully_connected", ["--in2", "0e", "--irreps-out", "2x1o"]),
        ("channelwise", ["--in2", "1o", "--irreps-out", "0e"]),
        ("elementwise", ["--in2", "2x1o", "--filter", "0e+2e"]),
        ("full", ["--in2", "1o"]),
        ("tensor_square", []),
        ("tensor_square", ["--irreps-out", "3x0e"]),
        ("tensor_square", ["--filter", "0e"]),
    ],
)
def test_every_preset_takes_its_irreps(preset: str, irreps: list[str]) -> None:
    assert read_plan(run("plan", "--preset", preset, "--in1", "2x1o", *irreps, "--json").stdout).paths


@pytest.mark.parametrize(
    "command", ["plan", "explain", "explore", "dump", "verify", "bench", "tune", "report", "convert"]
)
def test_every_command_takes_a_name_first(command: str) -> None:
    assert f"Usage: tpgen {command} [OPTIONS] [NAME]" in run(command, "--help").output


def test_a_name_is_short_for_its_option() -> None:
    assert run("plan", "article").stdout == run("plan", "--problem", "article").stdout


def test_a_name_may_be_that_of_a_network() -> None:
    assert run("explain", "tetris").stdout == run("explain", "--network", "tetris").stdout


def test_no_preset_is_left_out() -> None:
    assert all(name in " ".join(run("plan", "--help").output.split()) for name in PRESETS)


def test_instructions_are_read_in_full() -> None:
    result = run("plan", *VECTORS, "--instruction", "0, 0, 0, uvu, False, 0.5", "--weights", "per-row", "--json")
    plan = read_plan(result.stdout)
    assert [i[:6] for i in plan.instructions] == [(0, 0, 0, "uvu", True, 1.0), (0, 0, 0, "uvu", False, 0.5)]
    assert not plan.shared_weights


def test_normalisation_reaches_the_plan() -> None:
    options = ["--irrep-normalization", "norm", "--path-normalization", "none"]
    plan = read_plan(run("plan", *VECTORS, *options, "--json").stdout)
    assert (plan.irrep_normalization, plan.path_normalization) == ("norm", "none")


def test_a_plan_goes_through_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(run("plan", *VECTORS, "--json").stdout)
    assert run("plan", "--plan", str(file)).stdout == run("plan", *VECTORS).stdout


def test_a_named_polynomial_goes_through_every_stage() -> None:
    plan = POLYNOMIALS["turned"].plan
    assert run("plan", "turned").stdout == f"{plan}\n"
    explained = " ".join(run("explain", "turned", "--strategy", "einsum").stdout.split())
    assert "0 x x y 1x0e independent couplings 4 w3_0 0:4" in explained
    verified = run(
        "verify", "turned", "--strategy", "einsum", "--rows", "3", "--only", "definition", "--only", "degree"
    )
    assert "2 passed, 0 failed" in verified.stdout
    stages = ["--stage", "plan", "--stage", "sweep"]
    texts = json.loads(run("dump", "turned", *stages, "--direction", "all", "--json").stdout)
    assert list(texts) == ["plan.txt", "sweep.forward.txt", "sweep.backward.txt", "sweep.second.txt"]


@pytest.mark.parametrize("command", ["report", "bench"])
@pytest.mark.parametrize("flag", [[], ["--problem"]])
def test_commands_that_take_no_polynomials_say_which_do(command: str, flag: list[str]) -> None:
    said = " ".join(run(command, *flag, "turned", code=2).output.split())
    assert "'turned' is a polynomial, and this command takes products" in said
    assert "plan, explain, explore, dump, tune and verify take polynomials" in said
    assert "package.module" not in said


def test_a_polynomial_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(run("plan", "harmonics", "--json").stdout, encoding="utf-8")
    assert "4 paths, coupling 56/640" in run("plan", "--plan", str(file)).stdout
    assert "def forward" in run("dump", "--plan", str(file), "--strategy", "einsum").stdout
    for command in ("report", "bench"):
        result = run(command, "--plan", str(file), code=2)
        assert "--plan holds a polynomial, and this command takes products" in " ".join(result.output.split())


@pytest.mark.parametrize("shared", [True, "element"])
def test_a_linear_layer_in_a_file(tmp_path: Path, shared: bool | str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(make_linear_plan("4x0e+2x1o", "3x0e+2x1o", shared_weights=shared).to_json(), encoding="utf-8")
    assert "C++ matrix product" in run("explain", "--plan", str(file), "--strategy", "kernel").stdout
    assert run("verify", "--plan", str(file), "--only", "definition", "--strategy", "einsum").exit_code == 0
    for command in ("report", "bench"):
        result = run(command, "--plan", str(file), code=2)
        assert "--plan holds a linear layer, and this command takes products" in " ".join(result.output.split())
