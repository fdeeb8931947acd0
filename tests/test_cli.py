"""The command line: every way to name a product, JSON that is nothing but JSON, errors that are one message."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import pytest
from click import Choice, Command, Context, Group, Option, Parameter
from click.testing import CliRunner, Result

from tpgen.cli.app import COMMANDS, main
from tpgen.cli.reading import without_prelude
from tpgen.errors import TpgenError
from tpgen.nn.tensor_product import TensorProduct
from tpgen.planner.plan_json import plan_from_json
from tpgen.planner.polynomial_problems import POLYNOMIALS
from tpgen.planner.presets import PRESETS, channelwise
from tpgen.planner.problems import find_problem
from tpgen.verification.verify import verify

VECTORS = ["--in1", "4x1o", "--in2", "1o", "--irreps-out", "4x1e", "--instruction", "0,0,0,uvu,true"]


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


# --- commands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name: str) -> None:
    command = main.get_command(Context(main), name)
    assert command is not None
    assert command.name == name
    first = " ".join(cleandoc(command.help or "").split("\n\n")[0].split())
    assert COMMANDS[name] == first
    assert len(first) <= 62, "it stands on one line of the list"


def test_a_mistyped_command_gets_the_right_word() -> None:
    assert "unknown command 'explian': did you mean 'explain'?; known commands: plan," in run("explian", code=2).output
    assert "unknown command 'xyz'; known commands: plan," in run("xyz", code=2).output


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["plan", "--problem", "mace-lagre"], "unknown problem 'mace-lagre': did you mean 'mace-large'?"),
        (["dump", *VECTORS, "--stage", "grpah"], "unknown stage 'grpah': did you mean 'graph'?"),
        (["flat", "tetriss"], "unknown network 'tetriss': did you mean 'tetris'?"),
        (["explain", *VECTORS, "--plot", "x.foo"], "'x.foo' must end in .png, .pdf or .svg"),
        (["tune", "mace"], "unknown problem 'mace': did you mean 'mace-medium' or 'mace-large'?"),
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
        (["dump", *VECTORS, "--stage", "cpp", "--dtype", "float16"], "known kernel dtypes: torch.float32"),
        (["bench", "--problem", "article", "--plot", "x"], "'x' must end in .png, .pdf or .svg"),
        (["bench", "article", "--records", "x.txt"], "'x.txt' must end in .json"),
        (["explore", "article", "--out", "x.txt"], "'x.txt' must end in .html or .htm"),
        (
            ["dump", *VECTORS, "--direction", "all", "--out", "x.cpp"],
            "'x.cpp' is one file, and these are several texts",
        ),
        (["plan", *VECTORS, "--out", "0e"], "No such option '--out'"),
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


CHOICES = [(place, p) for place, p in parameters(main) if isinstance(p.type, Choice)]
FLAGS = [(place, flag) for place, p in parameters(main) if isinstance(p, Option) for flag in p.opts if len(flag) > 5]


@pytest.mark.parametrize("place, parameter", CHOICES, ids=[f"{place} {p.name}" for place, p in CHOICES])
def test_every_choice_answers_a_typo_with_the_right_word(place: str, parameter: Parameter) -> None:
    for choice in parameter.type.choices:
        typed = mistyped(str(choice))
        if len(str(choice)) > 3 and typed not in parameter.type.choices:
            with pytest.raises(TpgenError, match=f"unknown .*: did you mean .*'{re.escape(str(choice))}'"):
                parameter.type.convert(typed, parameter, Context(main))


@pytest.mark.parametrize("place, flag", FLAGS, ids=[" ".join(case) for case in FLAGS])
def test_every_option_answers_a_typo_with_the_right_word(place: str, flag: str) -> None:
    assert f"'{flag}'" in run(*place.split(), mistyped(flag), code=2).output.partition("Did you mean")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_a_typo_with_the_right_word(name: str) -> None:
    assert f"'{name}'" in run(mistyped(name), code=2).output.partition("did you mean")[2].partition("?")[0]


# --- naming a product -----------------------------------------------------------------------------------------------


def test_a_problem_has_a_name() -> None:
    assert run("plan", "--problem", "article").stdout == f"{find_problem('article').plan}\n"


def test_irreps_and_a_preset_are_a_product() -> None:
    result = run(
        "plan", "--preset", "channelwise", "--in1", "8x0e+8x1o", "--in2", "0e+1o", "--irreps-out", "0e+1o", "--json"
    )
    assert plan_from_json(result.stdout) == channelwise("8x0e+8x1o", "0e+1o", "0e+1o")


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
    assert plan_from_json(run("plan", "--preset", preset, "--in1", "2x1o", *irreps, "--json").stdout).paths


@pytest.mark.parametrize(
    "command", ["plan", "explain", "explore", "dump", "verify", "bench", "tune", "report", "flat", "convert"]
)
def test_every_command_takes_a_name_first(command: str) -> None:
    assert f"Usage: main {command} [OPTIONS] [NAME]" in run(command, "--help").output


def test_a_name_is_short_for_its_option() -> None:
    assert run("plan", "article").stdout == run("plan", "--problem", "article").stdout


def test_a_name_may_be_that_of_a_network() -> None:
    assert run("explain", "tetris").stdout == run("explain", "--network", "tetris").stdout


def test_no_preset_is_left_out() -> None:
    assert all(name in " ".join(run("plan", "--help").output.split()) for name in PRESETS)


def test_instructions_are_read_in_full() -> None:
    result = run("plan", *VECTORS, "--instruction", "0, 0, 0, uvu, False, 0.5", "--weights", "per-row", "--json")
    plan = plan_from_json(result.stdout)
    assert [i[:6] for i in plan.instructions] == [(0, 0, 0, "uvu", True, 1.0), (0, 0, 0, "uvu", False, 0.5)]
    assert not plan.shared_weights


def test_normalisation_reaches_the_plan() -> None:
    options = ["--irrep-normalization", "norm", "--path-normalization", "none"]
    plan = plan_from_json(run("plan", *VECTORS, *options, "--json").stdout)
    assert (plan.irrep_normalization, plan.path_normalization) == ("norm", "none")


def test_a_plan_goes_through_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(run("plan", *VECTORS, "--json").stdout)
    assert run("plan", "--plan", str(file)).stdout == run("plan", *VECTORS).stdout


# --- dump -----------------------------------------------------------------------------------------------------------


def test_dump_writes_one_text_plainly() -> None:
    assert run("dump", *VECTORS, "--stage", "form").stdout.startswith("out[4x1e] of x1, x2, w\n")


def test_dump_without_a_stage_shows_what_runs() -> None:
    assert run("dump", *VECTORS, "--strategy", "einsum").stdout.startswith("def forward(self")
    assert run("dump", *VECTORS, "--strategy", "kernel").stdout.startswith("// ")


def test_the_code_of_a_kernel_says_where_the_kernel_is() -> None:
    text = run("dump", *VECTORS, "--stage", "code", "--strategy", "kernel").stdout
    assert text.startswith("# this strategy is one kernel: see the stage cpp\n")
    assert max(map(len, text.splitlines())) < 200


def test_dump_heads_several_texts() -> None:
    text = run("dump", *VECTORS, "--stage", "form", "--stage", "code", "--direction", "all").stdout
    assert text.count("--- ") == 12
    assert "--- code.grad_w.py" in text


def test_dump_into_a_folder_and_as_json(tmp_path: Path) -> None:
    arguments = ["dump", *VECTORS, "--stage", "plan", "--stage", "graph", "--strategy", "einsum"]
    result = run(*arguments, "--out", str(tmp_path / "deep" / "er"), "--json")
    texts = json.loads(result.stdout)
    assert list(texts) == ["plan.txt", "graph.forward.txt"]
    assert {f.name: f.read_text() for f in (tmp_path / "deep" / "er").iterdir()} == {
        name: text + "\n" for name, text in texts.items()
    }


def test_out_names_a_file_or_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "new" / "code.py"
    assert run("dump", *VECTORS, "--strategy", "einsum", "--out", str(file)).stdout == f"{file}\n"
    assert file.read_text().startswith("def forward(self")
    page = tmp_path / "page"
    said = run("explore", *VECTORS, "--strategy", "einsum", "--out", str(page)).stdout
    assert said == f"{page / 'explorer.html'}\n"
    assert (page / "explorer.html").stat().st_size > 0


def test_layout_may_differ_by_operand() -> None:
    one, three = (
        run("dump", *VECTORS, "--stage", "form", "--layout", layout).stdout
        for layout in ("mul_ir", "ir_mul,mul_ir,mul_ir")
    )
    assert "zui" in one
    assert "ziu" in three


# --- verify, bench, demo ----------------------------------------------------------------------------------------------


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
    monkeypatch.setattr("tpgen.verification.findings.TOLERANCES", dict.fromkeys(_dtypes(), -1.0))
    assert "0 passed, 10 failed" in run("verify", *VECTORS, *ASKED, code=1).stdout


@pytest.mark.parametrize("name", ["harmonics", "mace-readout"])
def test_polynomials_and_linear_layers_are_verified_by_name(name: str) -> None:
    report = run("verify", name, "--strategy", "einsum", "--only", "definition", "--only", "equivariant").stdout
    assert "every law holds" in report


def test_linear_layers_are_explained_by_name() -> None:
    found = json.loads(run("explain", "mace-readout", "--strategy", "einsum", "--rows", "10", "--json").stdout)
    assert (found["product"], found["rows"], found["flops"]) == ("128x0e+128x1o -> 1x0e", 10, 10 * 2 * 128)
    assert "explain and verify take linear layers" in " ".join(run("tune", "mace-linear", code=2).output.split())


def test_a_law_that_is_none_is_answered_with_the_one_it_is_like() -> None:
    assert run("verify", *VECTORS, "--only", "linaer", code=2).stderr.startswith(
        "error: unknown law 'linaer': did you mean 'linear'?"
    )


def _dtypes():
    from tpgen.cli.options import DTYPES

    return DTYPES.values()


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
    monkeypatch.setattr("tpgen.cli.demo.run_tour", lambda folder, tour, console: seen.append((folder, tour.must_solve)))
    run("demo", "--out", str(tmp_path), "--short")
    run("demo", "--out", str(tmp_path))
    assert seen == [(tmp_path, False), (tmp_path, True)]


# --- errors -----------------------------------------------------------------------------------------------------------


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
        (["flat"], "name one network: tetris, tetris-e3nn, or package.module:function"),
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
    for content, message in ((b"{", "error: plan: not valid JSON"), (b"\xff\xfe", "is not a text file; `tpgen plan")):
        file.write_bytes(content)
        assert message in run("plan", "--plan", str(file), code=2).stderr
    assert "holds the whole product" in run("plan", "--plan", str(file), "--in1", "0e", code=2).stderr


def test_the_report_of_the_command_is_that_of_the_function() -> None:
    plan = plan_from_json(run("plan", *VECTORS, "--json").stdout)
    report = json.loads(run("verify", *VECTORS, *ASKED, "--json").stdout)
    made = TensorProduct.from_plan(plan, internal_weights=False, strategy="einsum")
    wanted = json.loads(verify(made, only=ASKED[3::2]).to_json())
    assert {**report, "seconds": 0} == {**wanted, "seconds": 0}


# --- tpgen convert --------------------------------------------------------------------------------------------------


def test_a_network_is_converted_and_proven() -> None:
    read = json.loads(run("convert", "tetris-e3nn", "--strategy", "grouped", "--prove", "--json").stdout)
    assert {r["was"] for r in read["replaced"]} >= {"e3nn.FullyConnectedTensorProduct", "e3nn.ElementwiseTensorProduct"}
    assert all(d["relative"] < 1e-12 for d in read["proof"]["differences"])
    assert read["times"] is None


def test_a_network_is_converted_and_measured() -> None:
    shown = run("convert", "tetris-e3nn", "--strategy", "grouped", "--measure").output
    assert "modules compute with tpgen, 0 stay as they are" in shown
    assert "call and gradients" in shown


def test_convert_needs_a_network_with_something_to_convert() -> None:
    assert "name one network: tetris" in run("convert", code=2).output
    assert "Tetris holds no tensor product or linear" not in run("convert", "--network", "tetris-e3nn").output


# --- tpgen completion -----------------------------------------------------------------------------------------------


def test_what_is_shown_of_a_kernel_on_a_terminal() -> None:
    text = run("dump", *VECTORS, "--strategy", "kernel").stdout
    folded = without_prelude(text)
    assert "lines of prelude" in folded
    assert "posix_memalign(void" not in folded
    first = next(line for line in text.splitlines() if line.startswith("static void tabulate("))
    assert text[text.index(first) :] in folded


@pytest.fixture(scope="module")
def completion_script() -> str:
    return run("completion", "bash").stdout


COMPLETED = [
    ("tpgen ex", "explain explore"),
    ("tpgen plan mace", "mace-medium mace-large mace-contraction"),
    ("tpgen tune mace", "mace-medium mace-large"),
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


# --- polynomials ------------------------------------------------------------------------------------------------------


def test_a_named_polynomial_goes_through_every_stage() -> None:
    plan = POLYNOMIALS["turned"].plan
    assert run("plan", "turned").stdout == f"{plan}\n"
    assert "x x y  1x0e  w3_0[0]" in run("explain", "turned", "--strategy", "einsum").stdout
    verified = run(
        "verify", "turned", "--strategy", "einsum", "--rows", "3", "--only", "definition", "--only", "degree"
    )
    assert "2 passed, 0 failed" in verified.stdout
    stages = ["--stage", "plan", "--stage", "sweep"]
    texts = json.loads(run("dump", "turned", *stages, "--direction", "all", "--json").stdout)
    assert list(texts) == ["plan.txt", "sweep.forward.txt", "sweep.backward.txt", "sweep.second.txt"]


@pytest.mark.parametrize("command", ["tune", "report", "bench"])
@pytest.mark.parametrize("flag", [[], ["--problem"]])
def test_commands_that_take_no_polynomials_say_which_do(command: str, flag: list[str]) -> None:
    said = " ".join(run(command, *flag, "turned", code=2).output.split())
    assert "'turned' is a polynomial, and this command takes products" in said
    assert "plan, explain, explore, dump and verify take polynomials" in said
    assert "package.module" not in said


def test_a_dump_of_a_polynomial_says_what_there_is() -> None:
    said = run("dump", "turned", "--stage", "script", code=2).output
    assert "known stages: plan, form, graph, code, sweep, placement, cpp" in said
    said = run("dump", "turned", "--stage", "sweep", "--direction", "grad_x1", code=2).output
    assert "not a call: 'grad_x1'; calls are forward, backward, second" in said


def test_a_polynomial_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(run("plan", "harmonics", "--json").stdout, encoding="utf-8")
    assert "one -> out" in run("plan", "--plan", str(file)).stdout
    assert "def forward" in run("dump", "--plan", str(file), "--strategy", "einsum").stdout
    for command in ("tune", "report", "bench"):
        result = run(command, "--plan", str(file), code=2)
        assert "--plan holds a polynomial, and this command takes products" in " ".join(result.output.split())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["verify", "turned", "--layout", "ir_mul"], "a polynomial's layouts stand in its plan"),
        (["explain", "turned", "--plot", "x.png"], "leave out --plot"),
        (["dump", "turned", "--stage", "script"], "of a polynomial: unknown stage 'script'"),
        (["dump", "turned", "--direction", "right", "--stage", "sweep"], "not a call: 'right'"),
        (["verify", "turned", "--strategy", "grouped"], "unknown strategy 'grouped'"),
    ],
)
def test_what_polynomials_have_not_is_refused(arguments: list[str], message: str) -> None:
    assert message in " ".join(run(*arguments, code=2).output.split())
