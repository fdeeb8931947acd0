"""A browser, and the page of a small product opened in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.inspection.explorer.browser import open_browser
from tests.tools.inspection.explorer.pages import ARTICLE, GIVEN
from tpgen.tools.inspection.explorer.page import write_explorer


@pytest.fixture(scope="package")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorer")
    write_explorer(ARTICLE, folder / "article.html", ceilings=GIVEN)
    return folder


@pytest.fixture(scope="package")
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
