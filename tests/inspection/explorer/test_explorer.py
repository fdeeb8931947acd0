"""The explorer: one file that needs nothing else; in a browser, a choice lights the right lines in every pane."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tpgen
from tests.cli.calls import VECTORS, run
from tests.inspection.explorer.browser import open_browser
from tests.machine import needs_compiler
from tpgen.drawing.path_map import diagram, hues
from tpgen.errors import TpgenError
from tpgen.inspection.costs.node_costs import node_costs
from tpgen.inspection.costs.roofline import Ceilings
from tpgen.inspection.costs.roofline_picture import roofline
from tpgen.inspection.explorer.drawing import path_map
from tpgen.inspection.explorer.highlight import highlighted
from tpgen.inspection.explorer.page import explorer_page, write_explorer, write_network_explorer
from tpgen.inspection.stages.dump import Request
from tpgen.inspection.stages.provenance import provenance
from tpgen.planner.plan import Plan, make_plan
from tpgen.planner.polynomial_problems import POLYNOMIALS
from tpgen.planner.presets import channelwise, fully_connected
from tpgen.planner.problems import PROBLEMS
from tpgen.text import quantity

HERE = Path(__file__).parent
STYLE = (Path(tpgen.__file__).parent / "inspection/explorer/explorer.css").read_text(encoding="utf-8")
GIVEN = Ceilings(bandwidth=1e10, flops=1e11)
KERNELS = ("sweep", "placement", "cpp", "cpp_backward", "cuda", "cuda_backward")
STAGES = ("plan", "form", "graph", "code", "script", "joint", *KERNELS)
ARTICLE = PROBLEMS["article"].plan


def large() -> Plan:
    """68 paths."""
    return channelwise("32x0e+32x0o+32x1o+32x1e+32x2e+32x2o+32x3o+32x3e", "0e+1o+2e+3o", "0e+0o+1o+1e+2e+2o+3o+3e")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorer")
    write_explorer(ARTICLE, folder / "article.html", ceilings=GIVEN)
    return folder


# --- the file ---------------------------------------------------------------------------------------------------------


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
    assert explorer_page(plan, ceilings=GIVEN) == explorer_page(plan, ceilings=GIVEN)


def test_what_is_missing_says_why() -> None:
    page = explorer_page(channelwise("4x0e", "0e", "0e"), ceilings=GIVEN, strategy="grouped", dtype=torch.float16)
    assert "kernels compute in float32, float64 or bfloat16, not in float16" in page
    with pytest.raises(TpgenError, match="unknown option 'channels'"):
        explorer_page(ARTICLE, channels=4)
    with pytest.raises(TpgenError, match="give a tpgen TensorProduct, a Linear, or the plan of one, not str"):
        explorer_page("article")  # type: ignore[arg-type]


def test_a_folder_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(TpgenError, match=r"the explorer is one file and '.*' is a folder: name a file in it"):
        write_explorer(ARTICLE, tmp_path)


@pytest.mark.parametrize("irreps", [("", "", ""), ("2x0e", "1o", "2x1o+1e")])
def test_a_product_without_paths_has_a_page(irreps: tuple[str, str, str]) -> None:
    page = explorer_page(make_plan(*irreps, []), ceilings=GIVEN, strategy="einsum")
    assert "the product has no paths" in page
    assert 'class="path"' not in page


def test_markup_in_texts_stays_text() -> None:
    assert highlighted("a < b && c", "text") == ["a &lt; b &amp;&amp; c"]
    assert highlighted("x = '</script>'\n\n", "python")[0] == "x = <i class=s>'&lt;/script&gt;'</i>"
    assert len(highlighted("int a;\n\n// b\n", "cpp")) == 4


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert run("explore", *VECTORS, "--strategy", "einsum", "--out", str(file)).stdout == f"{file}\n"
    assert "4x1o x 1x1o -&gt; 4x1e" in file.read_text(encoding="utf-8")
    assert "unknown name 'nobody'" in run("explore", "nobody", code=2).stderr
    run("explore", "small-contraction", "--strategy", "einsum", "--out", str(file))
    assert "term 0: x × x × x → 1x0e" in file.read_text(encoding="utf-8")
    assert "--inductor" in run("explore", "harmonics", "--inductor", code=2).stderr


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(browser: Any, pages: Path) -> Iterator[Any]:
    """The article's page, opened anew; a test that leaves a message on the console fails."""
    browser.get((pages / "article.html").as_uri())
    browser.get_log("browser")
    yield browser
    assert browser.get_log("browser") == []


def keys(page: Any, *pressed: str) -> None:
    from selenium.webdriver.common.by import By

    page.find_element(By.TAG_NAME, "body").send_keys(*pressed)


def click(page: Any, selector: str) -> None:
    page.execute_script(
        "document.querySelector(arguments[0]).dispatchEvent(new MouseEvent('click', {bubbles: true}))", selector
    )


def lit(page: Any) -> dict[str, list[int]]:
    """Numbers of the lit lines of every pane."""
    return page.execute_script(
        "const found = {}; for (const pane of document.querySelectorAll('.pane')) found[pane.id.slice(5)] = "
        "[...pane.querySelectorAll('.code b')].flatMap((line, n) => "
        "line.classList.contains('lit') || line.classList.contains('own') ? [n + 1] : []); return found"
    )


@needs_compiler
def test_choosing_a_path_lights_its_lines_in_every_pane(page: Any) -> None:
    graphs = provenance(ARTICLE, STAGES[:6], strategy="einsum")
    kernels = provenance(ARTICLE, KERNELS, strategy="kernel")
    for path in (0, 5):
        click(page, f'.path[data-p="{path}"] .dot')
        wanted = {**graphs.trace_forward(path), **kernels.trace_forward(path)}
        found = lit(page)
        assert found.pop("inductor") == []
        found.pop("ptx")  # which there is where NVRTC is
        assert found == {name: list(lines) for name, lines in wanted.items()}
        assert all(wanted.values())
        assert f"path {path}" in page.execute_script("return document.getElementById('chosen').textContent")


def test_choosing_a_line_lights_its_path_everywhere(page: Any) -> None:
    click(page, "#pane-form .code b:nth-child(5)")
    found = lit(page)
    assert found["form"] == [5]
    assert found["graph"]
    assert page.execute_script("return document.querySelector('.path.lit').dataset.p") == "3"


def test_keys_go_through_the_paths_and_search(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    keys(page, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert lit(page)["form"] == [3]
    keys(page, Keys.ARROW_UP, Keys.ARROW_UP)
    assert lit(page)["form"] == [12]
    keys(page, "3", "/")  # the third pane is the form
    assert page.execute_script("return document.activeElement.id") == "search"
    field = page.switch_to.active_element
    field.send_keys("path 7")
    assert page.execute_script("return document.querySelectorAll('#pane-form .hit').length") == 1
    field.send_keys(Keys.ENTER)  # chooses what was found
    assert page.execute_script("return document.querySelector('.path.lit').dataset.p") == "7"
    assert re.fullmatch(r"\d+/\d+", page.execute_script("return document.getElementById('found').textContent"))
    field.send_keys(Keys.ESCAPE)
    assert not any(lit(page).values())
    assert page.execute_script("return document.querySelectorAll('.hit').length") == 0


def test_a_path_is_chosen_by_tab_and_enter(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    page.execute_script("document.querySelector('.path[data-p=\"2\"]').focus()")
    page.switch_to.active_element.send_keys(Keys.TAB)
    page.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.execute_script("return document.querySelector('.path.lit').dataset.p") == "3"


def test_tabs_open_panes_and_the_switch_changes_the_colours(page: Any) -> None:
    shown = "return !document.getElementById('pane-plan').hidden"
    assert not page.execute_script(shown)
    click(page, '#tabs [data-pane="pane-plan"]')
    assert page.execute_script(shown)
    paper = "return getComputedStyle(document.body).backgroundColor"
    before = page.execute_script(paper)
    click(page, "#theme")
    assert page.execute_script(paper) != before


def test_the_costs_follow_the_choice_and_choose(page: Any) -> None:
    assert page.execute_script("return document.querySelectorAll('#bars tr[data-p]').length") == len(ARTICLE.paths)
    click(page, '#bars tr[data-p="6"] span')
    assert page.execute_script("return document.querySelector('.path.lit').dataset.p") == "6"
    shown = "return [...document.querySelectorAll('#roofline .point')].filter(p => p.getClientRects().length).length"
    assert page.execute_script(shown) == 1
    tab = "return document.querySelector('#tabs [data-pane=\"pane-form\"]').dataset.count"
    assert page.execute_script(tab) == "1"


def test_keys_are_explained_and_panes_have_numbers(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    keys(page, "?")
    assert page.execute_script("return document.getElementById('help').open")
    keys(page, Keys.ESCAPE)
    assert not page.execute_script("return document.getElementById('help').open")
    keys(page, "2")
    assert not page.execute_script("return document.getElementById('pane-plan').hidden")
    width = "return document.querySelector('#pane-code .code').scrollWidth"
    before = page.execute_script(width)
    keys(page, "w")
    assert page.execute_script(width) < before


def test_open_panes_fill_the_window(page: Any) -> None:
    left = (
        "const grid = document.getElementById('panes').getBoundingClientRect();"
        "const open = [...document.querySelectorAll('.board, .pane')].filter(pane => !pane.hidden);"
        "const area = box => box.width * box.height;"
        "return 1 - open.reduce((sum, pane) => sum + area(pane.getBoundingClientRect()), 0) / area(grid)"
    )
    for opened in "234561":  # one pane more or less each time
        keys(page, opened)
        assert abs(page.execute_script(left)) < 0.01


def test_lines_keep_their_numbers_where_they_are_not_laid_out(page: Any) -> None:
    """Lines stand in chunks that a browser lays out as they come into view; a choice still scrolls to its line."""
    keys(page, "\ue013")  # up: the last path
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    seen = page.execute_script(
        "const box = document.querySelector('#pane-joint .code'), room = box.getBoundingClientRect();"
        "return [...box.querySelectorAll('.own')].some(line => { const at = line.getBoundingClientRect();"
        "return at.height > 0 && at.top >= room.top && at.bottom <= room.bottom })"
    )
    assert seen
    starts = page.execute_script(
        "return [...document.querySelectorAll('#pane-joint .code > span')].map(chunk =>"
        "[Number(chunk.style.getPropertyValue('--from')), chunk.children.length])"
    )
    assert [first for first, _ in starts] == [sum(n for _, n in starts[:k]) for k in range(len(starts))]


@needs_compiler  # macros and comments are coloured in C++ alone
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_contrast(page: Any, theme: str) -> None:
    """Texts against the backgrounds they stand on, in every state: the ratio that WCAG asks for."""
    page.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    page.execute_script(
        "for (const pane of document.querySelectorAll('.pane, .code details')) pane.hidden = false, pane.open = true"
    )
    checked = 0
    for choice in (3, 6):  # what is lit, shared, found by a search, and what is of no path
        click(page, f'.path[data-p="{choice}"] .dot')
        page.execute_script("search('x2')")
        texts = page.execute_script((HERE / "texts.js").read_text(encoding="utf-8"))
        checked += len(texts)
        pale = [what for text, ground, what in texts if contrast(text, ground) < 4.5]
        assert not pale
    assert checked > 60


def test_numbers_have_contrast_on_the_colour_of_their_path() -> None:
    for index in range(64):
        hue, on = re.findall(r"#\w+", hues(index))
        text = "".join(2 * c for c in on[1:]) if len(on) == 4 else on[1:]
        assert contrast(*([int(h[n : n + 2], 16) for n in (0, 2, 4)] for h in (text, hue[1:]))) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_state_of_a_button_has_contrast(page: Any, theme: str) -> None:
    page.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    states = page.execute_script(
        "const read = b => [b.className + b.getAttribute('aria-pressed'), getComputedStyle(b).color,"
        " getComputedStyle(b).backgroundColor]; const found = [];"
        "for (const tab of document.querySelectorAll('#tabs button')) {"
        " found.push(read(tab)); tab.click(); found.push(read(tab)); tab.click(); } return found"
    )
    assert {state for state, _, _ in states} >= {"true", "false", "missingtrue", "missingfalse"}
    assert all(contrast(channels(text), channels(ground)) >= 4.5 for _, text, ground in states)


def channels(color: str) -> list[float]:
    """Red, green and blue of a colour as a browser writes it."""
    return [float(n) for n in re.findall(r"\d+", color)[:3]]


def test_the_costliest_path_is_chosen_first_and_the_address_names_the_choice(page: Any, pages: Path) -> None:
    chosen = "return [...document.querySelectorAll('.path.lit')].map(path => path.dataset.p).join()"
    page.get("about:blank")
    page.get((pages / "article.html").as_uri())
    flops = [path.flops for path in PROBLEMS["article"].plan.paths]
    assert page.execute_script(chosen) == str(flops.index(max(flops)))
    click(page, '.path[data-p="3"] .dot')
    assert page.execute_script("return location.hash") == "#path=3"
    page.get("about:blank")
    page.get((pages / "article.html").as_uri() + "#path=5,2")
    assert page.execute_script(chosen) == "2,5"


def contrast(*colors: Sequence[float]) -> float:
    dark, light = sorted(luminance(color) for color in colors)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: Sequence[float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (n / 255 for n in color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("flops", [1e9, 1e11, 1e13])
def test_labels_never_overprint(browser: Any, tmp_path: Path, flops: float) -> None:
    """Of the map and of the roofline, whichever side of the ridge a product stands on."""
    plan = channelwise("128x0e+128x1o+1024x2e+128x10o", "0e+1o+2e+3o", "0e+0o+1o+1e+2e+2o+3o+3e+10o+11e")
    found = tpgen.explain(plan, rows=100, strategy="einsum", ceilings=Ceilings(1e10, flops))
    slow, fast = (replace(found, forward_seconds=seconds) for seconds in (0.02, found.predicted_seconds))
    for drawn in (
        diagram(path_map(plan), interactive=True),
        *(roofline(one, one.paths, interactive=True) for one in (slow, fast)),
    ):
        file = tmp_path / "drawing.html"
        file.write_text(f"<meta charset=utf-8><style>{STYLE}</style>{drawn}", encoding="utf-8")
        browser.get(file.as_uri())
        count, meeting, cut = browser.execute_script((HERE / "labels.js").read_text(encoding="utf-8"))
        assert count > 6
        assert not meeting
        assert not cut


@needs_compiler
def test_a_large_product_opens_without_a_request(browser: Any, tmp_path: Path) -> None:
    file = write_explorer(large(), tmp_path / "large.html", ceilings=GIVEN)
    assert file.stat().st_size < 5e6
    browser.get_log("performance")
    browser.get(file.as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.querySelectorAll('.path').length") == len(large().paths) >= 60
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert all(url.startswith(("file:", "data:")) for url in asked)
    room = "const map = document.getElementById('map'); return map.scrollHeight - map.clientHeight"
    assert browser.execute_script(room) <= 0, "the map of 68 paths stands on the screen whole"
    click(browser, '.path[data-p="67"] .dot')
    lines_of = lit(browser)
    assert all(lines_of[stage] for stage in STAGES)


def test_measured_times_are_drawn_beside_one_another(browser: Any, tmp_path: Path) -> None:
    plan = channelwise("8x0e+8x1o", "0e+1o", "0e+1o")
    file = write_explorer(plan, tmp_path / "measured.html", ceilings=GIVEN, strategy="einsum", rows=8, measure=True)
    browser.get(file.as_uri())
    heads = browser.execute_script("return [...document.querySelectorAll('#bars th')].map(head => head.textContent)")
    assert heads[-1] == "time alone"
    bars = (
        "return [...document.querySelectorAll('#bars td:last-child s')].map(bar => bar.getBoundingClientRect().width)"
    )
    assert all(width > 0 for width in browser.execute_script(bars))
    assert browser.execute_script("return document.querySelectorAll('#roofline .measured').length") == 1
    overlaps = browser.execute_script(
        "const boxes = [...document.querySelectorAll('#roofline text')].filter(text =>"
        "/predicted|measured/.test(text.textContent)).map(text => text.getBoundingClientRect());"
        "return [boxes.length, boxes.some((a, n) => boxes.some((b, m) => n < m &&"
        "a.left < b.right && b.left < a.right && a.top + 1 < b.bottom && b.top + 1 < a.bottom))]"
    )
    assert overlaps == [2, False]


@pytest.mark.parametrize("problem", ["mace-large", "tetris-1"])
def test_pages_of_larger_products_have_every_path(problem: str) -> None:
    plan = PROBLEMS[problem].plan
    page = explorer_page(plan, ceilings=GIVEN, strategy="einsum")
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


def test_a_linear_layer_has_a_page(browser: Any, tmp_path: Path) -> None:
    layer = tpgen.Linear("8x0e+8x1o", "4x0e+8x1o", strategy="kernel")
    browser.get(write_explorer(layer, tmp_path / "linear.html", ceilings=GIVEN, rows=10).as_uri())
    click(browser, '.path[data-p="1"] .dot')
    found = lit(browser)
    assert all(found[stage] for stage in (*STAGES[:6], "sweep", "placement"))
    traced = provenance(layer, ["cpp"]).stage("cpp")
    assert found["cpp"] in ([], list(traced.lines_of(1)))  # empty without a compiler
    chosen = browser.execute_script("return document.getElementById('chosen').textContent")
    assert "8x1o → 8x1o" in chosen
    assert "mode" not in chosen
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("name", ["small-contraction", "harmonics"])
def test_a_polynomial_has_a_page_of_its_terms(browser: Any, tmp_path: Path, name: str) -> None:
    plan = POLYNOMIALS[name].plan
    browser.get(write_explorer(plan, tmp_path / "polynomial.html", ceilings=GIVEN, rows=10).as_uri())
    for n, term in enumerate(plan.terms):
        click(browser, f'.path[data-p="{n}"] .dot')
        found = lit(browser)
        assert len(found["plan"]) == 1
        assert f"term {n}" in browser.execute_script("return document.getElementById('chosen').textContent")
        assert found["form"]
        assert found["sweep"]
        for pane in ("form", "sweep"):
            own = browser.execute_script(
                "return [...document.querySelectorAll(arguments[0])].map(line => line.textContent)",
                f"#pane-{pane} .own",
            )
            others = {t.weight for t in plan.terms} - {term.weight, None}
            assert not any(weight in line for weight in others for line in own)
    assert browser.get_log("browser") == []


# --- several products -------------------------------------------------------------------------------------------------


class Two(torch.nn.Module):
    """Two products of different size, by names that need escaping in an address."""

    def __init__(self) -> None:
        super().__init__()
        self.small = tpgen.TensorSquare("2x1o", strategy="einsum")
        self.layers = torch.nn.ModuleList([tpgen.TensorProduct.from_plan(MEDIUM, strategy="einsum")])

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x, y).sum() + self.small(x[:, :6]).sum()


MEDIUM = fully_connected("8x0e+8x1o", "0e+1o", "8x0e+8x1o")


@pytest.fixture(scope="module")
def network_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("network") / "page.html"
    return write_network_explorer(Two(), [torch.zeros(5, 32), torch.zeros(5, 4)], file, ceilings=GIVEN)


def test_products_of_a_network_stand_on_one_page(browser: Any, network_page: Path) -> None:
    title = "return document.getElementById('title').textContent"
    browser.get_log("browser")
    browser.get(network_page.as_uri())
    assert browser.execute_script(title).startswith("8x0e+8x1o x"), "the product with most operations comes first"
    assert browser.execute_script("return location.hash") == "#product=layers.0&path=1"
    keys(browser, "]")
    assert browser.execute_script(title).startswith("2x1o x 2x1o")
    assert "small" in browser.execute_script("return location.hash")
    click(browser, "#pane-form .code b:nth-child(2)")
    assert lit(browser)["form"] == [2]
    browser.get("about:blank")
    browser.get(network_page.as_uri() + "#product=layers.0&path=2")
    assert browser.execute_script(title).startswith("8x0e+8x1o x")
    assert lit(browser)["form"] == [4]
    options = "return [...document.querySelectorAll('#product option')].map(option => option.textContent)"
    assert browser.execute_script(options)[1] == f"layers.0: 4 paths, {quantity(5 * MEDIUM.flops, 'FLOP')}"
    assert browser.get_log("browser") == []


# --- folds and notes --------------------------------------------------------------------------------------------------


@needs_compiler
def test_preludes_are_folded_and_open_for_a_search(page: Any) -> None:
    is_open = "return document.querySelector('#pane-cpp details').open"
    assert not page.execute_script(is_open)
    assert "prelude, " in page.execute_script("return document.querySelector('#pane-cpp summary').textContent")
    page.execute_script("search('posix_memalign')")
    assert page.execute_script(is_open)
    numbers = (
        "return [...document.querySelectorAll('#pane-cpp .code span')].map(c => c.style.getPropertyValue('--from'))"
    )
    found = list(map(int, page.execute_script(numbers)))
    assert found == sorted(found), "lines keep their numbers in a fold"


def test_a_line_of_a_graph_says_what_it_makes(page: Any) -> None:
    """For the rows of the page: the shape of its result, its bytes and its operations."""
    costs = node_costs(Request(ARTICLE, strategy="einsum", rows=1000))
    said = page.execute_script(
        "const lines = [...document.querySelectorAll('#pane-code b')];"
        "const line = lines.find(line => /^ *path1_einsum =/.test(line.textContent));"
        "line.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));"
        "const note = document.getElementById('note'); return note.hidden ? '' : note.textContent"
    )
    assert said == str(costs["path1_einsum"]) == "1000×2×3 float32, 24 kB, 24 kFLOP"
    page.execute_script("document.body.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))")
    assert page.execute_script("return document.getElementById('note').hidden")
