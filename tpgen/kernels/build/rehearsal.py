"""Kernels of a whole computation, compiled side by side.

A computation asks for one kernel after another.  Where one of them is not in the cache, the computation is rehearsed
on another thread: kernels that are missing begin to compile, and zeros stand for their results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from threading import Lock, Thread

_Run = Callable[[], object]


class _Rehearsal:
    """A computation that is rehearsed once at most."""

    def __init__(self, compute: _Run, threads: int) -> None:
        self._compute: _Run | None = compute
        self._threads, self._lock = threads, Lock()

    def run(self) -> None:
        """Rehearse the computation once; a thread that asks meanwhile waits."""
        with self._lock:
            compute, self._compute = self._compute, None
            if compute is not None:
                # torch's state is that of a thread: an operator that runs now has changed this one's
                thread = Thread(target=self._rehearse, args=(compute,))
                thread.start()
                thread.join()

    def _rehearse(self, compute: _Run) -> None:
        tasks = _Tasks(self._threads)
        _tasks.set(tasks)
        with suppress(Exception):  # of a computation that zeros lead astray: its kernels until there have begun
            compute()
        tasks.pool.shutdown(wait=False)


class _Tasks:
    """What a rehearsal has begun, each once: a thread that waits for another's kernel compiles none."""

    def __init__(self, threads: int) -> None:
        self.pool = ThreadPoolExecutor(threads)
        self._begun: set[tuple] = set()

    def begin(self, task: partial) -> None:
        key = task.func, task.args
        if key not in self._begun:
            self._begun.add(key)
            self.pool.submit(task)


_rehearsal: ContextVar[_Rehearsal | None] = ContextVar("rehearsal of what this thread computes", default=None)
_tasks: ContextVar[_Tasks | None] = ContextVar("what this thread's rehearsal has begun", default=None)


@contextmanager
def rehearsed_by(compute: _Run, threads: int) -> Iterator[None]:
    """Rehearse by ``compute`` where a kernel is missing meanwhile; as many ``threads`` compile."""
    token = _rehearsal.set(_Rehearsal(compute, threads))
    try:
        yield
    finally:
        _rehearsal.reset(token)


def has_rehearsal() -> bool:
    """Whether what this thread computes can be rehearsed."""
    return _rehearsal.get() is not None


def rehearse() -> None:
    """Rehearse what this thread computes, the first time."""
    rehearsal = _rehearsal.get()
    if rehearsal is not None:
        rehearsal.run()


def begun(tasks: Sequence[partial]) -> bool:
    """Begin tasks on other threads if this thread rehearses; whether a task has begun, for which nobody may wait.

    A task is known by its function and arguments, and begins once.
    """
    rehearsed = _tasks.get()
    if rehearsed is None:
        return False
    for task in tasks:
        rehearsed.begin(task)
    return bool(tasks)


def need_no_rehearsal() -> None:
    """Raise `RuntimeError` on a thread that rehearses: another thread waits for the rehearsal, and may build the kernel."""
    if _tasks.get() is not None:
        raise RuntimeError("a rehearsal waits for no kernel")
