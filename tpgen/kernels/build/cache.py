"""The cache of compiled kernels: content-addressed files in a private directory.

An entry is three files named by a hash of source, flags, compiler and processor: the source, the library, and a
checksum of the library; or the source alone, with what the compiler said where it refuses the source.  Files appear by renaming, so a reader sees whole files; a library that does not match its
checksum, or that is not the user's own, is built again.  What is written, removed or loaded for building is so under
the lock of the entry.  Only a directory that nobody else can write to or exchange is read from (`trust`).
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from tpgen.base.errors import BackendError
from tpgen.kernels.build.trust import check_private, links_followed, make_private, read_own
from tpgen.base.text import quantity

# libraries: of one kernel, of the operators that call them, of a kernel for a GPU, and of a whole network
KERNEL, RUNTIME, CUBIN, PROGRAM = ".so", ".runtime", ".cubin", ".pt2"
_REFUSAL = ".refused"  # what the compiler said of a source that it refuses
_LOCK = ".lock"
Made = TypeVar("Made")
_SUFFIXES = (KERNEL, RUNTIME, CUBIN, PROGRAM, ".cpp", ".cu", ".o", ".sha256", ".choice.json", _REFUSAL, _LOCK)
_NEW = ".new-"
# every name that is given here, so that nothing else is ever counted or removed
_OURS = re.compile(rf"({re.escape(_NEW)})?([0-9a-f]{{32}})({'|'.join(map(re.escape, _SUFFIXES))})(?(1)-\w+)")


@dataclass(frozen=True)
class CacheInfo:
    """Number and bytes of the kernels in the cache, and its directory."""

    path: str
    entries: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.path}: {self.entries} kernels, {quantity(self.bytes, 'B')}"


@dataclass(frozen=True)
class Entry:
    """The files of one library."""

    directory: Path
    key: str
    kind: str = KERNEL

    def file(self, suffix: str) -> Path:
        return self.directory / (self.key + suffix)

    @property
    def library(self) -> Path:
        return self.file(self.kind)

    @property
    def source(self) -> Path:
        return self.file(".cpp")

    def intact(self) -> bool:
        """Whether the library is there and is what was written."""
        try:
            return read_own(self.file(".sha256")) == _checksum(read_own(self.library))
        except OSError:
            return False

    def new_file(self, suffix: str) -> Path:
        """A name beside the library, for what is being built."""
        handle, name = tempfile.mkstemp(dir=self.directory, prefix=f"{_NEW}{self.key}{suffix}-")
        os.close(handle)
        return Path(name)

    def publish(self, built: Path) -> None:
        """Move a freshly built library into place."""
        built.chmod(0o700)  # a linker gives what the umask leaves
        checksum = _checksum(built.read_bytes())
        os.replace(built, self.library)
        write_whole(self.file(".sha256"), checksum.decode())

    def refuse(self, message: str, reason: str) -> None:
        """Note that the compiler refuses the source; another compiler has another entry."""
        write_whole(self.file(_REFUSAL), f"{reason}\n{message}")

    def refusal(self) -> tuple[str, str] | None:
        """The message and reason of `refuse`, if somebody has noted them."""
        with suppress(OSError):
            reason, _, message = read_own(self.file(_REFUSAL)).decode("utf-8", "replace").partition("\n")
            return message, reason
        return None

    def locked(self, wait: bool = True) -> AbstractContextManager[bool]:
        """One process at a time builds or removes an entry."""
        return lock(self.file(_LOCK), wait)


@contextmanager
def lock(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a file, which is made where it is missing; yields whether it is held.

    Without ``wait`` a lock that somebody else holds is not waited for.  Who holds the lock may remove the file.  A lock
    goes with the process that held it, however that ends; a fork holds none.
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


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears only when it is complete."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{_NEW}{path.name}-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def default_directory() -> Path:
    """``$TPGEN_CACHE_DIR``, or ``tpgen`` in the user's cache directory; an absolute path without links."""
    named = os.environ.get("TPGEN_CACHE_DIR")
    if named:
        return links_followed(Path(named) / "kernels")
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home: no place of their own, see `current_directory`
        base = os.devnull
    return links_followed(Path(base) / "tpgen" / "kernels")


def _trouble(wanted: Path) -> str:
    """Why a directory, which is made where it is missing, cannot be written; empty where it can."""
    try:
        make_private(wanted)
        check_private(wanted)
        with tempfile.TemporaryFile(dir=wanted) as probe:
            probe.write(b"room?")
    except OSError as error:
        return error.strerror or str(error)
    return ""


@cache
def _checked_directory(wanted: Path) -> Path:
    reason = _trouble(wanted)
    return fallback(str(wanted), reason) if reason else wanted


def current_directory() -> Path:
    """The cache directory, made and checked once per process and place; a temporary one where it cannot be written.

    Raises `BackendError` where the directory belongs to somebody else, or others may write to it or one above it.
    """
    return _checked_directory(default_directory())


def check_lasting() -> None:
    """Raise `BackendError` where nothing can be kept for the next process."""
    wanted = default_directory()
    if reason := _trouble(wanted):
        raise BackendError(
            f"nothing can be kept in the kernel cache {wanted} ({reason}): set TPGEN_CACHE_DIR to a directory that can "
            "be written"
        )


def forget_directory() -> None:
    """Check the directory again at the next use."""
    _checked_directory.cache_clear()


@cache
def fallback(wanted: str, reason: str) -> Path:
    """A directory for this process only, said once for each reason."""
    warnings.warn(
        f"tpgen cannot write its kernel cache {wanted} ({reason}); kernels are kept for this process only. "
        "Set TPGEN_CACHE_DIR to a directory that can be written",
        stacklevel=2,
    )
    made, owner = tempfile.mkdtemp(prefix="tpgen-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked process ends before the one that made the directory
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return Path(made)


def with_room(make: Callable[[Path], Made]) -> Made:
    """Make something in the cache's directory, or where there is no room in one for this process only.

    Raises `BackendError` where there is none at all.
    """
    directory = current_directory()
    try:
        return make(directory)
    except OSError as error:  # the directory went away, became read-only or filled up
        forget_directory()
        instead = fallback(str(directory), error.strerror or str(error))
    try:
        return make(instead)
    except OSError as again:
        raise BackendError(
            f"no place to build kernels: {again}; set TPGEN_CACHE_DIR to a directory with room"
        ) from again


def finished(key: str, kind: str = KERNEL) -> Entry | None:
    """The entry if it stands, whole, in the user's directory, which need not be writable for that.

    Raises `BackendError` as `current_directory` does.
    """
    wanted = Entry(default_directory(), key, kind)
    try:
        check_private(wanted.directory)
    except OSError:
        return None
    return wanted if wanted.intact() else None


def _ours(path: Path) -> Iterator[tuple[str, Path]]:
    """The files of a directory that were written here, with the key of their entry."""
    for file in path.iterdir():
        named = _OURS.fullmatch(file.name)
        if named:
            yield named[2], file


def info() -> CacheInfo:
    """Path, number of kernels and bytes of the cache."""
    path, size, kernels = current_directory(), 0, 0
    for key, file in _ours(path):
        with suppress(FileNotFoundError):  # another process clears the cache
            size += file.lstat().st_size
            kernels += file.name in (key + KERNEL, key + CUBIN)
    return CacheInfo(str(path), kernels, size)


def clear() -> int:
    """Remove every kernel and measured choice from the cache; returns how many kernels there were.

    Kernels in use stay loaded, those that are being built are left to their builders, and other files alone.
    """
    path = current_directory()
    entries: dict[str, list[Path]] = {}
    for key, file in _ours(path):
        entries.setdefault(key, []).append(file)
    return sum(_remove_entry(Entry(path, key), files) for key, files in entries.items())


def _remove_entry(entry: Entry, files: list[Path]) -> bool:
    """Whether there was a library."""
    with entry.locked(wait=False) as held:
        if not held:
            return False
        found = entry.library.exists() or entry.file(CUBIN).exists()
        # the lock goes last: as long as it stands, nobody else can begin this entry
        for file in (*files, *map(entry.file, _SUFFIXES)):
            if file.suffix != _LOCK:
                file.unlink(missing_ok=True)
        entry.file(_LOCK).unlink(missing_ok=True)
        return found
