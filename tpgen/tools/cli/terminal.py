"""Results and progress on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live


def make_console() -> Console:
    """A console for results, 160 columns wide without terminal."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console() if known else Console(width=160)


@contextmanager
def show_progress(title: str) -> Iterator[Callable[[str], None]]:
    """Show a title on stderr; yield a function that shows a step."""
    # redrawn at each step only: a thread would disturb measurements
    with Live(f"{title} …", console=Console(stderr=True), auto_refresh=False, transient=True) as line:
        yield lambda step: line.update(f"{title}: {step} …", refresh=True)
