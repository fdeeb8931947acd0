"""Compile all missing kernels of a computation in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from threading import Lock, Thread

_Computation = Callable[[], object]


class _DryRun:
    """A computation that runs on zeros to begin compilations."""

    def __init__(self, compute: _Computation, threads: int) -> None:
        self._compute: _Computation | None = compute
        self._threads, self._lock = threads, Lock()

    def run(self) -> None:
        """Run the computation on another thread, once, and begin compilations; wait."""
        with self._lock:
            compute, self._compute = self._compute, None
            if compute is not None:
                # torch's state is that of a thread: an operator that runs now has changed this one's
                thread = Thread(target=self._run_computation_to_begin_builds, args=(compute,))
                thread.start()
                thread.join()

    def _run_computation_to_begin_builds(self, compute: _Computation) -> None:
        tasks = _TaskPool(self._threads)
        _tasks.set(tasks)
        with suppress(Exception):  # of a computation that zeros lead astray: its kernels until there have begun
            compute()
        tasks.pool.shutdown(wait=False)


class _TaskPool:
    """Threads that run each distinct task once."""

    def __init__(self, threads: int) -> None:
        self.pool = ThreadPoolExecutor(threads)
        self._started: set[tuple] = set()

    def begin_task_once(self, task: partial) -> None:
        key = task.func, task.args
        if key not in self._started:
            self._started.add(key)
            self.pool.submit(task)


_rehearsal: ContextVar[_DryRun | None] = ContextVar("rehearsal of what this thread computes", default=None)
_tasks: ContextVar[_TaskPool | None] = ContextVar("what this thread's rehearsal has begun", default=None)


@contextmanager
def dry_run_before_compiling(compute: _Computation, threads: int) -> Iterator[None]:
    """Context: the first missing kernel runs ``compute`` on zeros, to compile all kernels by ``threads``."""
    token = _rehearsal.set(_DryRun(compute, threads))
    try:
        yield
    finally:
        _rehearsal.reset(token)


def has_dry_run() -> bool:
    return _rehearsal.get() is not None


def start_dry_run() -> None:
    """Run the computation of `dry_run_before_compiling` on zeros, once."""
    rehearsal = _rehearsal.get()
    if rehearsal is not None:
        rehearsal.run()


def start_tasks_if_in_dry_run(tasks: Sequence[partial]) -> bool:
    """Start tasks on other threads during a dry run; False otherwise, or without tasks."""
    rehearsed = _tasks.get()
    if rehearsed is None:
        return False
    for task in tasks:
        rehearsed.begin_task_once(task)
    return bool(tasks)


def check_outside_dry_run() -> None:
    """Raise `RuntimeError` on a thread in a dry run."""
    # the thread that waits for the rehearsal may hold the lock of the kernel
    if _tasks.get() is not None:
        raise RuntimeError("a rehearsal waits for no kernel")
