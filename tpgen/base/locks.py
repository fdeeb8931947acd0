"""Locks, cached properties, collector pauses."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property:
        """Property computed at first use, without locks: Python 3.12's `functools.cached_property`.

        >>> class Square:
        ...     @cached_property
        ...     def area(self) -> int:
        ...         print("computed")
        ...         return 4
        >>> square = Square()
        >>> square.area + square.area
        computed
        8
        """

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self.func, self.__doc__ = function, function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self.func(instance)
            return value


class ForkedLock:
    """Holds a lock, replaced by an unlocked one in forked processes."""

    # a forked worker of a DataLoader has one thread: it would wait forever for a lock of another
    def __init__(self, make_lock: Callable[[], Any] = threading.Lock) -> None:
        self._kind = make_lock
        self._make_new_lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._make_new_lock)

    def _make_new_lock(self) -> None:
        self.lock = self._kind()


class _GarbageCollectorPauses:
    def __init__(self) -> None:
        """Begin without pauses, in forked processes too."""
        self._guard, self._asked, self._enabled = ForkedLock(), 0, False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.end_garbage_collection_pauses)

    def pause_garbage_collection(self) -> None:
        with self._guard.lock:
            if not self._asked:
                self._enabled = gc.isenabled()
                gc.disable()
            self._asked += 1

    def resume_garbage_collection(self) -> None:
        with self._guard.lock:
            self._asked -= 1
            if self._asked <= 0:
                self.end_garbage_collection_pauses()

    def end_garbage_collection_pauses(self) -> None:
        # also in a forked process, which has none of the threads that paused
        self._asked = 0
        if self._enabled:
            gc.enable()
        self._enabled = False


_collector_pauses = _GarbageCollectorPauses()


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection while any thread is inside the block."""
    # a full collection walks all objects of a process, torch's too
    _collector_pauses.pause_garbage_collection()
    try:
        yield
    finally:
        _collector_pauses.resume_garbage_collection()
