"""What a user meets on the command line where something is wrong: one message that names the place."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.tools.cli.calls import VECTORS, run
from tpgen.tools.cli import explain as explain_command
from tpgen.tools.cli.app import main
from tpgen.tools.cli.terminal import show_progress

WARM = ["cache", "warm"]


def test_a_function_of_the_users_that_fails_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_module.py").write_text("def make():\n    x = {}\n    return x['missing']\n")
    monkeypatch.chdir(tmp_path)
    said = run("explain", "their_module:make", code=2).output
    assert "error: their_module:make is called without arguments, and failed at" in said
    assert "their_module.py:3 with KeyError: 'missing'" in said
    assert "torch:zeros is called without arguments" in run("explain", "torch:zeros", code=2).output


def test_a_file_in_the_place_of_a_module_gets_the_right_name() -> None:
    said = run("explain", "some/model.py:make", code=2).output
    assert "'some/model.py' is a file, and a module is asked for: give some.model:make" in said


def test_a_bad_plan_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text("{bad")
    assert f"error: {file}: plan: not valid JSON" in run("plan", "--plan", str(file), code=2).output


def test_a_measurement_of_nobody_is_an_error() -> None:
    said = run("bench", "article", "--contender", "tpgen-grouped/cudagraphs", "--seconds", "0", code=2).output
    assert "needs a CUDA device" in said
    assert "error: no contender was timed" in said


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--verson"], "no such option '--verson'"),
        (["plan", "--rows", "5"], "no such option '--rows'"),
        (["explain", "article", "--rows", "0"], "invalid value for '--rows': 0 is not in the range x>=1"),
        (["lammps", "only-one"], "missing argument 'TARGET'"),
        (["completion"], "missing argument"),  # versions of click name it differently
        (["convert", "tetris", "more"], "got unexpected extra argument"),
        (["plan"], "say which product, in one way"),
        ([*WARM, "--preset", "full"], "preset full needs --in1"),
        (["plan", "--plan", "/nowhere.json"], "invalid value for '--plan': File '/nowhere.json' does not exist"),
        (["mace"], "unknown command 'mace': did you mean"),
    ],
)
def test_wrong_usage_looks_like_every_error(arguments: list[str], said: str) -> None:
    """One line that begins with "error:", and says where the right usage stands."""
    result = run(*arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {said}")
    command = next((word for word in arguments[:1] if word in main.list_commands(click.Context(main))), "")
    assert result.stderr.endswith("--help)\n")
    assert f"(see tpgen{f' {command}' if command else ''}" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["plan", "--problem", "mace-lagre"], "unknown problem 'mace-lagre': did you mean 'mace-large'?"),
        (["dump", *VECTORS, "--stage", "grpah"], "unknown stage 'grpah': did you mean 'graph'?"),
        (["explain", *VECTORS, "--plot", "x.foo"], "'x.foo' must end in .png, .pdf or .svg"),
        (["cache", "claer"], "unknown command 'claer': did you mean 'clear'?"),
        (["verify", *VECTORS, "--strategy", "kernel", "--dtype", "float16"], "kernels compute in float32, float64"),
        (["dump", *VECTORS, "--stage", "cpp", "--dtype", "float16"], "Known kernel dtypes: torch.float32"),
        (["bench", "--problem", "article", "--plot", "x"], "'x' must end in .png, .pdf or .svg"),
        (["bench", "article", "--records", "x.txt"], "'x.txt' must end in .json"),
        (["explore", "article", "--out", "x.txt"], "'x.txt' must end in .html or .htm"),
        (
            ["dump", *VECTORS, "--direction", "all", "--out", "x.cpp"],
            "'x.cpp' is one file, and these are several texts",
        ),
        (["plan", *VECTORS, "--out", "0e"], "error: no such option '--out'"),
        (["tune", *VECTORS, "--seconds", "-1"], "-1.0 is not in the range x>0"),
        (["plan", "--problem", "xyz"], "error: unknown problem 'xyz'; known problems: article"),
        (["plan", "--preset", "full", "--in1", "1x", "--in2", "1o"], "error: irreps_in1: cannot read irreps '1x'"),
        (["plan", *VECTORS[:-1], "0,0,0,uwu,true"], "error: instruction 0 (0, 0, 0, 'uwu', weighted): unknown mode"),
        (["dump", *VECTORS, "--stage", "asm"], "error: unknown stage 'asm'; known stages: plan, form"),
        (["dump", *VECTORS, "--stage", "form", "--direction", "up"], "error: unknown direction 'up'"),
        (["dump", *VECTORS, "--stage", "form", "--layout", "row"], "error: unknown layout 'row'"),
        (["bench", "--contender", "nobody"], "error: unknown contender 'nobody'"),
        (["bench", "--suite", "xyz"], "error: unknown suite 'xyz'; known suites: small"),
        (["verify", *VECTORS, "--backend", "cudagraphs"], "error: backend 'cudagraphs' records CUDA graphs"),
        (["plan"], "say which product, in one way"),
        (["plan", "--problem", "article", *VECTORS], "say which product, in one way"),
        (["plan", "--in1", "1o"], "irreps alone are not a product: add --preset or --instruction"),
        (["plan", *VECTORS, "--preset", "full"], "give one of --preset, --instruction and --plan, not several"),
        (["plan", "--in1", "1o", "--instruction", "0,0,0,uvu,true"], "refers to irreps: give --in2, --irreps-out"),
        (["plan", *VECTORS, "--filter", "0e"], "--filter is for presets"),
        (["plan", "--preset", "full", "--in1", "1o"], "preset full needs --in2"),
        (
            ["plan", "--preset", "full", "--in1", "1o", "--in2", "1o", "--irreps-out", "0e"],
            "preset full takes no --irreps-out",
        ),
        (["plan", *VECTORS[:-1], "0,0,uvu"], "does not read i_in1,i_in2,i_out,mode,true|false"),
        (["verify", *VECTORS, "--device", "abacus"], "'abacus' cannot be used here"),
        (["verify", *VECTORS, "--dtype", "int8"], "unknown dtype 'int8'; known dtypes: float32"),
        (["explain", "tetris", *VECTORS], "say which product, in one way"),
        (["plan", "tetris"], "'tetris' is a network, and this command takes products: explain, explore, verify"),
        (
            ["plan", "1o", "1o", "1o"],
            "'1o' are irreps, where the name of a product belongs: give irreps by --in1",
        ),
        (["explain", "2x0e + 1o"], "'2x0e + 1o' are irreps, where the name of a product belongs"),
        (["convert"], "name one network: tetris, tetris-e3nn, or package.module:function"),
        (["verify", "turned", "--layout", "ir_mul"], "a polynomial's layouts stand in its plan"),
        (["dump", "turned", "--direction", "right", "--stage", "sweep"], "not a call: 'right'"),
        (["verify", "turned", "--strategy", "grouped"], "unknown strategy 'grouped'"),
        (
            ["cache", "warm", "mace-medium", "--arch", "ampere"],
            "'ampere' must be compute capabilities, like sm_80,sm_90",
        ),
        (
            ["cache", "warm", "mace-medium", "--arch", "sm_61"],
            "sm_61: kernels need a GPU of compute capability 7.0 or later",
        ),
        ([*WARM, "tetris"], "tetris is a network: for GPUs give --arch too"),
        ([*WARM, "small-contraction", "--conv"], "edge_src and edge_dst are of convolutions"),
        (
            ["cache", "warm", "tetris", "--arch", "sm_80", "--conv"],
            "the modules of a network say that themselves: leave out --conv",
        ),
    ],
)
def test_what_cannot_be_is_one_message_before_any_work(arguments: list[str], message: str) -> None:
    result = run(*arguments, code=2)
    assert message in " ".join(result.stderr.split())
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("group", [[], ["cache"]])
def test_a_group_alone_shows_its_help(group: list[str]) -> None:
    assert "Usage:" in CliRunner().invoke(main, group).output


def test_a_command_says_on_a_terminal_what_it_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with show_progress("deploy") as say:
        say("compile")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    with show_progress("deploy") as say:
        say("compile")
    out, err = capsys.readouterr()
    assert "deploy: compile …" in err
    assert out == ""


def test_an_interrupted_command_ends_as_a_shell_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explain_command.explain_command, "callback", interrupted)
    result = CliRunner().invoke(main, ["explain", "article"])
    assert result.exit_code == 130
    assert result.output.endswith("interrupted\n")
