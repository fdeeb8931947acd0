"""A lock is held by one, ends with its holder, and is never inherited."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tpgen.kernels.build.cache import hold_file_lock


def held_by_nobody(path: Path) -> bool:
    with hold_file_lock(path, wait=False) as held:
        return held


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold_file_lock(path) as held:
        assert held
        assert not held_by_nobody(path)
    assert held_by_nobody(path)


def test_a_lock_that_is_removed_is_no_lock(tmp_path: Path) -> None:
    """Who waited for a file that its holder removed waits for the next one of that name."""
    path, inside, go = tmp_path / "lock", threading.Event(), threading.Event()

    def wait() -> None:
        with hold_file_lock(path):
            inside.set()
            go.wait()

    thread = threading.Thread(target=wait)
    with hold_file_lock(path):
        thread.start()
        path.unlink()
    inside.wait()
    try:
        assert not held_by_nobody(path)
    finally:
        go.set()
        thread.join()


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("words")
    (tmp_path / "lock").symlink_to(precious)
    with pytest.raises(OSError, match="lock"), hold_file_lock(tmp_path / "lock"):
        pass
    assert precious.read_text() == "words"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_holds_none(tmp_path: Path) -> None:
    """Neither the lock of the thread that forks nor another's, and its end takes nothing from the parent."""
    code = """
import os, sys, threading, time
from pathlib import Path
from tpgen.kernels.build.cache import hold_file_lock
first, second = (Path(sys.argv[1]) / name for name in ("first", "second"))
inside, go = threading.Event(), threading.Event()
def hold():
    with hold_file_lock(second):
        inside.set()
        go.wait()
thread = threading.Thread(target=hold)
thread.start()
inside.wait()
ready, done = os.pipe(), os.pipe()
with hold_file_lock(first):
    child = os.fork()
    if child == 0:
        with hold_file_lock(first, wait=False) as held:
            os.write(ready[1], b"n" if not held else b"y")
        os.read(done[0], 1)
        os._exit(0)
    assert os.read(ready[0], 1) == b"n"
    with hold_file_lock(first, wait=False) as held:
        assert not held
go.set()
thread.join()
for path in (first, second):
    with hold_file_lock(path, wait=False) as held:
        assert held, path
os.write(done[1], b".")
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
