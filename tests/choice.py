"""Which tests run, and what is said before them: how many there are, and about how long they take.

`--short` keeps the first case of each test, in rooms whose tests are quick.  A run remembers how many seconds its tests
took, by which the next says how long it will take.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

SECONDS = 0.5  # of a test on one core, before any run was measured here
SLOW = (  # rooms and files in which a test starts a process, a compiler of torch's or a browser
    *("benchmarks/", "tpgen/", "tests/attacks/", "tests/benchmarks/", "tests/examples/", "tests/kernels/build/"),
    *("tests/networks/deployment/", "tests/tools/demo/", "tests/tools/inspection/report/"),
    *("tests/test_docs.py", "tests/test_examples.py", "tests/test_site", "tests/test_types.py"),
    *("tests/test_architecture.py", "tests/test_changes.py", "tests/compiler/test_backends.py"),
)
_CACHE = "tpgen/seconds of a test"
_MANY = 500  # a run of fewer is one of somebody who chose them


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--short", action="store_true", help="the first case of quick tests alone: some five minutes")


def first_cases(names: Sequence[str]) -> list[str]:
    """The names of the first case of each test outside of slow rooms.

    >>> first_cases(["tests/a.py::t[1]", "tests/a.py::t[2]", "tests/b.py::u", "tests/attacks/c.py::v"])
    ['tests/a.py::t[1]', 'tests/b.py::u']
    """
    found: dict[str, str] = {}
    for name in names:
        if not name.startswith(SLOW):
            found.setdefault(name.split("[", 1)[0], name)
    return list(found.values())


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all but the first cases where a short run is wanted."""
    if config.getoption("--short"):
        kept = set(first_cases([item.nodeid for item in items]))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
        items[:] = [item for item in items if item.nodeid in kept]


def head(tests: int, seconds: float, workers: int, short: bool) -> str:
    """The line before the first test.

    >>> head(6000, 0.5, 2, short=False)
    '6,000 tests, about 25 minutes with 2 at a time; make test-short runs quick ones, some five minutes'
    """
    whole = "" if short else "; make test-short runs quick ones, some five minutes"
    minutes = max(1, round(tests * seconds / workers / 60))
    return f"{tests:,} tests, about {minutes} minutes with {workers} at a time{whole}"


class Choice:
    """Says how many tests there are once they are collected, here or by the first worker, and measures the run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.tests, self.start = config, 0, 0.0

    @property
    def cache(self) -> pytest.Cache | None:
        """Pytest's cache; None where a run is without (``-p no:cacheprovider``)."""
        return getattr(self.config, "cache", None)

    @property
    def workers(self) -> int:
        return len(getattr(self.config.option, "tx", None) or [0])

    def begin(self, tests: int) -> None:
        if self.tests or not tests:
            return
        self.tests, self.start = tests, time.perf_counter()
        seconds = self.cache.get(_CACHE, SECONDS) if self.cache else SECONDS
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and tests >= _MANY:
            reporter.write_line(head(tests, seconds, self.workers, self.config.getoption("--short")))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.begin(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self.begin(len(ids))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if self.tests >= _MANY and exitstatus in (0, 1) and self.cache and not self.config.getoption("--short"):
            took = (time.perf_counter() - self.start) * self.workers
            self.cache.set(_CACHE, took / self.tests)
