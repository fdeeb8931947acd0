"""From source text to a function: compile once per machine, load once per process.

>>> cache_info().path.endswith("kernels")
True
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
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
from tpgen.kernels.cpp.generate import ENTRY
from tpgen.kernels.cpp.parts import unit_flags
from tpgen.kernels.build import cache
from tpgen.kernels.build.cache import Entry
from tpgen.kernels.build.compiler import COMPILERS, Compiler, need_compiler, openmp_runtime
from tpgen.base.locks import ForkedLock
from tpgen.base.progress import announce
from tpgen.base.remember import Shelf, Watched, watched
from tpgen.kernels.build.rehearsal import has_rehearsal, rehearse

# A unit of all paths' tables is compiled in less time than one of as many lines of paths.  Units are cheap (0.04 s for
# what stands before the parts), so there are more than cores, which take one after the other.
_UNITS_PER_CORE, _MOST_UNITS = 4, 32


def cores() -> int:
    """Number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


_turns = ForkedLock(lambda: threading.Semaphore(cores()))  # several kernels may be built at once, of several units each


_loaded: dict[str, ctypes.CDLL] = {}
_building: dict[str, threading.Lock] = {}
_guard = ForkedLock()
_refused: Shelf[str, KernelError] = Shelf("kernels that cannot be built")  # by key, which has the compiler's version
watched(Watched("libraries loaded", _loaded.__len__, None, None))
_alone = True  # whether this process had a single thread when it was last forked


@dataclass(frozen=True)
class Wanted:
    """A library to be: its source, the function that it must have, and the files of what it calls."""

    text: str
    entry: str = ENTRY
    links: tuple[str, ...] = ()
    kind: str = cache.KERNEL

    def key(self, compiler: Compiler) -> str:
        return hashlib.sha256(json.dumps([self.text, *compiler.identity]).encode()).hexdigest()[:32]


def load_kernel(text: str, addresses: int = 3, numbers: int = 2) -> Callable[..., int]:
    """The entry point of a kernel's source, compiled if the cache has it not; it takes addresses, then numbers.

    Raises `BackendError` where there is no compiler, and its `KernelError` where that fails: now and from then on, as
    nothing that this process has seen fail is compiled again.
    """
    wanted = Wanted(text)
    if has_rehearsal() and not _is_built(wanted):
        rehearse()
    function = getattr(load_library(wanted), ENTRY)
    function.argtypes = [*[ctypes.c_void_p] * addresses, *[ctypes.c_int64] * numbers]
    function.restype = ctypes.c_int
    return function


def _is_built(wanted: Wanted) -> bool:
    key = wanted.key(need_compiler())
    return key in _loaded or cache.finished(key, wanted.kind) is not None


def address_of(function: Any) -> int | None:
    """Address of an entry point, by which the runtime can call it; None for a function of Python."""
    with suppress(ctypes.ArgumentError):
        return ctypes.cast(function, ctypes.c_void_p).value
    return None


def load_library(wanted: Wanted) -> ctypes.CDLL:
    """A library, compiled if the cache has it not.  Raises `BackendError` as `load_kernel` does."""
    compiler = need_compiler()
    key = wanted.key(compiler)
    with _guard.lock:
        lock = _building.setdefault(key, threading.Lock())
    with lock:
        if key not in _loaded:
            _loaded[key] = _tried_once(key, wanted, compiler)
        return _loaded[key]


def _tried_once(key: str, wanted: Wanted, compiler: Compiler) -> ctypes.CDLL:
    tried = f"{compiler} {key}"  # two compilers of one version may be two programs
    if before := _refused.get(tried):
        raise KernelError(str(before), before.reason)
    try:
        return _found_or_made(key, wanted, compiler)
    except KernelError as error:
        _refused[tried] = error.with_traceback(None)
        raise


def _found_or_made(key: str, wanted: Wanted, compiler: Compiler) -> ctypes.CDLL:
    found = cache.finished(key, wanted.kind)
    if found:
        with suppress(BackendError):  # removed in between, or broken: seen to under the lock
            return _opened(found.library, wanted)
    return cache.with_room(lambda directory: _make(Entry(directory, key, wanted.kind), wanted, compiler))


def _make(entry: Entry, wanted: Wanted, compiler: Compiler) -> ctypes.CDLL:
    """The library, built, tried and published, unless another process was faster."""
    with entry.locked():
        if entry.intact():
            with suppress(BackendError):  # whole and yet not to be loaded: once more
                return _opened(entry.library, wanted)
        if refusal := entry.refusal():
            raise KernelError(*refusal)
        _say_once()
        cache.write_whole(entry.source, wanted.text)
        built = entry.new_file(entry.library.suffix)
        try:
            compile_library(compiler, entry, built, wanted.links)
            _try(compiler, built, wanted)
            entry.publish(built)
        except KernelError as error:
            if error.reason.startswith(f"{entry.source}:"):  # of the text: nothing else about this machine can mend it
                entry.refuse(str(error), error.reason)
            raise
        finally:
            built.unlink(missing_ok=True)
        return _opened(entry.library, wanted)


_said = threading.Event()


def _say_once() -> None:
    """Tell whoever looks why first calls are slow."""
    if not _said.is_set():
        _said.set()
        announce("compiles kernels, once for this machine: first calls take longer")


def _before_fork() -> None:
    global _alone
    try:
        _alone = len(os.listdir("/proc/self/task")) == 1  # OpenMP's threads are among them
    except OSError:  # the system does not say
        _alone = False


def _after_fork() -> None:
    """A forked process has none of the threads that held locks; GNU's OpenMP runtime waits for its own for ever.

    It has a pool of them once torch or a kernel has computed on several threads.
    """
    _building.clear()
    if not _alone and Path(openmp_runtime()).name.startswith("libgomp"):
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def _opened(library: Path, wanted: Wanted) -> ctypes.CDLL:
    try:
        opened = ctypes.CDLL(str(library))
        getattr(opened, wanted.entry)
        return opened
    except (OSError, AttributeError) as error:
        raise KernelError(
            f"the built kernel {library} cannot be loaded: {error}; the directory may forbid running code from it, "
            "set TPGEN_CACHE_DIR to one that allows it"
        ) from error


def load_all(texts: Sequence[str]) -> None:
    """Load several sources, compiling those that are missing side by side."""
    with ThreadPoolExecutor(max_workers=min(max(1, len(texts)), cores())) as pool:
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


def _try(compiler: Compiler, library: Path, wanted: Wanted) -> None:
    """Load a new library in a process of its own: a broken one may end the process that loads it."""
    python = get_executable()
    if not python:  # an embedded interpreter that names none
        _opened(library, wanted)
        return
    before = [*([compiler.runtime] if compiler.runtime else []), *wanted.links]
    command = [os.fsdecode(python), "-I", "-S", "-c", _TRIAL, wanted.entry, str(library), *before]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600, check=False)
    if done.returncode != 0:
        reason = (done.stderr.splitlines() or [f"loading it ends a process with {done.returncode}"])[-1]
        raise KernelError(
            f"the compiler {compiler} ended without an error, but what it wrote cannot be loaded: {reason}\n"
            f"set TPGEN_CXX to {COMPILERS}; or TPGEN_CACHE_DIR, where the directory forbids running code",
            f"what the compiler wrote cannot be loaded: {reason}",
        )


# -- from a source to a library: its units compiled side by side, then linked ------------------------------------------


def compile_library(compiler: Compiler, entry: Entry, library: Path, links: Sequence[str] = ()) -> None:
    """The library of an entry's source, of several units where the text is in parts.

    Raises `KernelError` where the compiler fails, `OSError` where there is no room.
    """
    units = unit_flags(entry.source.read_text(), min(_UNITS_PER_CORE * cores(), _MOST_UNITS) if cores() > 1 else 1)
    if len(units) == 1:
        _run(compiler.command([entry.source], library, links, *units), entry)
        return
    made: list[Path] = []
    try:
        made += (entry.new_file(".o") for _ in units)
        compiled = [["-c", str(entry.source), "-o", str(file)] for file in made]
        commands = [[*compiler.always, *flags, *unit] for flags, unit in zip(units, compiled, strict=True)]
        with ThreadPoolExecutor(len(units)) as pool:
            # the last first: they take longest
            for done in [pool.submit(_run, command, entry) for command in reversed(commands)]:
                done.result()
        _run(compiler.command(made, library, links), entry)
    finally:
        for file in made:
            file.unlink(missing_ok=True)


def _run(command: list[str], entry: Entry) -> None:
    try:
        with _turns.lock:
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
