"""``tpgen completion``: what each shell offers."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tools.cli.calls import run


@pytest.fixture(scope="module")
def completion_script() -> str:
    return run("completion", "bash").stdout


COMPLETED = [
    ("tpgen ex", "explain explore"),
    ("tpgen plan mace", "mace-medium mace-large mace-contraction"),
    ("tpgen tune mace", "mace-medium mace-large mace-contraction mace-linear mace-readout"),
    ("tpgen report tetris", "tetris-1 tetris tetris-e3nn"),
    ("tpgen dump article --stage p", "plan placement ptx"),
    ("tpgen verify --strategy gr", "grouped"),
    ("tpgen cache w", "warm"),
    ("tpgen cache warm --fo", "--forces"),
    ("tpgen plan --plan x", ""),  # a file: the shell's own completion
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("typed, offered", COMPLETED)
def test_completion_knows_commands_options_and_names(completion_script: str, typed: str, offered: str) -> None:
    words = " ".join(map(shlex.quote, typed.split(" ")))
    call = f'COMP_WORDS=({words}); COMP_CWORD={len(typed.split(" ")) - 1}; _tpgen; echo "${{COMPREPLY[*]}}"'
    shell = subprocess.run(["bash", "-c", f"{completion_script}\n{call}"], capture_output=True, text=True, check=True)
    assert shell.stdout.strip() == offered


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes_the_same(tmp_path: Path) -> None:
    calls = "; ".join(f"complete -C {shlex.quote(typed)}; echo ---" for typed, _ in COMPLETED)
    script = f"{run('completion', 'fish').stdout}\n{calls}"
    shell = subprocess.run(["fish", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert [set(said.split()) for said in shell.stdout.split("---\n")[:-1]] == [set(o.split()) for _, o in COMPLETED]


def test_the_script_of_fish_names_what_that_of_bash_names(completion_script: str) -> None:
    script = run("completion", "fish").stdout
    words = re.findall(r'words="([^"]+)"', completion_script)
    assert words == re.findall(r"set words (\S.*)", script)


def test_the_script_of_zsh_is_that_of_bash(completion_script: str) -> None:
    assert run("completion", "zsh").stdout.endswith(completion_script)
