"""``tpgen dump``: texts plainly, below headings, in folders and as JSON."""

import json
from pathlib import Path

from tests.tools.cli.calls import VECTORS, run
from tpgen.tools.cli.dump import fold_prelude


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


def test_what_is_shown_of_a_kernel_on_a_terminal() -> None:
    text = run("dump", *VECTORS, "--strategy", "kernel").stdout
    folded = fold_prelude(text)
    assert "lines of prelude" in folded
    assert "posix_memalign(void" not in folded
    first = next(line for line in text.splitlines() if line.startswith("static void tabulate("))
    assert text[text.index(first) :] in folded


def test_a_dump_of_a_polynomial_says_what_there_is() -> None:
    assert "graph(%self" in run("dump", "turned", "--stage", "script").stdout
    said = run("dump", "turned", "--stage", "code", "--direction", "backward", code=2).output
    assert "stage 'code' has no direction 'backward': only kernels" in said
    said = run("dump", "turned", "--stage", "sweep", "--direction", "grad_x1", code=2).output
    assert "not a call: 'grad_x1'; calls are forward, backward, second" in said
