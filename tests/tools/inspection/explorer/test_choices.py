"""In a browser, a choice lights the right lines in every pane."""

import re
from pathlib import Path
from typing import Any

from tests.machine import needs_compiler
from tests.tools.inspection.explorer.pages import ARTICLE, KERNELS, STAGES, click, keys, lit
from tpgen.planner.problems import PROBLEMS
from tpgen.tools.inspection.costs.node_costs import compute_node_costs
from tpgen.tools.inspection.stages.provenance import provenance
from tpgen.tools.inspection.stages.request import Request


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


def test_an_address_of_what_is_not_there_says_so(page: Any, pages: Path) -> None:
    def said(address: str) -> str:
        page.get("about:blank")
        page.get((pages / "article.html").as_uri() + address)
        return page.execute_script("return document.getElementById('chosen').textContent")

    assert said("#path=99").startswith("This page has no path 99.")
    flops = [path.flops for path in PROBLEMS["article"].plan.paths]
    costliest = f"#path={flops.index(max(flops))}"
    assert page.execute_script("return location.hash") == costliest, "as without an address"
    assert said("#product=layers.0&path=2,x").startswith("This page has no product layers.0, no path x.")
    assert page.execute_script("return location.hash") == "#path=2"
    assert "has no" not in said("#path=2")


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
    costs = compute_node_costs(Request(ARTICLE, strategy="einsum", rows=1000))
    said = page.execute_script(
        "const lines = [...document.querySelectorAll('#pane-code b')];"
        "const line = lines.find(line => /^ *path1_einsum =/.test(line.textContent));"
        "line.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));"
        "const note = document.getElementById('note'); return note.hidden ? '' : note.textContent"
    )
    assert said == str(costs["path1_einsum"]) == "1000×2×3 float32, 24 kB, 24 kFLOP"
    page.execute_script("document.body.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))")
    assert page.execute_script("return document.getElementById('note').hidden")
