"""``tpgen report``."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tpgen.tools.cli.app import main


def test_the_command(tmp_path: Path) -> None:
    arguments = ["report", "--preset", "full", "--in1", "1o", "--in2", "1o", "--strategy", "grouped"]
    result = CliRunner().invoke(main, [*arguments, "--section", "partition", "--rows", "3"])
    assert result.exit_code == 0, result.output
    assert "Partition: what is saved for backward" in result.stdout
    result = CliRunner().invoke(main, [*arguments, "--section", "graphs", "--no-inductor", "--json"])
    assert list(json.loads(result.stdout)["sections"]) == ["graphs"]
    result = CliRunner().invoke(main, [*arguments, "--section", "nothing"])
    assert result.exit_code == 2
    assert "error: unknown section 'nothing'; known sections:" in result.output


def test_the_command_takes_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\ndef made():\n    return torch.nn.ReLU(), [torch.ones(2, 2)]\ndef alone():\n    return 3\n"
        "def several():\n    return torch.nn.ReLU(), [torch.ones(2, 2)], [[torch.ones(5, 2)]]\n"
    )
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["report", "--section", "partition", *arguments])
        return result.exit_code, result.output

    code, said = run("--network", "mine:made")
    assert code == 0
    assert "Compile report of ReLU()" in said
    code, said = run("mine:several", "--section", "recompilations")
    assert "calls with 2 shapes" in said
    for arguments, message in (
        (["--network", "mine:nothing"], "error: cannot import 'nothing' from 'mine'"),
        (
            ["--network", "mine:alone"],
            "error: mine:alone must return the network and a list of its arguments, as in `return network, [x, y]`; "
            "got",
        ),
        (
            ["--network", "mine"],
            "error: unknown network 'mine'; known networks: tetris, tetris-e3nn; or give package.module:function",
        ),
        (["--network", "tetris", "--problem", "article"], "say which product, in one way"),
    ):
        code, said = run(*arguments)
        assert code == 2
        assert message in said
