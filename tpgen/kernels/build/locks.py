"""Locks between processes, as files.  A lock goes with the process that held it, however that ends; a fork holds none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def lock(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a file, which is made where it is missing; yields whether it is held.

    Without ``wait`` a lock that somebody else holds is not waited for.  Who holds the lock may remove the file.
    """
    file = FileLock(path, mode=0o600)
    try:
        file.acquire(blocking=wait)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        file.release()
