"""Cache of compiled kernels: files in a private directory, named by a hash of source, flags, compiler and processor."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from time import time
from typing import TypeVar

from filelock import FileLock, Timeout

from tpgen.base.errors import BackendError
from tpgen.base.text import quantity
from tpgen.kernels.build.trust import check_private, resolve_parents, make_private, read_private_file

# libraries: of one kernel, of the operators that call them, of a kernel for a GPU, and of a whole network
KERNEL, RUNTIME, CUBIN, PROGRAM = ".so", ".runtime", ".cubin", ".pt2"
LIBRARY_NAMES = ".libraries"  # names of the libraries of a program
_REFUSAL = ".refused"  # what the compiler said of a source that it refuses, or why a program serves no call
_LOCK = ".lock"
Made = TypeVar("Made")
_SUFFIXES = (KERNEL, RUNTIME, CUBIN, PROGRAM, ".cpp", ".cu", ".o", ".sha256", ".choice.json", LIBRARY_NAMES, _REFUSAL, _LOCK)
_NEW = ".new-"
# every name that is given here, so that nothing else is ever counted or removed
_CACHE_FILE = re.compile(rf"({re.escape(_NEW)})?([0-9a-f]{{32}})({'|'.join(map(re.escape, _SUFFIXES))})(?(1)-\w+)")


@dataclass(frozen=True)
class CacheInfo:
    """Directory, number of kernels and bytes of the cache."""

    path: str
    entries: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.path}: {self.entries} kernels, {quantity(self.bytes, 'B')}"


@dataclass(frozen=True)
class Entry:
    """Files of a cached library: library, source, checksum, lock."""

    directory: Path
    key: str
    kind: str = KERNEL

    def file_with_suffix(self, suffix: str) -> Path:
        return self.directory / (self.key + suffix)

    @property
    def library(self) -> Path:
        return self.file_with_suffix(self.kind)

    @property
    def source(self) -> Path:
        return self.file_with_suffix(".cpp")

    def is_intact(self) -> bool:
        """Whether the library matches its checksum."""
        try:
            return read_private_file(self.file_with_suffix(".sha256")) == _checksum(read_private_file(self.library))
        except OSError:
            return False

    def create_temporary_file(self, suffix: str) -> Path:
        """Create an empty temporary file beside the library."""
        handle, name = tempfile.mkstemp(dir=self.directory, prefix=f"{_NEW}{self.key}{suffix}-")
        os.close(handle)
        return Path(name)

    def publish_library(self, built_library: Path) -> None:
        """Move a built library into place, with its checksum."""
        built_library.chmod(0o700)  # a linker gives what the umask leaves
        checksum = _checksum(built_library.read_bytes())
        os.replace(built_library, self.library)
        write_atomically(self.file_with_suffix(".sha256"), checksum.decode())

    def record_refusal(self, message: str, reason: str = "") -> None:
        write_atomically(self.file_with_suffix(_REFUSAL), f"{reason}\n{message}")

    def read_refusal(self, holds_s: float = inf) -> tuple[str, str] | None:
        """Message and reason of a failure recorded within so many seconds, or None."""
        file = self.file_with_suffix(_REFUSAL)
        with suppress(OSError):
            if time() - file.stat().st_mtime > holds_s:
                return None
            reason, _, message = read_private_file(file).decode("utf-8", "replace").partition("\n")
            return message, reason
        return None

    def hold_file_lock(self, wait: bool = True) -> AbstractContextManager[bool]:
        return hold_file_lock(self.file_with_suffix(_LOCK), wait)


@contextmanager
def hold_file_lock(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file; without ``wait``, yield False if another process does."""
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


def key_of(*parts: str | int) -> str:
    """Name of a cache entry: a hash of ``parts``."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically, by renaming."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{_NEW}{path.name}-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def default_cache_directory() -> Path:
    """Return ``$TPGEN_CACHE_DIR/kernels``, else ``tpgen/kernels`` in the user's cache directory."""
    named = os.environ.get("TPGEN_CACHE_DIR")
    if named:
        return resolve_parents(Path(named) / "kernels")
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home: no place of their own, see `open_cache_directory`
        base = os.devnull
    return resolve_parents(Path(base) / "tpgen" / "kernels")


def _why_directory_is_unwritable(wanted: Path) -> str:
    try:
        make_private(wanted)
        check_private(wanted)
        with tempfile.TemporaryFile(dir=wanted) as probe:
            probe.write(b"room?")
    except OSError as error:
        return error.strerror or str(error)
    return ""


@cache
def _create_and_check_directory(wanted: Path) -> Path:
    reason = _why_directory_is_unwritable(wanted)
    return make_temporary_cache(str(wanted), reason) if reason else wanted


def open_cache_directory() -> Path:
    """Return the cache directory, created and checked; a temporary one if not writable.

    Raises `BackendError` if another user can change the directory.
    """
    return _create_and_check_directory(default_cache_directory())


def check_cache_is_lasting() -> None:
    """Raise `BackendError` if the cache cannot outlive this process."""
    wanted = default_cache_directory()
    if reason := _why_directory_is_unwritable(wanted):
        raise BackendError(
            f"nothing can be kept in the kernel cache {wanted} ({reason}): set TPGEN_CACHE_DIR to a directory that can "
            "be written"
        )


def forget_directory() -> None:
    """Check the cache directory again at the next use."""
    _create_and_check_directory.cache_clear()


@cache
def make_temporary_cache(wanted: str, reason: str) -> Path:
    """Create a temporary cache for this process; warn once per reason."""
    warnings.warn(
        f"tpgen cannot write its kernel cache {wanted} ({reason}); kernels are kept for this process only. "
        "Set TPGEN_CACHE_DIR to a directory that can be written",
        stacklevel=2,
    )
    made, owner = tempfile.mkdtemp(prefix="tpgen-"), os.getpid()

    def remove_directory() -> None:
        if os.getpid() == owner:  # a forked process ends before the one that made the directory
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove_directory)
    return Path(made)


def call_with_cache_directory(function: Callable[[Path], Made]) -> Made:
    """Return ``function`` of the cache directory, or after `OSError` of a temporary one.

    Raises `BackendError` if both fail.
    """
    directory = open_cache_directory()
    try:
        return function(directory)
    except OSError as error:  # the directory went away, became read-only or filled up
        forget_directory()
        instead = make_temporary_cache(str(directory), error.strerror or str(error))
    try:
        return function(instead)
    except OSError as again:
        raise BackendError(
            f"no place to build kernels: {again}; set TPGEN_CACHE_DIR to a directory with room"
        ) from again


def find_intact_entry(key: str, kind: str = KERNEL) -> Entry | None:
    """Entry of an intact cached library, or None.  Raises as `open_cache_directory`."""
    wanted = Entry(default_cache_directory(), key, kind)
    try:
        check_private(wanted.directory)
    except OSError:
        return None
    return wanted if wanted.is_intact() else None


def _cache_files_by_key(path: Path) -> Iterator[tuple[str, Path]]:
    # keys of entries and files, of the files that this module wrote
    for file in path.iterdir():
        named = _CACHE_FILE.fullmatch(file.name)
        if named:
            yield named[2], file


def info() -> CacheInfo:
    """Count kernels and bytes in the cache directory."""
    path, size, kernels = open_cache_directory(), 0, 0
    for key, file in _cache_files_by_key(path):
        with suppress(FileNotFoundError):  # another process clears the cache
            size += file.lstat().st_size
            kernels += file.name in (key + KERNEL, key + CUBIN)
    return CacheInfo(str(path), kernels, size)


def clear() -> int:
    """Delete all kernels and measured choices from the cache; return the number of kernels.

    Loaded kernels stay usable; entries under construction and foreign files remain.
    """
    path = open_cache_directory()
    entries: dict[str, list[Path]] = {}
    for key, file in _cache_files_by_key(path):
        entries.setdefault(key, []).append(file)
    return sum(_remove_entry(Entry(path, key), files) for key, files in entries.items())


def _remove_entry(entry: Entry, files: list[Path]) -> bool:
    # whether the entry had a library
    with entry.hold_file_lock(wait=False) as held:
        if not held:
            return False
        found = entry.library.exists() or entry.file_with_suffix(CUBIN).exists()
        # the lock goes last: as long as it stands, nobody else can begin this entry
        for file in (*files, *map(entry.file_with_suffix, _SUFFIXES)):
            if file.suffix != _LOCK:
                file.unlink(missing_ok=True)
        entry.file_with_suffix(_LOCK).unlink(missing_ok=True)
        return found
