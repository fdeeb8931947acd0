"""The command line as a whole: its list of commands, its answers to typos, errors that are one message."""

import json
import re
import shlex
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import pytest
from click import Choice, Command, Context, Group, Option, Parameter

from tests.tools.cli.calls import VECTORS, run
from tpgen.base.errors import TpgenError
from tpgen.tools.cli.app import COMMANDS, EXAMPLES, main


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    command = main.get_command(Context(main), name)
    assert command is not None
    assert command.name == name
    first = " ".join(cleandoc(command.help or "").split("\n\n")[0].split())
    assert COMMANDS[name] == first
    assert len(first) <= 62, "it stands on one line of the list"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_ends_with_examples_that_it_can_read(name: str) -> None:
    shown = run(name, "--help").output.split("Examples:\n")[1].splitlines()
    assert [line.strip() for line in shown] == [f"tpgen {name} {arguments}" for arguments in EXAMPLES[name]]
    for arguments in EXAMPLES[name]:
        command, words = main.get_command(Context(main), name), shlex.split(arguments)
        if isinstance(command, Group):
            command = command.get_command(Context(command), words.pop(0))
        assert command is not None
        options = {option for parameter in command.params for option in parameter.opts}
        assert name == "mace-run-train" or {word.partition("=")[0] for word in words if word[:2] == "--"} <= options


def test_a_mistyped_command_gets_the_right_word() -> None:
    assert "unknown command 'explian': did you mean 'explain'? Known commands: plan," in run("explian", code=2).output
    assert "unknown command 'xyz'; known commands: plan," in run("xyz", code=2).output


def parameters(command: Command, place: str = "") -> Iterator[tuple[str, Parameter]]:
    """Every parameter of a command and of those below it, with the words that lead to the command."""
    if isinstance(command, Group):
        for name in command.list_commands(Context(command)):
            yield from parameters(command.get_command(Context(command), name), f"{place} {name}".strip())
    yield from ((place, parameter) for parameter in command.params)


def mistyped(word: str) -> str:
    """The word with two letters in its middle swapped, or one left out where they are the same."""
    at = len(word) // 2
    swapped = word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :]
    return swapped if swapped != word else word[:at] + word[at + 1 :]


def one_letter(a: str, b: str) -> bool:
    """Whether two words differ in one letter, as names of GPUs do: a typo may be either."""
    return sum(x != y for x, y in zip(a, b, strict=True)) == 1


CHOICES = [(place, p) for place, p in parameters(main) if isinstance(p.type, Choice)]
FLAGS = [(place, flag) for place, p in parameters(main) if isinstance(p, Option) for flag in p.opts if len(flag) > 5]


@pytest.mark.parametrize("place, parameter", CHOICES, ids=[f"{place} {p.name}" for place, p in CHOICES])
def test_every_choice_answers_a_typo_with_the_right_word(place: str, parameter: Parameter) -> None:
    for choice in parameter.type.choices:
        typed = mistyped(str(choice))
        twins = [c for c in map(str, parameter.type.choices) if len(c) == len(choice) and one_letter(c, str(choice))]
        if len(str(choice)) > 3 and typed not in parameter.type.choices and not twins:
            with pytest.raises(TpgenError, match=f"unknown .*: did you mean .*'{re.escape(str(choice))}'"):
                parameter.type.convert(typed, parameter, Context(main))


@pytest.mark.parametrize("place, flag", FLAGS, ids=[" ".join(case) for case in FLAGS])
def test_every_option_answers_a_typo_with_the_right_word(place: str, flag: str) -> None:
    assert f"'{flag}'" in run(*place.split(), mistyped(flag), code=2).output.partition("Did you mean")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_a_typo_with_the_right_word(name: str) -> None:
    assert f"'{name}'" in run(mistyped(name), code=2).output.partition("did you mean")[2].partition("?")[0]


def test_linear_layers_are_explained_by_name() -> None:
    found = json.loads(run("explain", "mace-readout", "--strategy", "einsum", "--rows", "10", "--json").stdout)
    assert (found["product"], found["rows"], found["flops"]) == ("128x0e+128x1o -> 1x0e", 10, 10 * 2 * 128)
    assert "explain, tune and verify take linear layers" in " ".join(run("plan", "mace-linear", code=2).output.split())


def test_bench_writes_records_and_a_plot(tmp_path: Path) -> None:
    records, plot = tmp_path / "b.json", tmp_path / "b.png"
    arguments = ["--contender", "tpgen-einsum/eager", "--task", "forward", "--seconds", "0", "--rows", "4"]
    files = ["--records", str(records), "--plot", str(plot)]
    result = run("bench", "article", *VECTORS, *arguments, *files, "--json")
    assert [r["status"] for r in json.loads(records.read_text())["records"]] == ["ok", "ok"]
    assert plot.stat().st_size > 0
    assert json.loads(result.stdout) == json.loads(records.read_text())


def test_demo_says_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        "tpgen.tools.cli.demo.run_tour", lambda folder, tour, console: seen.append((folder, tour.must_solve))
    )
    run("demo", "--out", str(tmp_path), "--short")
    run("demo", "--out", str(tmp_path))
    assert seen == [(tmp_path, False), (tmp_path, True)]


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments in (["dump"], ["demo"]):
        result = run(*arguments, "--out", str(tmp_path / "file" / "below"), code=2)
        assert "is a file, not a folder" in " ".join(result.stderr.split())


def test_a_folder_in_which_nothing_can_be_made_is_an_error_before_any_work() -> None:
    outputs = {
        ("dump",): "--out",
        ("explore",): "--out",
        ("explain",): "--plot",
        ("bench",): "--records",
        ("deploy", "tests.nobody:makes"): "--out",
    }
    for arguments, option in outputs.items():
        place = "/proc/q/below" + {"explain": ".svg", "bench": ".json"}.get(arguments[0], "")
        result = run(*arguments, option, place, code=2)
        assert "nothing can be made in" in " ".join(result.stderr.split())


def test_the_folder_of_a_file_is_made(tmp_path: Path) -> None:
    for name, option in (("explain", "--plot"), ("explore", "--out")):
        file = tmp_path / name / "deep" / ("a.svg" if name == "explain" else "a.html")
        run(name, *VECTORS, "--strategy", "einsum", option, str(file))
        assert file.stat().st_size > 0


def test_a_broken_plan_file_is_one_message(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    for content, message in (
        (b"{", f"error: {file}: plan: not valid JSON"),
        (b"\xff\xfe", "is not a text file; `tpgen plan"),
    ):
        file.write_bytes(content)
        assert message in run("plan", "--plan", str(file), code=2).stderr
    assert "holds the whole product" in run("plan", "--plan", str(file), "--in1", "0e", code=2).stderr
