"""In a browser: large products, linear layers, polynomials, and several products on one page."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tpgen
from tests.machine import needs_compiler
from tests.tools.inspection.explorer.pages import GIVEN, STAGES, click, keys, large, lit
from tpgen.base.text import quantity
from tpgen.planner.presets import channelwise, fully_connected
from tpgen.planner.problems import POLYNOMIALS
from tpgen.tools.inspection.explorer.page import write_explorer, write_network_explorer
from tpgen.tools.inspection.stages.provenance import provenance


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
