"""Compile kernels once per machine and load libraries once per process.

>>> cache_info().path.endswith("kernels")
True
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.spawn import get_executable
from pathlib import Path
from typing import Any

import torch

from tpgen.base.errors import BackendError, KernelError
from tpgen.base.locks import ForkedLock
from tpgen.base.progress import announce
from tpgen.base.remember import Shelf, RegisteredCache, register_cache
from tpgen.kernels.build import cache
from tpgen.kernels.build.cache import Entry
from tpgen.kernels.build.compiler import COMPILERS, Compiler, need_compiler, find_openmp_runtime
from tpgen.kernels.build.rehearsal import has_dry_run, start_dry_run
from tpgen.kernels.cpp.generate import ENTRY
from tpgen.kernels.cpp.parts import translation_unit_flags

# A unit of all paths' tables is compiled in less time than one of as many lines of paths.  Units are cheap (0.04 s for
# what stands before the parts), so there are more than cores, which take one after the other.
_UNITS_PER_CORE, _MOST_UNITS = 4, 32


def count_cores() -> int:
    """CPU cores of this process."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


# several kernels may be built at once, of several units each
_compiler_slots = ForkedLock(lambda: threading.Semaphore(count_cores()))


_loaded: dict[str, ctypes.CDLL] = {}
_key_locks: dict[str, threading.Lock] = {}
_guard = ForkedLock()
_refused: Shelf[str, KernelError] = Shelf("kernels that cannot be built")  # by key, which has the compiler's version
register_cache(RegisteredCache("libraries loaded", _loaded.__len__, None, None))
_single_threaded = True  # whether this process had a single thread when it was last forked


@dataclass(frozen=True)
class LibraryRequest:
    """A library to load: C++ source, entry function, linked libraries, kind of file."""

    text: str
    entry: str = ENTRY
    links: tuple[str, ...] = ()
    kind: str = cache.KERNEL

    def key(self, compiler: Compiler) -> str:
        """Name in the cache: a hash of source and compiler."""
        return cache.key_of(self.text, *compiler.identity)


def load_kernel(text: str, addresses: int = 3, numbers: int = 2) -> Callable[..., int]:
    """Load the entry function of a kernel source; compile if not cached.

    The function takes ``addresses`` pointers, then ``numbers`` 64-bit integers.
    Raises `BackendError` without a compiler, `KernelError` if compilation fails or failed before.
    """
    wanted = LibraryRequest(text)
    if has_dry_run() and not _is_built(wanted):
        start_dry_run()
    function = getattr(load_library(wanted), ENTRY)
    function.argtypes = [*[ctypes.c_void_p] * addresses, *[ctypes.c_int64] * numbers]
    function.restype = ctypes.c_int
    return function


def _is_built(request: LibraryRequest) -> bool:
    key = request.key(need_compiler())
    return key in _loaded or cache.find_intact_entry(key, request.kind) is not None


def get_function_address(function: Any) -> int | None:
    """Address of a compiled function; None for a Python function."""
    with suppress(ctypes.ArgumentError):
        return ctypes.cast(function, ctypes.c_void_p).value
    return None


def load_library(request: LibraryRequest) -> ctypes.CDLL:
    """Load a library; compile if not cached.  Raises as `load_kernel`."""
    compiler = need_compiler()
    key = request.key(compiler)
    with _guard.lock:
        lock = _key_locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _loaded:
            _loaded[key] = _load_unless_compiler_refused(key, request, compiler)
        return _loaded[key]


def _load_unless_compiler_refused(key: str, request: LibraryRequest, compiler: Compiler) -> ctypes.CDLL:
    tried = f"{compiler} {key}"  # two compilers of one version may be two programs
    if before := _refused.get(tried):
        raise KernelError(str(before), before.reason)
    try:
        return _load_or_build(key, request, compiler)
    except KernelError as error:
        _refused[tried] = error.with_traceback(None)
        raise


def _load_or_build(key: str, request: LibraryRequest, compiler: Compiler) -> ctypes.CDLL:
    found = cache.find_intact_entry(key, request.kind)
    if found:
        with suppress(BackendError):  # removed in between, or broken: seen to under the lock
            return _open_library(found.library, request)
    return cache.call_with_cache_directory(lambda directory: _build_and_publish_entry(Entry(directory, key, request.kind), request, compiler))


def _build_and_publish_entry(entry: Entry, request: LibraryRequest, compiler: Compiler) -> ctypes.CDLL:
    # compile, test and publish a library, unless another process was faster
    with entry.hold_file_lock():
        if entry.is_intact():
            with suppress(BackendError):  # whole and yet not to be loaded: once more
                return _open_library(entry.library, request)
        if refusal := entry.read_refusal():
            raise KernelError(*refusal)
        _announce_first_compilation()
        cache.write_atomically(entry.source, request.text)
        built = entry.create_temporary_file(entry.library.suffix)
        try:
            _compile_library(compiler, entry, built, request.links)
            _test_library_in_subprocess(compiler, built, request)
            entry.publish_library(built)
        except KernelError as error:
            if error.reason.startswith(f"{entry.source}:"):  # of the text: nothing else about this machine can mend it
                entry.record_refusal(str(error), error.reason)
            raise
        finally:
            built.unlink(missing_ok=True)
        return _open_library(entry.library, request)


_announced = threading.Event()


def _announce_first_compilation() -> None:
    if not _announced.is_set():
        _announced.set()
        announce("compiles kernels, once for this machine: first calls take longer")


def _note_whether_process_has_one_thread() -> None:
    global _single_threaded
    try:
        _single_threaded = len(os.listdir("/proc/self/task")) == 1  # OpenMP's threads are among them
    except OSError:  # the system does not say
        _single_threaded = False


def _clear_locks_and_run_on_one_thread_after_fork() -> None:
    # the child has no threads, but copies of locks that threads held
    _key_locks.clear()
    # GNU's OpenMP runtime would wait for ever for the pool of threads that the parent had started
    if not _single_threaded and Path(find_openmp_runtime()).name.startswith("libgomp"):
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_whether_process_has_one_thread, after_in_child=_clear_locks_and_run_on_one_thread_after_fork)


def _open_library(library: Path, request: LibraryRequest) -> ctypes.CDLL:
    try:
        opened = ctypes.CDLL(str(library))
        getattr(opened, request.entry)
        return opened
    except (OSError, AttributeError) as error:
        raise KernelError(
            f"the built kernel {library} cannot be loaded: {error}; the directory may forbid running code from it, "
            "set TPGEN_CACHE_DIR to one that allows it"
        ) from error


def load_kernels_in_parallel(texts: Sequence[str]) -> None:
    """Compile and load several kernel sources in parallel."""
    with ThreadPoolExecutor(max_workers=min(max(1, len(texts)), count_cores())) as pool:
        for future in [pool.submit(load_kernel, text) for text in texts]:
            future.result()


cache_info, cache_clear = cache.info, cache.clear


# loads a library as this process will: after the OpenMP runtime that it binds to, and what it calls
_TRIAL = """
import ctypes, sys
entry, library, *before = sys.argv[1:]
for file in before:
    ctypes.CDLL(file, ctypes.RTLD_GLOBAL)
getattr(ctypes.CDLL(library), entry)
"""


def _test_library_in_subprocess(compiler: Compiler, library: Path, request: LibraryRequest) -> None:
    # a broken library may end the process that loads the library
    python = get_executable()
    if not python:  # an embedded interpreter that names none
        _open_library(library, request)
        return
    before = [*([compiler.runtime] if compiler.runtime else []), *request.links]
    command = [os.fsdecode(python), "-I", "-S", "-c", _TRIAL, request.entry, str(library), *before]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600, check=False)
    if done.returncode != 0:
        reason = (done.stderr.splitlines() or [f"loading it ends a process with {done.returncode}"])[-1]
        raise KernelError(
            f"the compiler {compiler} ended without an error, but what it wrote cannot be loaded: {reason}\n"
            f"set TPGEN_CXX to {COMPILERS}; or TPGEN_CACHE_DIR, where the directory forbids running code",
            f"what the compiler wrote cannot be loaded: {reason}",
        )


# -- from a source to a library: its units compiled side by side, then linked ------------------------------------------


def _compile_library(compiler: Compiler, entry: Entry, library: Path, links: Sequence[str] = ()) -> None:
    units = translation_unit_flags(entry.source.read_text(), min(_UNITS_PER_CORE * count_cores(), _MOST_UNITS) if count_cores() > 1 else 1)
    if len(units) == 1:
        _run_compiler(compiler.make_command([entry.source], library, links, *units), entry)
        return
    made: list[Path] = []
    try:
        made += (entry.create_temporary_file(".o") for _ in units)
        compiled = [["-c", str(entry.source), "-o", str(file)] for file in made]
        commands = [[*compiler.base_command, *flags, *unit] for flags, unit in zip(units, compiled, strict=True)]
        with ThreadPoolExecutor(len(units)) as pool:
            # the last first: they take longest
            for done in [pool.submit(_run_compiler, command, entry) for command in reversed(commands)]:
                done.result()
        _run_compiler(compiler.make_command(made, library, links), entry)
    finally:
        for file in made:
            file.unlink(missing_ok=True)


def _run_compiler(command: list[str], entry: Entry) -> None:
    try:
        with _compiler_slots.lock:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(
            f"the compiler could not be run: {' '.join(command)}\n  {error}\nset TPGEN_CXX to one that can",
            f"the compiler could not be run: {error}",
        ) from error
    if done.returncode != 0:
        full = os.strerror(errno.ENOSPC)
        if full in done.stderr:
            raise OSError(errno.ENOSPC, full, str(entry.library))
        lines = (
            [line for line in done.stderr.splitlines() if "error" in line.lower()]
            or done.stderr.splitlines()
            or ["(no output)"]
        )
        raise KernelError(
            f"the compiler failed: {' '.join(command)}\n  first error: {lines[0]}\n  source kept at {entry.source}\n"
            f"set TPGEN_CXX to {COMPILERS}, or use strategy='unrolled', which needs no compiler",
            lines[0].strip(),
        )
