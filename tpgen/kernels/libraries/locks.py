"""Locks between processes, as files.  A lock goes with the process that held it, however that ends.

A forked child inherits open files and with them the locks: it would hold what another thread of its parent had locked,
for ever.  So it closes them at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # no such locks here: two processes may build the same, and the last rename stays
    fcntl = None  # type: ignore[assignment]

_files: set[int] = set()  # descriptors of the locks that are held or waited for
_guard = threading.RLock()  # held across a fork, so that no lock is open without being in the set


@contextmanager
def lock(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a file, which is made where it is missing; yields whether it is held.

    Without ``wait`` a lock that somebody else holds is not waited for.  Who holds the lock may remove the file.
    """
    if fcntl is None:
        yield True
        return
    held = _acquire(path, wait)
    try:
        yield held is not None
    finally:
        if held is not None:
            _close(held)


def _acquire(path: Path, wait: bool) -> int | None:
    while True:
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _stands(file, path):
                return file
        except BlockingIOError:
            _close(file)
            return None
        except BaseException:
            _close(file)
            raise
        _close(file)  # removed while we waited: the lock is another file now, or none


def _open(path: Path) -> int:
    with _guard:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        _files.add(file)
        return file


def _close(file: int) -> None:
    with _guard:
        if file in _files:
            _files.remove(file)
            os.close(file)


def _stands(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False


def _after_fork() -> None:
    global _guard
    for file in list(_files):
        _close(file)
    _guard = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _guard.acquire(), after_in_parent=lambda: _guard.release(), after_in_child=_after_fork
    )
