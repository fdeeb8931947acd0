"""A forked process finds locks free that another thread held, and properties that another thread computed."""

from __future__ import annotations

import ast
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tpgen
from tests.cases import run_python
from tests.machine import needs_compiler
from tpgen.base.locks import ForkedLock, cached_property, without_garbage_collection

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
GUARD = ForkedLock()
RECURSIVE = ForkedLock(threading.RLock)


class Held:
    """A property whose first computation lasts until it is let go."""

    def __init__(self, entered: threading.Event, go: threading.Event) -> None:
        self.entered, self.go = entered, go

    @cached_property
    def value(self) -> int:
        self.entered.set()
        assert self.go.wait(30)
        return 1


def ends_well(act: Callable[[], object]) -> bool:
    """Whether a forked process can do it within five seconds, while a thread of this one holds everything."""
    entered, go = threading.Event(), threading.Event()

    def hold() -> None:
        with GUARD.lock, RECURSIVE.lock, without_garbage_collection():
            assert Held(entered, go).value == 1

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(30)
    child = os.fork()
    if not child:
        signal.alarm(5)
        act()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    go.set()
    thread.join()
    return status == 0


def taken(guard: ForkedLock) -> None:
    with guard.lock:
        pass


def computed() -> None:
    go = threading.Event()
    go.set()
    assert Held(threading.Event(), go).value == 1


def collects() -> None:
    if not gc.isenabled():
        os._exit(1)


@pytest.mark.parametrize("act", [lambda: taken(GUARD), lambda: taken(RECURSIVE), computed, collects])
def test_a_forked_process_waits_for_no_thread_of_another(act: Callable[[], object]) -> None:
    assert ends_well(act)


def test_a_process_that_waits_is_found() -> None:
    held = threading.Lock()
    held.acquire()
    assert not ends_well(held.acquire)


def test_garbage_is_collected_again_when_the_last_thread_is_done() -> None:
    first, second = without_garbage_collection(), without_garbage_collection()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
    gc.disable()
    try:
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_property_is_computed_once_by_each_instance() -> None:
    asked = []

    class Square:
        """Squares of a side."""

        def __init__(self, side: float) -> None:
            self.side = side

        @cached_property
        def area(self) -> float:
            """Square of the side."""
            asked.append(time.monotonic())
            return self.side**2

    one, two = Square(2.0), Square(3.0)
    assert [one.area, two.area, one.area] == [4.0, 9.0, 4.0]
    assert len(asked) == 2
    assert Square.area.__doc__ == "Square of the side."
    assert vars(one)["area"] == 4.0


def test_nothing_else_of_the_package_is_locked_by_a_class() -> None:
    """`functools.cached_property` of Python 3.11 is."""
    root = Path(tpgen.__file__).parent
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "functools" and file.name != "locks.py":
                assert "cached_property" not in [name.name for name in node.names], file


@needs_compiler
def test_a_first_call_imports_nothing() -> None:
    """A process that is forked while another thread imports a module would wait for that module for ever."""
    code = (
        "import sys, torch, tpgen\n"
        "product = tpgen.TensorProduct('4x1o', '1o', '4x0e', [(0, 0, 0, 'uvu', False)], strategy='kernel')\n"
        "before = set(sys.modules)\n"
        "product(torch.ones(2, 12), torch.ones(2, 3))\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    assert run_python(code) == "[]\n"
