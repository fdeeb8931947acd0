"""The site that `make docs` builds, in a browser, from disk: it searches, and no page is wider than its window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.inspection.explorer.browser import open_browser

SITE = Path(__file__).parent.parent / "site"
ALONE = ("404.html", "explorer_live.html", "layer_explorer.html")  # no pages of the theme
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if path.name not in ALONE)
_WIDE = """
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const cut = [...document.querySelectorAll(".md-content img, .md-content svg")].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.right > document.documentElement.clientWidth + 1;
});
return [wide, cut.length];
"""

needs_site = pytest.mark.skipif(not PAGES, reason="THE SITE IS NOT TESTED: `make docs` builds it")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@needs_site
@pytest.mark.parametrize("width", [400, 1440])
def test_no_page_is_wider_than_its_window(browser: Any, width: int) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    found = {}
    for page in PAGES:
        browser.get((SITE / page).as_uri())
        found[page] = browser.execute_script(_WIDE)
    assert {page: wide for page, wide in found.items() if wide != [0, 0]} == {}


@needs_site
def test_the_site_searches_from_disk_and_asks_no_server(browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get_log("performance")
    browser.get((SITE / "index.html").as_uri())
    browser.execute_script("document.querySelector('#__search').click()")
    browser.find_element(By.CSS_SELECTOR, ".md-search__input").send_keys("symmetric contraction")
    results = WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, ".md-search-result__link"))
    assert any("polynomials" in result.get_attribute("href") for result in results)
    asked = [entry["message"] for entry in browser.get_log("performance") if "requestWillBeSent" in entry["message"]]
    assert asked
    assert not [message for message in asked if '"url":"http' in message]
