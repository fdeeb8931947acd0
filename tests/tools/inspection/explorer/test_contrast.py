"""Every text can be read: contrast in both themes, and labels that do not overprint."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tpgen
from tests.machine import needs_compiler
from tests.tools.inspection.explorer.pages import HERE, STYLE, click
from tpgen.base.drawing.path_map import css_properties, draw_path_map
from tpgen.planner.presets import channelwise
from tpgen.tools.inspection.costs.roofline import Ceilings
from tpgen.tools.inspection.costs.roofline_picture import draw_roofline_svg


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


@pytest.mark.parametrize("width", [360, 700, 1000, 1440])
def test_nothing_is_cut_or_scrolls_sideways(page: Any, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        inner, whole, needed, shown = page.execute_script(
            "const title = document.querySelector('#title');"
            "return [innerWidth, document.documentElement.scrollWidth, title.scrollWidth, title.clientWidth]"
        )
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert inner == width
    assert whole <= width, "the page scrolls sideways"
    assert needed <= shown, "the title is cut"


def test_on_a_phone_buttons_stand_beside_one_another(page: Any) -> None:
    size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        tops = page.execute_script("return [...document.querySelectorAll('#tabs button')].map((one) => one.offsetTop)")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert len(tops) > 8
    assert len(set(tops)) <= 4


def test_numbers_have_contrast_on_the_colour_of_their_path() -> None:
    for index in range(64):
        hue, on = re.findall(r"#\w+", css_properties(index))
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
        draw_path_map(plan.map, interactive=True),
        *(draw_roofline_svg(one, interactive=True) for one in (slow, fast)),
    ):
        file = tmp_path / "drawing.html"
        file.write_text(f"<meta charset=utf-8><style>{STYLE}</style>{drawn}", encoding="utf-8")
        browser.get(file.as_uri())
        count, meeting, cut = browser.execute_script((HERE / "labels.js").read_text(encoding="utf-8"))
        assert count > 6
        assert not meeting
        assert not cut
