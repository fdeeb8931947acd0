"""Progress on stderr, drawn only between measurements: a thread that refreshes by itself would be measured too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress:
    """Says what goes on; this one says nothing."""

    def say(self, what: str) -> None:
        """A new activity begins."""

    def within(self, share: float) -> None:
        """So much of the present step is done."""

    def step(self) -> None:
        """One more step is done."""


class _Bar(Progress):
    def __init__(self, bars: Bars, total: int) -> None:
        self._bars, self._done, self._shown = bars, 0, 0.0
        self._task = bars.add_task("", total=total)

    def say(self, what: str) -> None:
        self._bars.update(self._task, description=what, refresh=True)

    def within(self, share: float) -> None:
        if share - self._shown >= 0.1:  # seldom: drawing costs as much as many small products
            self._shown = share
            self._bars.update(self._task, completed=self._done + share, refresh=True)

    def step(self) -> None:
        self._done, self._shown = self._done + 1, 0.0
        self._bars.update(self._task, completed=self._done, refresh=True)


@contextmanager
def no_progress(total: int) -> Iterator[Progress]:
    yield Progress()


@contextmanager
def rich_progress(total: int) -> Iterator[Progress]:
    """A bar over ``total`` steps."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), auto_refresh=False) as bars:
        yield _Bar(bars, total)
