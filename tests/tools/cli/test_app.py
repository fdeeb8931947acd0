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


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["plan", "--problem", "mace-lagre"], "unknown problem 'mace-lagre': did you mean 'mace-large'?"),
        (["dump", *VECTORS, "--stage", "grpah"], "unknown stage 'grpah': did you mean 'graph'?"),
        (["explain", *VECTORS, "--plot", "x.foo"], "'x.foo' must end in .png, .pdf or .svg"),
        (["tune", "mace-larg"], "unknown problem 'mace-larg': did you mean 'mace-large'"),
        (["explain", "tetri"], "unknown name 'tetri': did you mean 'tetris'?"),
        (["plan", *VECTORS, "--preset", "chanelwise"], "unknown preset 'chanelwise': did you mean 'channelwise'?"),
        (["verify", *VECTORS, "--strategy", "kernle"], "unknown strategy 'kernle': did you mean 'kernel'?"),
        (["verify", *VECTORS, "--backend", "inducter"], "unknown backend 'inducter': did you mean 'inductor'?"),
        (["dump", *VECTORS, "--direction", "grad_x3"], "unknown direction 'grad_x3': did you mean 'grad_x"),
        (["report", *VECTORS, "--section", "gaurds"], "unknown section 'gaurds': did you mean 'guards'?"),
        (["convert", "tetris-e3n"], "unknown network 'tetris-e3n': did you mean 'tetris-e3nn'?"),
        (["cache", "claer"], "unknown command 'claer': did you mean 'clear'?"),
        (["completion", "fisch"], "unknown shell 'fisch': did you mean 'fish'?"),
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
    ],
)
def test_what_cannot_be_is_refused_before_any_work(arguments: list[str], message: str) -> None:
    assert message in " ".join(run(*arguments, code=2).output.split())


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


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["plan", "--problem", "xyz"], "error: unknown problem 'xyz'; known problems: article"),
        (["plan", "--preset", "full", "--in1", "1x", "--in2", "1o"], "error: irreps_in1: cannot read irreps '1x'"),
        (["plan", *VECTORS[:-1], "0,0,0,uwu,true"], "error: instruction 0 (0, 0, 0, 'uwu', weighted): unknown mode"),
        (["dump", *VECTORS, "--stage", "asm"], "error: unknown stage 'asm'; known stages: plan, form"),
        (["dump", *VECTORS, "--stage", "form", "--direction", "up"], "error: unknown direction 'up'"),
        (["dump", *VECTORS, "--stage", "form", "--layout", "row"], "error: unknown layout 'row'"),
        (["bench", "--contender", "nobody"], "error: unknown contender 'nobody'"),
        (["bench", "--suite", "xyz"], "error: unknown suite 'xyz'; known suites: small"),
        (["verify", *VECTORS, "--backend", "cudagraphs"], "error: backend 'cudagraphs' records CUDA graphs"),
    ],
)
def test_an_error_of_tpgen_is_one_message(arguments: list[str], message: str) -> None:
    result = run(*arguments, code=2)
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments, message",
    [
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
    ],
)
def test_wrong_usage_says_the_right_one(arguments: list[str], message: str) -> None:
    assert message in " ".join(run(*arguments, code=2).stderr.split())


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
