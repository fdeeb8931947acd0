"""Computations that are rehearsed where a kernel is missing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Event, current_thread

import pytest

from tpgen.kernels.build.rehearsal import start_tasks_if_in_dry_run, has_dry_run, check_outside_dry_run, start_dry_run, dry_run_before_compiling


def test_a_computation_is_rehearsed_once_on_another_thread_and_waits_for_no_task() -> None:
    threads, counted, free, done = [], [], Event(), Event()

    def compute() -> None:
        threads.append(current_thread())
        assert not has_dry_run()
        assert not start_tasks_if_in_dry_run([])
        assert start_tasks_if_in_dry_run([partial(free.wait, 60), *2 * [partial(counted.append, 0)], partial(done.set)])
        with pytest.raises(RuntimeError, match="waits for no kernel"):
            check_outside_dry_run()

    assert not start_tasks_if_in_dry_run([partial(done.set)]), "no rehearsal"
    with dry_run_before_compiling(compute, 1):
        assert has_dry_run()
        start_dry_run()
        assert not done.is_set()
        start_dry_run()
    start_dry_run()
    assert threads != [current_thread()]
    assert len(threads) == 1
    check_outside_dry_run()
    assert not counted
    free.set()
    assert done.wait(60)
    assert counted == [0], "a task begins once"


def test_threads_that_ask_at_once_wait_for_the_same_rehearsal() -> None:
    rehearsed: list[int] = []
    with dry_run_before_compiling(lambda: rehearsed.append(0), 1), ThreadPoolExecutor(4) as pool:
        contexts = [copy_context() for _ in range(4)]
        seen = list(pool.map(lambda context: context.run(lambda: (start_dry_run(), len(rehearsed))[1]), contexts))
    assert seen == [1] * 4


def test_a_computation_that_fails_leaves_what_it_has_begun() -> None:
    done = Event()

    def compute() -> None:
        start_tasks_if_in_dry_run([partial(done.set)])
        raise ValueError("zeros are no lengths")

    with dry_run_before_compiling(compute, 1):
        start_dry_run()
    assert done.wait(60)
