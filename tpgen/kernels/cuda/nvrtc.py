"""CUDA C++ to machine code by NVRTC, the toolkit's compiler as a library: it needs no driver, no GPU and no headers.

torch's wheels for CUDA bring it, and so does ``pip install nvidia-cuda-nvrtc``; ``TPGEN_NVRTC`` names a file of it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import site
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tpgen.errors import BackendError

OPTIONS = ("--std=c++17", "--ptxas-options=--verbose")
_USAGE = re.compile(
    r"Function properties for (\w+)\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads\n.*?Used (\d+) registers"
)


@dataclass(frozen=True)
class Usage:
    """What one kernel takes of each thread."""

    registers: int
    spills: int  # bytes stored to and loaded from memory for want of registers


@dataclass(frozen=True)
class Compiled:
    """Machine code, or PTX where the device is newer than the compiler; and what the compiler said of each kernel."""

    code: bytes
    usage: dict[str, Usage]


class Nvrtc:
    """The library at a path."""

    def __init__(self, path: str) -> None:
        self.path, self._library = path, ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @property
    def version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    @property
    def architectures(self) -> tuple[int, ...]:
        """Compute capabilities that it writes machine code for."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return tuple(found)

    @property
    def identity(self) -> tuple[str, ...]:
        """Everything but the source and the device that decides what comes out."""
        return ("nvrtc {}.{}".format(*self.version), *OPTIONS)

    def compile(self, text: str, arch: int) -> Compiled:
        """The code of a source for one compute capability.

        Raises `BackendError` where NVRTC refuses it, with its first error, or is too new for the device.
        """
        known = self.architectures
        if arch < min(known):
            raise BackendError(
                f"NVRTC {'.'.join(map(str, self.version))} writes no code for sm_{arch}, only from sm_{min(known)} on: "
                "install an earlier one (pip install nvidia-cuda-nvrtc-cu12), or use strategy='grouped'"
            )
        if arch in known:
            return self._compiled(text, f"sm_{arch}", "CUBIN")
        return self._compiled(text, f"compute_{max(a for a in known if a < arch)}", "PTX")

    def ptx(self, text: str, arch: int, numbered: bool = False) -> str:
        """The virtual instructions of a source, where ``numbered`` below the numbers of the lines they are for."""
        more = ("--generate-line-info",) if numbered else ()
        return self._compiled(text, f"compute_{arch}", "PTX", more).code.rstrip(b"\0").decode()

    def _compiled(self, text: str, architecture: str, kind: str, more: tuple[str, ...] = ()) -> Compiled:
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
        try:
            options = [f"--gpu-architecture={architecture}", *OPTIONS, *more]
            flags = (ctypes.c_char_p * len(options))(*map(str.encode, options))
            failed = self._library.nvrtcCompileProgram(program, len(options), flags)
            log = (
                self._text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
                .rstrip(b"\0")
                .decode(errors="replace")
            )
            if failed:
                first = next((line for line in log.splitlines() if "error" in line), log or "(no output)")
                raise BackendError(
                    f"NVRTC failed for {architecture}: {first}\n"
                    "set TPGEN_NVRTC to another one, or use strategy='grouped'"
                )
            return Compiled(self._text(program, f"nvrtcGet{kind}Size", f"nvrtcGet{kind}"), usage(log))
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, size_of: str, get: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(size_of, program, ctypes.byref(size))
        room = ctypes.create_string_buffer(size.value)
        self._call(get, program, room)
        return room.raw

    def _call(self, name: str, *values: object) -> None:
        code = getattr(self._library, name)(*values)
        if code:
            raise BackendError(f"{name} of {self.path} failed: {self._library.nvrtcGetErrorString(code).decode()}")


def usage(log: str) -> dict[str, Usage]:
    """Registers and spills of each kernel, as the assembler says them."""
    return {name: Usage(int(used), int(out) + int(back)) for name, out, back, used in _USAGE.findall(log)}


def find_nvrtc() -> Nvrtc | None:
    """The library, or None.  ``TPGEN_NVRTC`` names one; ``TPGEN_NVRTC=none`` says that none is to be used."""
    return _find(os.environ.get("TPGEN_NVRTC", ""))


@cache
def _find(named: str) -> Nvrtc | None:
    if named == "none":
        return None
    for path in [named] if named else _candidates():
        try:
            return Nvrtc(path)
        except OSError:
            continue
    return None


def _candidates() -> Iterator[str]:
    """Those beside torch first, newest first, then the system's."""
    for folder in dict.fromkeys([*sys.path, *site.getsitepackages()]):
        if folder:
            yield from map(str, sorted(Path(folder).glob("nvidia/*/lib/libnvrtc.so.*"), reverse=True))
    found = ctypes.util.find_library("nvrtc")
    if found:
        yield found


def why_no_nvrtc() -> str:
    """What to do where there is none."""
    named = os.environ.get("TPGEN_NVRTC", "")
    if named == "none":
        return "TPGEN_NVRTC=none forbids it"
    if named:
        return f"TPGEN_NVRTC={named} cannot be loaded"
    return "there is none: pip install nvidia-cuda-nvrtc"


def need_nvrtc() -> Nvrtc:
    """The library, or a `BackendError` that says how to get it."""
    found = find_nvrtc()
    if found is None:
        raise BackendError(f"kernels on a GPU need NVRTC, and {why_no_nvrtc()}; or use strategy='grouped'")
    return found
