"""Warnings of calls that go a slower way: each once, and none where a proof goes every way on purpose."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


def say_once(text: str) -> None:
    """Warn, unless that was said before.

    >>> with unsaid():
    ...     say_once("this is slow")
    """
    if not _SILENT.get():
        _say(text)


@cache
def _say(text: str) -> None:
    warnings.warn(text, stacklevel=4)


@contextmanager
def unsaid() -> Iterator[None]:
    """Nothing is said, and nothing counts as said, in here."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)
