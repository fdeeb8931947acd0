"""C++ compiler of this machine, and its flags."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch

from tpgen.base.errors import BackendError, unknown
from tpgen.kernels.build.processor import InstructionSet, instruction_set
from tpgen.kernels.placement.values import Target

# tpgen calls the compiler directly: kernels build in one second without headers, in 20 with those of torch, which
# `torch.utils.cpp_extension` and Inductor include.

# The first of these that exists is used, after $TPGEN_CXX and $CXX, and before the one of ziglang, a package of Python.
CANDIDATES = ("g++", "clang++", "c++")
COMPILERS = "g++ 9 or later or clang"  # for errors
_OLDEST_GCC = 9  # the first with __builtin_convertvector
_WHOLE_GCC = 12  # the first with __builtin_shufflevector: those before it get a header that makes up for it
_OLD_GCC = Path(__file__).with_name("old_gcc.h")

# No -ffast-math: it would switch denormals off for the whole process and lose NaN.  Only contraction (a * b + c in one
# rounding) is left to the compiler; no sum is reordered.
FLAGS = (
    "-std=c++17",
    "-O2",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-w",
)

DTYPES: dict[torch.dtype, str] = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
COMPUTED = "kernels compute in float32, float64 or bfloat16"

# Functions that compilers call of themselves; kernels need none on x86, and zig would build its own for 8 seconds.
_HELPERS = [] if platform.machine() in ("x86_64", "AMD64") else ["-lgcc"]


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler, its instruction set, and torch's OpenMP runtime (empty: no threads)."""

    program: tuple[str, ...]  # and its first arguments
    version: str
    runtime: str
    instructions: InstructionSet

    def __str__(self) -> str:
        return shlex.join(self.program)

    def make_command(
        self, sources: Sequence[Path], library: Path, links: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> list[str]:
        """Command line that compiles and links ``sources`` into ``library``."""
        # The runtime's file, without default libraries: a second OpenMP runtime would start a second pool of threads.
        libraries = [self.runtime, "-lc", *_HELPERS] if self.runtime else []
        return [*self.base_command, *flags, *map(str, sources), "-o", str(library), *libraries, *links]

    @property
    def base_command(self) -> list[str]:
        """Program and flags that every command begins with."""
        threads = ["-DTPGEN_THREADS", "-nostdlib"] if self.runtime else []
        return [*self.program, *FLAGS, *self.instructions.flags, *self._old_gcc_flags, *threads]

    @property
    def _old_gcc_flags(self) -> list[str]:
        return ["-include", str(_OLD_GCC)] if _gcc_version(self.version) < _WHOLE_GCC else []

    @property
    def identity(self) -> tuple[str, ...]:
        """Texts that determine the binary, besides the source: for cache keys."""
        flags = (*self.program[1:], *FLAGS, *self.instructions.flags)
        texts = (_OLD_GCC.read_text(encoding="utf-8"),) if self._old_gcc_flags else ()
        return (self.version, *flags, *texts, Path(self.runtime).name, self.instructions.identity)


def find_compiler() -> Compiler | None:
    """Find the compiler, or None; ``TPGEN_CXX`` names one, or ``none`` forbids all.

    Raises `BackendError` if this machine cannot run ``TPGEN_TARGET``.
    """
    found = _first_usable_compiler(os.environ.get("TPGEN_CXX", ""), os.environ.get("CXX", ""), os.environ.get("PATH", ""))
    return found and Compiler(*found, find_openmp_runtime(), instruction_set())


def list_compilers() -> tuple[tuple[str, str], ...]:
    """List (command, version) of installed compilers; tpgen uses the first recent one."""
    named, cxx, path = (os.environ.get(name, "") for name in ("TPGEN_CXX", "CXX", "PATH"))
    tried = [*([_split_command(named)] if named else []), *_compiler_commands_to_try(cxx)]
    return tuple(dict.fromkeys((shlex.join(program), version) for program, version in _list_installed_with_versions(tried, path)))


def why_no_compiler() -> str:
    """Explain why `find_compiler` returned None."""
    named = os.environ.get("TPGEN_CXX", "")
    if named.lower() == "none":
        return "TPGEN_CXX=none forbids one"
    if named:
        reason = f"is GCC before {_OLDEST_GCC}" if shutil.which(_split_command(named)[0]) else "cannot be run here"
        return f"TPGEN_CXX names {named!r}, which {reason}"
    return "none was found"


def need_compiler() -> Compiler:
    """Find the compiler, or raise `BackendError` with alternatives."""
    found = find_compiler()
    if found is None:
        raise BackendError(
            f"generated kernels need a C++ compiler and {why_no_compiler()}: install {COMPILERS} ('pip install "
            "ziglang' brings one), name it in TPGEN_CXX if it is not found, or use strategy='grouped' or 'unrolled', "
            "which need none"
        )
    return found


@lru_cache(maxsize=8)
def _first_usable_compiler(named_by_user: str, cxx: str, path: str) -> tuple[tuple[str, ...], str] | None:
    if named_by_user.lower() == "none":
        return None
    tried = (_split_command(named_by_user),) if named_by_user else _compiler_commands_to_try(cxx)
    return next((found for found in _list_installed_with_versions(tried, path) if _gcc_version(found[1]) >= _OLDEST_GCC), None)


def _list_installed_with_versions(commands: Iterable[tuple[str, ...]], path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    for first, *others in commands:
        found = shutil.which(first, path=path or None)
        if found:
            yield (found, *others), _version_line_or_why_unknown((found, *others))


def _compiler_commands_to_try(cxx: str) -> Iterator[tuple[str, ...]]:
    if cxx.strip():
        yield _split_command(cxx)
    yield from ((name,) for name in CANDIDATES)
    ziglang = find_spec("ziglang")
    for folder in (ziglang and ziglang.submodule_search_locations) or ():
        yield str(Path(folder) / "zig"), "c++"


def _split_command(command: str) -> tuple[str, ...]:
    """Split a command into program and arguments.

    >>> _split_command("python -m ziglang c++")
    ('python', '-m', 'ziglang', 'c++')
    """
    if shutil.which(command):
        return (command,)
    try:
        return tuple(shlex.split(command)) or (command,)
    except ValueError:  # a quote that is not closed
        return (command,)


def _gcc_version(version: str) -> float:
    """GCC version in the first line of ``--version``; infinite for other programs.

    >>> _gcc_version("g++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0"), _gcc_version("Debian clang version 11.0.1-2")
    (11.0, inf)
    >>> _gcc_version("true (GNU coreutils) 9.1")  # no compiler at all
    inf
    """
    found = re.search(r"(?:g\+\+|gcc|c\+\+).*\) (\d+)\.", version, re.IGNORECASE)
    return float("inf") if "clang" in version or found is None else float(found[1])


def _version_line_or_why_unknown(program: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            [*program, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown ({error})"
    return done.stdout.partition("\n")[0]


@lru_cache(maxsize=1)
def find_openmp_runtime() -> str:
    """Path of the OpenMP runtime that torch loaded, or empty."""
    names = ("libgomp", "libomp", "libiomp5")
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
        loaded = [line.split(maxsplit=5)[5] for line in lines if line.count("/")]
    except OSError:  # not Linux: what torch ships
        loaded = [str(file) for file in (Path(torch.__file__).parent / "lib").glob("lib*omp*")]
    fitting = [file for file in loaded if Path(file).name.startswith(names)]
    # another package may have brought its own, which torch's threads know nothing of
    ours = [file for file in fitting if file.startswith(str(Path(torch.__file__).parent))]
    return next(iter(ours + fitting), "")


def cpu_target(dtype: torch.dtype) -> Target:
    """CPU target of kernels in a dtype; raises `BackendError` if unsupported."""
    if dtype not in DTYPES:
        raise BackendError(unknown("kernel dtype", str(dtype), map(str, DTYPES)))
    instructions = instruction_set()
    return Target(DTYPES[dtype], instructions.size // (8 if dtype == torch.float64 else 4), instructions.registers)
