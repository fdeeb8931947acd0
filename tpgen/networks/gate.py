"""Locks of networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, get_ident


class Gate:
    """Lock of a network: many calls, or one trace."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._calls, self._writer = 0, 0

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Hold the lock for a call, after a running trace."""
        with self._changed:
            self._changed.wait_for(lambda: self._writer in (0, get_ident()))
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[bool]:
        """Hold the lock for a trace, after up to a second; yield whether the trace may begin."""
        with self._changed:
            free = self._changed.wait_for(lambda: not (self._calls or self._writer), timeout=1.0)
            self._writer = get_ident() if free else self._writer
        try:
            yield free
        finally:
            if free:
                with self._changed:
                    self._writer = 0
                    self._changed.notify_all()
