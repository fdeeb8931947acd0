"""A headless Chromium, where there is one; tests that need it skip with the reason where there is none."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1440,900",
)
_HOW = (
    "install them (Debian: apt-get install chromium chromium-driver; pip install selenium), "
    "or the explorer is not tested in a browser"
)


def find_browser() -> tuple[str, str]:
    """Paths of Chromium and its driver."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    parts = {"chromium": browser, "chromedriver": driver, "selenium": find_spec("selenium")}
    missing = [name for name, found in parts.items() if found is None]
    if missing:
        reason = f"BROWSER TESTS DO NOT RUN: no {' and no '.join(missing)} here; {_HOW}"
        warnings.filterwarnings("default", message="BROWSER TESTS DO NOT RUN")  # loud, and no error
        warnings.warn(reason, UserWarning, stacklevel=2)
        pytest.skip(reason)
    assert browser is not None
    assert driver is not None
    return browser, driver


@contextmanager
def open_browser(profile: Path) -> Iterator[Any]:
    """A browser with a fresh profile that records what its console says."""
    browser, driver = find_browser()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver, log_output=os.devnull))
    try:
        yield opened
    finally:
        opened.quit()
