"""Where compiled kernels are kept: content-addressed files in a private directory.

An entry is three files named by a hash of source, flags, compiler and processor: the source, the library, and a
checksum of the library.  Files appear by renaming, so a reader sees whole files; a library that does not match its
checksum is built again. Only a directory that belongs to the user, and that nobody else may write to, is read from.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tpgen.errors import BackendError

_LIBRARY, _SOURCE, _CHECKSUM = ".so", ".cpp", ".sha256"


@dataclass(frozen=True)
class CacheInfo:
    """What is in the cache."""

    path: str
    entries: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.path}: {self.entries} kernels, {self.bytes / 2**20:.1f} MiB"


@dataclass(frozen=True)
class Entry:
    """The files of one kernel."""

    directory: Path
    key: str

    def file(self, suffix: str) -> Path:
        return self.directory / (self.key + suffix)

    @property
    def library(self) -> Path:
        return self.file(_LIBRARY)

    @property
    def source(self) -> Path:
        return self.file(_SOURCE)

    def intact(self) -> bool:
        """Whether the library is there and is what was written."""
        try:
            return self.file(_CHECKSUM).read_text() == _checksum(self.library)
        except OSError:
            return False

    def publish(self, built: Path) -> None:
        """Move a freshly built library into place."""
        checksum = _checksum(built)
        os.replace(built, self.library)
        write_whole(self.file(_CHECKSUM), checksum)


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears only when it is complete."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def locked(entry: Entry) -> Iterator[None]:
    """One process at a time builds an entry; the lock goes with the process that held it."""
    try:
        import fcntl
    except ImportError:  # no such locks here: two processes may build the same, and the last rename stays
        yield
        return
    with open(entry.file(".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def default_directory() -> Path:
    """``$TPGEN_CACHE_DIR``, or ``tpgen`` in the user's cache directory."""
    named = os.environ.get("TPGEN_CACHE_DIR")
    if named:
        return Path(named) / "kernels"
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home: no place of their own, see `directory`
        base = os.devnull
    return Path(base) / "tpgen" / "kernels"


def directory() -> Path:
    """The cache directory, made and checked; one for this process only where it cannot be written.

    Raises `BackendError` where the directory belongs to somebody else or others may write to it.
    """
    wanted = default_directory()
    try:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(wanted)
        with tempfile.TemporaryFile(dir=wanted) as probe:
            probe.write(b"room?")
    except OSError as error:
        return _fallback(str(wanted), error.strerror or str(error))
    return wanted


@cache
def _checked_directory(wanted: str) -> Path:
    return directory()


def current_directory() -> Path:
    """As `directory`, checked once per process and place."""
    return _checked_directory(str(default_directory()))


def forget_directory() -> None:
    """Check the directory again at the next use."""
    _checked_directory.cache_clear()


@cache
def _fallback(wanted: str, reason: str) -> Path:
    warnings.warn(
        f"tpgen cannot write its kernel cache {wanted} ({reason}); kernels are kept for this process only. "
        "Set TPGEN_CACHE_DIR to a directory that can be written",
        stacklevel=2,
    )
    made = tempfile.mkdtemp(prefix="tpgen-")
    atexit.register(_remove, made, os.getpid())
    return Path(made)


def _remove(made: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked process ends before the one that made the directory
        shutil.rmtree(made, ignore_errors=True)


def finished(key: str) -> Entry | None:
    """The entry if it stands, whole, in the user's directory, which need not be writable for that.

    Raises `BackendError` as `directory` does.
    """
    wanted = Entry(default_directory(), key)
    try:
        _check_private(wanted.directory)
    except OSError:
        return None
    return wanted if wanted.intact() else None


def _check_private(path: Path) -> None:
    status = path.lstat()
    if not hasattr(os, "getuid"):
        return
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise BackendError(
            f"kernel cache {path} must be a directory of user {os.getuid()}, it belongs to {status.st_uid}: "
            "set TPGEN_CACHE_DIR"
        )
    if status.st_mode & 0o022:
        raise BackendError(
            f"kernel cache {path} can be written by others (mode {stat.S_IMODE(status.st_mode):03o}), so nothing is "
            f"loaded from it: remove it, or point TPGEN_CACHE_DIR at a private directory"
        )


def info() -> CacheInfo:
    """Path, number of kernels and bytes of the cache."""
    path = current_directory()
    files = [f for f in path.iterdir() if f.is_file()]
    return CacheInfo(str(path), sum(f.suffix == _LIBRARY for f in files), sum(f.stat().st_size for f in files))


def clear() -> int:
    """Remove every kernel from the cache; returns how many there were.  Kernels in use stay loaded."""
    path = current_directory()
    count = info().entries
    for file in path.iterdir():
        if file.is_file():
            file.unlink(missing_ok=True)
    return count
