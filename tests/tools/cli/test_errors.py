"""What a user meets on the command line where something is wrong: one message that names the place."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.tools.cli.calls import run
from tpgen.tools.cli import explain as explain_command
from tpgen.tools.cli.app import main
from tpgen.tools.cli.terminal import working


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
        (["cache", "warm", "--preset", "full"], "preset full needs --in1"),
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


@pytest.mark.parametrize("group", [[], ["cache"]])
def test_a_group_alone_shows_its_help(group: list[str]) -> None:
    assert "Usage:" in CliRunner().invoke(main, group).output


def test_a_command_says_on_a_terminal_what_it_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with working("deploy") as say:
        say("compile")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    with working("deploy") as say:
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
