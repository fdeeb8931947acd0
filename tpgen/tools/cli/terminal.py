"""The terminal: where results are shown, and where a command says what it does while that takes long."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live


def screen() -> Console:
    """A console for results: as wide as the terminal, and wide enough for every table where there is none."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console() if known else Console(width=160)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Say on a terminal what takes long; what is yielded is told each step.

    No thread draws it anew: what is measured meanwhile is not disturbed.
    """
    with Live(f"{what} …", console=Console(stderr=True), auto_refresh=False, transient=True) as line:
        yield lambda step: line.update(f"{what}: {step} …", refresh=True)
