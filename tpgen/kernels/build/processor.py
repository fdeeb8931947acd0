"""Instruction sets of CPUs."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from tpgen.base.errors import BackendError, unknown

NATIVE = "native"
_ARM = platform.machine() in ("aarch64", "arm64")


@dataclass(frozen=True)
class InstructionSet:
    """An instruction set: compiler flags, vector registers, required CPU features."""

    name: str
    flags: tuple[str, ...]
    size: int
    registers: int
    features: tuple[str, ...] = ()  # of a machine that runs its code, as the system calls them

    @property
    def identity(self) -> str:
        """All that determines the code besides the flags."""
        return cpu_features() if self.name == NATIVE else platform.machine()


# Flags are those that g++ 9, clang and zig share: zig reads x86-64-v3 and skylake-avx512 as other processors.
_AVX2 = ("avx2", "fma", "bmi1", "bmi2", "abm", "movbe", "f16c")
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
SETS = (
    (InstructionSet("neon", ("-mcpu=generic",), 16, 32, ("asimd",)),)
    if _ARM
    else (
        InstructionSet("avx512", ("-march=haswell", *(f"-m{name}" for name in _AVX512)), 64, 32, _AVX2 + _AVX512),
        InstructionSet("avx2", ("-march=haswell",), 32, 16, _AVX2),
        InstructionSet("sse2", ("-march=k8",), 16, 16, ("sse2",)),
    )
)
# on x86 the first is what the second is elsewhere
_NATIVE_FLAGS = ("-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native",)
# bytes in a vector and number of vector registers, by torch's name of what the machine has
_VECTORS = {"AVX512": (64, 32), "AVX2": (32, 16)}
_PORTABLE_VECTORS = (16, 32 if _ARM else 16)


def instruction_set() -> InstructionSet:
    """Choose the instruction set: ``TPGEN_TARGET``, else that of this machine.

    Raises `BackendError` for a set that is unknown or cannot run here.
    """
    name = os.environ.get("TPGEN_TARGET", "") or NATIVE
    if name == NATIVE:
        return InstructionSet(
            NATIVE, _NATIVE_FLAGS, *_VECTORS.get(torch.backends.cpu.get_cpu_capability(), _PORTABLE_VECTORS)
        )
    known = {each.name: each for each in SETS}
    if name not in known:
        raise BackendError(f"{unknown('instruction set', name, (NATIVE, *known))}: TPGEN_TARGET names one of these")
    lacking = sorted(set(known[name].features) - set(cpu_features().split()))
    if lacking and _has_cpuinfo():
        raise BackendError(
            f"TPGEN_TARGET={name} needs {', '.join(lacking)}, which this processor lacks: kernels would end the "
            f"process. Take TPGEN_TARGET={NATIVE}, or run on a processor that has it"
        )
    return known[name]


# -- the machine -------------------------------------------------------------------------------------------------------

_CPUINFO = Path("/proc/cpuinfo")
_GET_VECTOR_LENGTH = 51  # PR_SVE_GET_VL of prctl; the lower 16 bits of what it returns are bytes


def _has_cpuinfo() -> bool:
    return _CPUINFO.exists()


@lru_cache(maxsize=1)
def cpu_features() -> str:
    """Architecture and features of this processor; on Arm also maker, part, SVE length."""
    try:
        return f"{platform.machine()} {_features_in(_CPUINFO.read_text())}{_sve_vector_length_text()}"
    except OSError:
        return f"{platform.machine()} {platform.processor()}"


def _features_in(cpuinfo: str) -> str:
    """CPU features in a text of ``/proc/cpuinfo``; on Arm also makers and parts.

    >>> _features_in("flags\\t\\t: fpu sse2\\n\\nflags\\t\\t: fpu sse2\\n")
    'fpu sse2'
    >>> _features_in("Features\\t: fp asimd\\nCPU implementer\\t: 0x41\\nCPU part\\t: 0xd0c\\n")
    'fp asimd implementer=0x41 part=0xd0c'
    """
    lines = re.findall(r"^(?:flags|Features)[ \t]*:[ \t]*(.*?)[ \t]*$", cpuinfo, re.MULTILINE)
    kinds = re.findall(r"^CPU (implementer|part)[ \t]*: (\w+)", cpuinfo, re.MULTILINE)
    return " ".join([*lines[:1], *dict.fromkeys(f"{name}={value}" for name, value in kinds)])


def _sve_vector_length_text() -> str:
    # the system may set the length of SVE's vectors: code for one length does not run with another
    try:
        found = ctypes.CDLL(None).prctl(_GET_VECTOR_LENGTH) if _ARM else -1
    except (OSError, AttributeError):
        return ""
    return f" sve={found & 0xFFFF}" if found > 0 else ""
