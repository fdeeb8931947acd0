"""Words and bars for what takes long: on stderr, or in the cell of a notebook.

Bars are drawn only between steps: a thread that refreshes by itself would be measured too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from itertools import count
from typing import Any

Told = bool | Callable[[str], Any] | None  # whether a bar is drawn, or who is told the name of each step


def announce(what: str) -> None:
    """Say what begins to take long, where somebody looks: at a terminal, or in a notebook."""
    if sys.stderr.isatty() or _in_notebook():
        print(f"tpgen {what}", file=sys.stderr, flush=True)


class Progress:
    """Says what goes on, to what ``draw`` draws from the activity and how many steps are done; to nobody without."""

    def __init__(self, draw: Callable[[str, float], None] = lambda what, done: None) -> None:
        self._draw, self._what, self._done, self._shown = draw, "", 0, 0.0

    def say(self, what: str) -> None:
        """A new activity begins."""
        self._what = what
        self._draw(what, self._done + self._shown)

    def within(self, share: float) -> None:
        """So much of the present step is done."""
        if share - self._shown >= 0.1:  # seldom: drawing costs as much as many small products
            self._shown = share
            self._draw(self._what, self._done + share)

    def step(self) -> None:
        """One more step is done."""
        self._done, self._shown = self._done + 1, 0.0
        self._draw(self._what, self._done)


class _NotebookBar:
    """A bar in a notebook's cell, of an element that every browser knows."""

    def __init__(self, what: str, done: float, total: int) -> None:
        self.what, self.done, self.total = what, done, total

    def __repr__(self) -> str:
        return f"{self.what} {int(self.done)}/{self.total}"

    def _repr_html_(self) -> str:
        bar = f'<progress max="{self.total}" value="{self.done:g}" aria-label="progress"></progress>'
        return f"<div>{bar} {int(self.done)}/{self.total} {escape(self.what)}</div>"


@contextmanager
def bar(total: int) -> Iterator[Progress]:
    """A bar over ``total`` steps: in the cell where this runs in a notebook, else on stderr."""
    with (_notebook_bar if _in_notebook() else _terminal_bar)(total) as draw:
        yield Progress(draw)


@contextmanager
def told(progress: Told, total: int) -> Iterator[Callable[[str], Any]]:
    """Who is told the name of each step as it begins: a bar over ``total`` steps, a function of the user's, or nobody.

    >>> seen = []
    >>> with told(seen.append, 1) as begin:
    ...     begin("first")
    >>> seen
    ['first']
    """
    if progress is True:
        with bar(total) as shown:
            begun = count()

            def begin(step: str) -> None:
                """A step ends where the next one begins."""
                if next(begun):
                    shown.step()
                shown.say(step)

            yield begin
            shown.step()
    else:
        yield progress or (lambda step: None)


@contextmanager
def _terminal_bar(total: int) -> Iterator[Callable[[str, float], None]]:
    from rich.console import Console  # where something is drawn, and not wherever a kernel is built
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), auto_refresh=False) as bars:
        task = bars.add_task("", total=total)
        yield lambda what, done: bars.update(task, description=what, completed=done, refresh=True)


@contextmanager
def _notebook_bar(total: int) -> Iterator[Callable[[str, float], None]]:
    from IPython.display import display  # it is there: `_in_notebook` has asked

    shown = display(_NotebookBar("", 0, total), display_id=True)
    yield lambda what, done: shown.update(_NotebookBar(what, done, total))


def _in_notebook() -> bool:
    # whether a kernel runs this: IPython in a terminal has none
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")
