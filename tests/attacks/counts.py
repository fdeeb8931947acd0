"""How many attacks there are, where they begin, and how many have been compared with what is right."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

ATTACKS = int(os.environ.get("ATTACKS", 8))  # of each test
CALLS = 10 if "ATTACKS" in os.environ else 1  # of each random module: most of their time is compilation
SEED = int(os.environ.get("SEED", 0))
compared: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def counted(record_property: Callable[[str, Any], None]) -> Iterator[None]:
    """Put what a test has compared into its report, which may come from another process."""
    before = compared.copy()
    yield
    record_property("attacks", dict(compared - before))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    total: Counter[str] = Counter()
    for report in terminalreporter.stats.get("", ()):  # of what comes before and after tests
        for name, found in report.user_properties * (report.when == "teardown"):
            total.update(found if name == "attacks" else {})
    if total:
        said = ", ".join(f"{number} of {kind}" for kind, number in sorted(total.items()))
        terminalreporter.write_line(f"attacks compared, from SEED={SEED}: {said}")
