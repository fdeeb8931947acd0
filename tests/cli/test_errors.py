"""What a user meets on the command line where something is wrong: one message that names the place."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.calls import run
from tpgen.cli import explain as explain_command
from tpgen.cli.app import main


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


def test_an_interrupted_command_ends_as_a_shell_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explain_command.explain, "callback", interrupted)
    result = CliRunner().invoke(main, ["explain", "article"])
    assert result.exit_code == 130
    assert result.output.endswith("interrupted\n")
