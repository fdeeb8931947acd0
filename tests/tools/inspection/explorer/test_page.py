"""The explorer is one file that needs nothing else."""

import re
from pathlib import Path

import pytest
import torch

from tests.machine import needs_compiler
from tests.tools.cli.calls import VECTORS, run
from tests.tools.inspection.explorer.pages import ARTICLE, GIVEN, STAGES
from tpgen.base.errors import TpgenError
from tpgen.planner.presets import channelwise
from tpgen.planner.problems import PROBLEMS
from tpgen.planner.product import make_plan
from tpgen.tools.inspection.explorer.page import make_explorer_page, write_explorer
from tpgen.tools.inspection.explorer.sheet import highlight_lines
from tpgen.tools.inspection.stages.provenance import provenance


def test_the_page_needs_nothing_else(pages: Path) -> None:
    page = (pages / "article.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=(?!"data:)|url\(|@import|https?://""", page)
    assert "default-src 'none'" in page
    assert all(f'id="pane-{stage}"' in page for stage in STAGES)
    assert "left out; --inductor (inductor=True) adds it" in page


@needs_compiler
def test_lines_say_which_paths_they_serve(pages: Path) -> None:
    page = (pages / "article.html").read_text(encoding="utf-8")
    source = re.search(r'id="pane-cpp" ?(?:hidden)?>.*?<pre class="code">(.*?)</pre>', page, re.DOTALL)
    assert source
    marks = re.findall(r'<b (?:data-p="([^"]*)"|title="[^"]*")>', source[1])
    traced = provenance(ARTICLE, ["cpp"], strategy="kernel").stage("cpp")
    assert [mark.split() for mark in marks] == [[str(i) for i in o.instructions] for o in traced.origins]


def test_the_page_is_the_same_every_time() -> None:
    plan = channelwise("4x0e", "0e", "0e")
    assert make_explorer_page(plan, ceilings=GIVEN) == make_explorer_page(plan, ceilings=GIVEN)


def test_what_is_missing_says_why() -> None:
    page = make_explorer_page(channelwise("4x0e", "0e", "0e"), ceilings=GIVEN, strategy="grouped", dtype=torch.float16)
    assert "kernels compute in float32, float64 or bfloat16, not in float16" in page
    with pytest.raises(TpgenError, match="unknown option 'channels'"):
        make_explorer_page(ARTICLE, channels=4)


def test_a_folder_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(TpgenError, match=r"the explorer is one file and '.*' is a folder: name a file in it"):
        write_explorer(ARTICLE, tmp_path)


@pytest.mark.parametrize("irreps", [("", "", ""), ("2x0e", "1o", "2x1o+1e")])
def test_a_product_without_paths_has_a_page(irreps: tuple[str, str, str]) -> None:
    page = make_explorer_page(make_plan(*irreps, []), ceilings=GIVEN, strategy="einsum")
    assert "the product has no paths" in page
    assert 'class="path"' not in page


def test_markup_in_texts_stays_text() -> None:
    assert highlight_lines("a < b && c", "text") == ["a &lt; b &amp;&amp; c"]
    assert highlight_lines("x = '</script>'\n\n", "python")[0] == "x = <i class=s>'&lt;/script&gt;'</i>"
    assert len(highlight_lines("int a;\n\n// b\n", "cpp")) == 4


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert run("explore", *VECTORS, "--strategy", "einsum", "--out", str(file)).stdout == f"{file}\n"
    assert "4x1o x 1x1o -&gt; 4x1e" in file.read_text(encoding="utf-8")
    assert "unknown name 'nobody'" in run("explore", "nobody", code=2).stderr
    run("explore", "small-contraction", "--strategy", "einsum", "--out", str(file))
    assert "term 0: x × x × x → 1x0e" in file.read_text(encoding="utf-8")
    run("explore", "harmonics", "--inductor", "--out", str(file))
    assert "async_compile" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("problem", ["mace-large", "tetris-1"])
def test_pages_of_larger_products_have_every_path(problem: str) -> None:
    plan = PROBLEMS[problem].plan
    page = make_explorer_page(plan, ceilings=GIVEN, strategy="einsum")
    assert page.count('class="path"') == len(plan.paths)
    assert all(f'id="pane-{stage}"' in page for stage in STAGES)


def test_the_command_shows_a_product_of_the_demo(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    run("explore", "--network", "tetris", "--product", "last.message", "--out", str(file))
    page = file.read_text(encoding="utf-8")
    assert "for 78 rows" in page
    assert page.count("<template") == 1
    wrong = run("explore", "--network", "tetris", "--product", "last.massage", "--out", str(file), code=2)
    assert "unknown product 'last.massage'" in wrong.stderr
