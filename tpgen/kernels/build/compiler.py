"""The C++ compiler of this machine, its flags, and what it compiles for.

torch brings two ways to compile C++ (`torch.utils.cpp_extension`, Inductor's code cache).  Both build against torch's
headers, 20 seconds and more per source; the kernels need no header at all and build in one.  So the compiler is
called directly.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from tpgen.errors import BackendError, unknown
from tpgen.kernels.placement.values import Target

# The first of these that exists is used, after $TPGEN_CXX and $CXX.
CANDIDATES = ("g++", "clang++", "c++")
_OLDEST_GCC = 12  # the first with __builtin_shufflevector

# No -ffast-math: it would switch denormals off for the whole process and lose NaN.  Only contraction (a * b + c in one
# rounding) is left to the compiler; no sum is reordered.
FLAGS = (
    "-std=c++17",
    "-O2",
    # on x86 the first is what the second is elsewhere
    "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native",
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

# bytes in a vector and number of vector registers, by torch's name of the instruction set
_VECTORS = {"AVX512": (64, 32), "AVX2": (32, 16)}
_PORTABLE_VECTORS = (16, 32 if platform.machine() in ("aarch64", "arm64") else 16)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler and the OpenMP runtime that torch has loaded (empty: build without threads)."""

    path: str
    version: str
    runtime: str

    def command(
        self, sources: Sequence[Path], library: Path, links: Sequence[str] = (), flags: Sequence[str] = ()
    ) -> list[str]:
        """The whole command line that makes a library of sources or compiled units, which calls those it links to.

        The runtime is named as a file and the default libraries are left out, so that the library binds to the OpenMP
        runtime that is in the process already: a second one would bring a second pool of threads.
        """
        libraries = [self.runtime, "-lc", "-lgcc"] if self.runtime else []
        return [*self.always, *flags, *map(str, sources), "-o", str(library), *libraries, *links]

    @property
    def always(self) -> list[str]:
        """Compiler and flags of every command."""
        return [self.path, *FLAGS, *(["-DTPGEN_THREADS", "-nostdlib"] if self.runtime else [])]

    @property
    def identity(self) -> tuple[str, ...]:
        """Everything but the source that decides what comes out."""
        return (self.version, *FLAGS, Path(self.runtime).name, cpu_features())


def find_compiler() -> Compiler | None:
    """The compiler, or None.  ``TPGEN_CXX`` names one; ``TPGEN_CXX=none`` says that none is to be used."""
    return _find(os.environ.get("TPGEN_CXX", ""), os.environ.get("CXX", ""), os.environ.get("PATH", ""))


def why_no_compiler() -> str:
    """Say why `find_compiler` found no compiler, for an error."""
    named = os.environ.get("TPGEN_CXX", "")
    if named.lower() == "none":
        return "TPGEN_CXX=none forbids one"
    if named:
        reason = f"is GCC before {_OLDEST_GCC}" if shutil.which(named) else "cannot be run here"
        return f"TPGEN_CXX names {named!r}, which {reason}"
    return "none was found"


def need_compiler() -> Compiler:
    """The compiler, or a `BackendError` that says what to do without."""
    found = find_compiler()
    if found is None:
        raise BackendError(
            f"generated kernels need a C++ compiler and {why_no_compiler()}: install g++ 12 or later or clang, name "
            "it in TPGEN_CXX if it is not found, or use strategy='grouped' or 'unrolled', which need none"
        )
    return found


@lru_cache(maxsize=8)
def _find(named: str, cxx: str, path: str) -> Compiler | None:
    if named.lower() == "none":
        return None
    for candidate in (named,) if named else (cxx, *CANDIDATES):
        found = shutil.which(candidate, path=path or None) if candidate else None
        version = _version(found) if found else ""
        if found and not _too_old(version):
            return Compiler(found, version, openmp_runtime())
    return None


def _too_old(version: str) -> bool:
    """Whether the first line of ``--version`` is that of a GCC without the vector operations that kernels use.

    >>> _too_old("g++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0"), _too_old("Debian clang version 11.0.1-2")
    (True, False)
    >>> _too_old("true (GNU coreutils) 9.1")  # no compiler at all: what it writes will show that
    False
    """
    found = re.search(r"(?:g\+\+|gcc|c\+\+).*\) (\d+)\.", version, re.IGNORECASE)
    return "clang" not in version and found is not None and int(found[1]) < _OLDEST_GCC


def _version(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
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


@lru_cache(maxsize=1)
def cpu_features() -> str:
    """Name the architecture and features of this processor, which code for it depends on."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    lines = (line for line in info.split("\n") if line.startswith(("flags", "Features")))
    return f"{platform.machine()} {next(lines, '').partition(':')[2].strip()}"


def target(dtype: torch.dtype) -> Target:
    """Lanes and registers of this machine for a dtype, or a `BackendError`."""
    if dtype not in DTYPES:
        raise BackendError(unknown("kernel dtype", str(dtype), map(str, DTYPES)))
    size, registers = _VECTORS.get(torch.backends.cpu.get_cpu_capability(), _PORTABLE_VECTORS)
    return Target(DTYPES[dtype], size // (8 if dtype == torch.float64 else 4), registers)
