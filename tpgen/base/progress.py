"""Progress on stderr or in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from itertools import count
from typing import Any

ProgressOption = bool | Callable[[str], Any] | None  # whether a bar is drawn, or who is told the name of each step


def announce(what: str) -> None:
    """Print ``what`` on a terminal or in a notebook."""
    if sys.stderr.isatty() or _is_in_notebook():
        print(f"tpgen {what}", file=sys.stderr, flush=True)


class Progress:
    """Progress of steps, drawn by ``draw(activity, finished_steps)``."""

    def __init__(self, draw: Callable[[str, float], None] = lambda what, done: None) -> None:
        self._draw, self._what, self._done, self._shown = draw, "", 0, 0.0

    def begin_activity(self, what: str) -> None:
        """Show an activity's name."""
        self._what = what
        self._draw(what, self._done + self._shown)

    def report_share_of_step(self, share: float) -> None:
        """Report the finished share of the current step."""
        if share - self._shown >= 0.1:  # seldom: drawing costs as much as many small products
            self._shown = share
            self._draw(self._what, self._done + share)

    def finish_step(self) -> None:
        """Finish a step."""
        self._done, self._shown = self._done + 1, 0.0
        self._draw(self._what, self._done)


class _NotebookProgressBar:
    def __init__(self, what: str, done: float, total: int) -> None:
        self.what, self.done, self.total = what, done, total

    def __repr__(self) -> str:
        return f"{self.what} {int(self.done)}/{self.total}"

    def _repr_html_(self) -> str:
        bar = f'<progress max="{self.total}" value="{self.done:g}" aria-label="progress"></progress>'
        return f"<div>{bar} {int(self.done)}/{self.total} {escape(self.what)}</div>"


@contextmanager
def progress_bar(total: int) -> Iterator[Progress]:
    """Progress bar over ``total`` steps."""
    # drawn between steps only: a thread that refreshes would be measured too
    with (_notebook_bar_drawer if _is_in_notebook() else _terminal_bar_drawer)(total) as draw:
        yield Progress(draw)


@contextmanager
def step_reporter(progress: ProgressOption, total: int) -> Iterator[Callable[[str], Any]]:
    """Yield a reporter of step names: a bar (True), the user's function, or nothing.

    >>> seen = []
    >>> with step_reporter(seen.append, 1) as begin:
    ...     begin("first")
    >>> seen
    ['first']
    """
    if progress is True:
        with progress_bar(total) as shown:
            begun = count()

            def show_step_on_bar(step: str) -> None:
                if next(begun):
                    shown.finish_step()
                shown.begin_activity(step)

            yield show_step_on_bar
            shown.finish_step()
    else:
        yield progress or (lambda step: None)


@contextmanager
def _terminal_bar_drawer(total: int) -> Iterator[Callable[[str, float], None]]:
    from rich.console import Console  # where something is drawn, and not wherever a kernel is built
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), auto_refresh=False) as bars:
        task = bars.add_task("", total=total)
        yield lambda what, done: bars.update(task, description=what, completed=done, refresh=True)


@contextmanager
def _notebook_bar_drawer(total: int) -> Iterator[Callable[[str, float], None]]:
    from IPython.display import display  # it is there: `_is_in_notebook` has asked

    shown = display(_NotebookProgressBar("", 0, total), display_id=True)
    yield lambda what, done: shown.update(_NotebookProgressBar(what, done, total))


def _is_in_notebook() -> bool:
    # whether a kernel runs this: IPython in a terminal has none
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")
