"""From a source to a library: its units compiled side by side, then linked."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tpgen.errors import BackendError
from tpgen.kernels.cpp.parts import unit_flags
from tpgen.kernels.build.cache import Entry
from tpgen.kernels.build.compiler import Compiler

# A unit of all paths' tables is compiled in less time than one of as many lines of paths.  Units are cheap (0.04 s for
# what stands before the parts), so there are more than cores, which take one after the other.
_UNITS_PER_CORE, _MOST_UNITS = 4, 32


def cores() -> int:
    """Number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


_turns = threading.Semaphore(cores())  # several kernels may be built at once, of several units each


def _after_fork() -> None:
    """A forked process has none of the threads that took a turn."""
    global _turns
    _turns = threading.Semaphore(cores())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def compile_library(compiler: Compiler, entry: Entry, library: Path, links: Sequence[str] = ()) -> None:
    """The library of an entry's source, of several units where the text is in parts.

    Raises `BackendError` where the compiler fails, `OSError` where there is no room.
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
        with _turns:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(
            f"the compiler could not be run: {' '.join(command)}\n  {error}\nset TPGEN_CXX to one that can"
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
        raise BackendError(
            f"the compiler failed: {' '.join(command)}\n  first error: {lines[0]}\n  source kept at {entry.source}\n"
            "set TPGEN_CXX to g++ 12 or later or clang, or use strategy='unrolled', which needs no compiler"
        )
