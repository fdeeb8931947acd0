"""The C++ compiler of this machine, its flags, and what it compiles for.

torch brings two ways to compile C++ (`torch.utils.cpp_extension`, Inductor's code cache).  Both build against torch's
headers, 20 seconds and more per source; the kernels need no header at all and build in one.  So the compiler is
called directly.
"""

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
    """A C++ compiler, what it compiles for, and the OpenMP runtime that torch has loaded (empty: no threads)."""

    program: tuple[str, ...]  # and its first arguments
    version: str
    runtime: str
    instructions: InstructionSet

    def __str__(self) -> str:
        return shlex.join(self.program)

    def command(
        self, sources: Sequence[Path], library: Path, links: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> list[str]:
        """The whole command line that makes a library of sources or compiled units, which calls those it links to.

        The runtime is named as a file and the default libraries are left out, so that the library binds to the OpenMP
        runtime that is in the process already: a second one would bring a second pool of threads.
        """
        libraries = [self.runtime, "-lc", *_HELPERS] if self.runtime else []
        return [*self.always, *flags, *map(str, sources), "-o", str(library), *libraries, *links]

    @property
    def always(self) -> list[str]:
        """Compiler and flags of every command."""
        threads = ["-DTPGEN_THREADS", "-nostdlib"] if self.runtime else []
        return [*self.program, *FLAGS, *self.instructions.flags, *self._help, *threads]

    @property
    def _help(self) -> list[str]:
        return ["-include", str(_OLD_GCC)] if _gcc(self.version) < _WHOLE_GCC else []

    @property
    def identity(self) -> tuple[str, ...]:
        """Everything but the source that decides what comes out."""
        flags = (*self.program[1:], *FLAGS, *self.instructions.flags)
        texts = (_OLD_GCC.read_text(encoding="utf-8"),) if self._help else ()
        return (self.version, *flags, *texts, Path(self.runtime).name, self.instructions.identity)


def find_compiler() -> Compiler | None:
    """The compiler, or None.  ``TPGEN_CXX`` names one; ``TPGEN_CXX=none`` says that none is to be used.

    Raises `BackendError` where ``TPGEN_TARGET`` names what this machine cannot run.
    """
    found = _find(os.environ.get("TPGEN_CXX", ""), os.environ.get("CXX", ""), os.environ.get("PATH", ""))
    return found and Compiler(*found, openmp_runtime(), instruction_set())


def compilers() -> tuple[tuple[str, str], ...]:
    """Every compiler that is looked for and found here, with its version; the first that is not too old is used."""
    named, cxx, path = (os.environ.get(name, "") for name in ("TPGEN_CXX", "CXX", "PATH"))
    tried = [*([_words(named)] if named else []), *_candidates(cxx)]
    return tuple(dict.fromkeys((shlex.join(program), version) for program, version in _present(tried, path)))


def why_no_compiler() -> str:
    """Say why `find_compiler` found no compiler, for an error."""
    named = os.environ.get("TPGEN_CXX", "")
    if named.lower() == "none":
        return "TPGEN_CXX=none forbids one"
    if named:
        reason = f"is GCC before {_OLDEST_GCC}" if shutil.which(_words(named)[0]) else "cannot be run here"
        return f"TPGEN_CXX names {named!r}, which {reason}"
    return "none was found"


def need_compiler() -> Compiler:
    """The compiler, or a `BackendError` that says what to do without."""
    found = find_compiler()
    if found is None:
        raise BackendError(
            f"generated kernels need a C++ compiler and {why_no_compiler()}: install {COMPILERS} ('pip install ziglang' "
            "brings one), name it in TPGEN_CXX if it is not found, or use strategy='grouped' or 'unrolled', which need none"
        )
    return found


@lru_cache(maxsize=8)
def _find(named: str, cxx: str, path: str) -> tuple[tuple[str, ...], str] | None:
    """Program and version of the first compiler that can be used."""
    if named.lower() == "none":
        return None
    tried = (_words(named),) if named else _candidates(cxx)
    return next((found for found in _present(tried, path) if _gcc(found[1]) >= _OLDEST_GCC), None)


def _present(tried: Iterable[tuple[str, ...]], path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    for first, *others in tried:
        found = shutil.which(first, path=path or None)
        if found:
            yield (found, *others), _version((found, *others))


def _candidates(cxx: str) -> Iterator[tuple[str, ...]]:
    if cxx.strip():
        yield _words(cxx)
    yield from ((name,) for name in CANDIDATES)
    ziglang = find_spec("ziglang")
    for folder in (ziglang and ziglang.submodule_search_locations) or ():
        yield str(Path(folder) / "zig"), "c++"


def _words(command: str) -> tuple[str, ...]:
    """A program and its first arguments; the whole is one word where it names a program.

    >>> _words("python -m ziglang c++")
    ('python', '-m', 'ziglang', 'c++')
    """
    if shutil.which(command):
        return (command,)
    try:
        return tuple(shlex.split(command)) or (command,)
    except ValueError:  # a quote that is not closed
        return (command,)


def _gcc(version: str) -> float:
    """Number of a GCC by the first line of its ``--version``; infinite for all else: what it writes will show.

    >>> _gcc("g++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0"), _gcc("Debian clang version 11.0.1-2")
    (11.0, inf)
    >>> _gcc("true (GNU coreutils) 9.1")  # no compiler at all
    inf
    """
    found = re.search(r"(?:g\+\+|gcc|c\+\+).*\) (\d+)\.", version, re.IGNORECASE)
    return float("inf") if "clang" in version or found is None else float(found[1])


def _version(program: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            [*program, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown ({error})"
    return done.stdout.partition("\n")[0]


@lru_cache(maxsize=1)
def openmp_runtime() -> str:
    """File of the OpenMP runtime that torch has loaded into this process, or nothing."""
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


def target(dtype: torch.dtype) -> Target:
    """Lanes and registers that kernels of a dtype are written for, or a `BackendError`."""
    if dtype not in DTYPES:
        raise BackendError(unknown("kernel dtype", str(dtype), map(str, DTYPES)))
    instructions = instruction_set()
    return Target(DTYPES[dtype], instructions.size // (8 if dtype == torch.float64 else 4), instructions.registers)
