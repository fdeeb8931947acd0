"""How many attacks there are, where they begin, and how many have been compared with what is right.

A problem is a random product, layer, network and so on; a call is one comparison of values and derivatives.  What runs
without a fault have compared is added to ``record.json``, and to the page, by ``RECORD=1``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ATTACKS = int(os.environ.get("ATTACKS", 8))  # of each test
CALLS = 10 if "ATTACKS" in os.environ else 1  # of each random module: most of their time is compilation
SEED = int(os.environ.get("SEED", 0))
RECORD = Path(__file__).with_name("record.json")
PAGE = Path(__file__).parents[2] / "docs" / "versions.md"
HEAD = "| kind | random problems | random calls |"
PROBLEMS, CALLED = "problems of ", "calls of "
compared: Counter[str] = Counter()


def count(kind: str, calls: int) -> None:
    """Add one problem, and its calls."""
    compared.update({PROBLEMS + kind: min(calls, 1), CALLED + kind: calls})


@pytest.fixture(autouse=True)
def counted(record_property: Callable[[str, Any], None]) -> Iterator[None]:
    """Put what a test has compared into its report, which may come from another process."""
    before = compared.copy()
    yield
    record_property("attacks", dict(compared - before))


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int) -> None:
    if hasattr(terminalreporter.config, "workerinput"):
        return  # what a worker of pytest-xdist has compared is in the reports that it hands over
    total: Counter[str] = Counter()
    for report in terminalreporter.stats.get("", ()):  # of what comes before and after tests
        for name, found in report.user_properties * (report.when == "teardown"):
            total.update(found if name == "attacks" else {})
    if total:
        said = ", ".join(f"{number} {kind}" for kind, number in sorted(total.items()))
        terminalreporter.write_line(f"attacks compared, from SEED={SEED}: {said}")
    if total and exitstatus == 0 and "RECORD" in os.environ:
        _add(total)


def _add(total: Counter[str]) -> None:
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"seeds": [], "compared": {}}
    seeds, found = sorted({*record["seeds"], SEED}), dict(sorted((total + Counter(record["compared"])).items()))
    RECORD.write_text(json.dumps({"seeds": seeds, "compared": found}, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(HEAD)
    PAGE.write_text(before + table() + rest[rest.index("\n\n") :])


def table() -> str:
    """All that was ever compared without a fault: a row for each kind, as docs/versions.md has it."""
    total: Counter[str] = Counter()
    for kind, number in json.loads(RECORD.read_text())["compared"].items():
        total[kind.partition(",")[0]] += number
    kinds = sorted(kind.removeprefix(CALLED) for kind in total if kind.startswith(CALLED))
    rows = [f"| {kind} | {total[PROBLEMS + kind]:,} | {total[CALLED + kind]:,} |" for kind in kinds]
    return "\n".join([HEAD, "|---|---:|---:|", *rows])
