"""CUDA C++ compiled by NVRTC, which needs no driver, GPU or headers."""

# tpgen searches ``TPGEN_NVRTC``, CUDA wheels, conda and toolkits.

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import site
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tpgen.base.errors import BackendError, KernelError
from tpgen.base.locks import cached_property
from tpgen.kernels.build.cache import (
    CUBIN,
    Entry,
    call_with_cache_directory,
    find_intact_entry,
    key_of,
    write_atomically,
)
from tpgen.kernels.build.trust import read_private_file
from tpgen.kernels.cuda.driver import driver_cuda_version

OPTIONS = ("--std=c++17", "--ptxas-options=--verbose")


class NvrtcOutput(NamedTuple):
    """Machine code (PTX for newer devices) and the assembler's log."""

    code: bytes
    log: str


class Nvrtc:
    """A loaded NVRTC library, which compiles CUDA C++."""

    def __init__(self, path: str) -> None:
        """Load the library at ``path``."""
        self.path, self._library = path, ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @cached_property
    def version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call_nvrtc_or_raise("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    @cached_property
    def architectures(self) -> tuple[int, ...]:
        """Compute capabilities that NVRTC supports."""
        count = ctypes.c_int()
        self._call_nvrtc_or_raise("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call_nvrtc_or_raise("nvrtcGetSupportedArchs", found)
        return tuple(found)

    @property
    def identity(self) -> tuple[str, ...]:
        """Version and options, which decide the output."""
        return ("nvrtc {}.{}".format(*self.version), *OPTIONS)

    def compile(self, text: str, arch: int) -> NvrtcOutput:
        """Compile a source for one compute capability.

        Raises `KernelError` with NVRTC's first error, `BackendError` for a device too old.
        """
        known = self.architectures
        if arch < min(known):
            raise BackendError(
                f"NVRTC {'.'.join(map(str, self.version))} writes no code for sm_{arch}, only from sm_{min(known)} on: "
                "install an earlier one (pip install nvidia-cuda-nvrtc-cu12), or use strategy='grouped'"
            )
        if arch in known:
            return self._compile(text, f"sm_{arch}", "CUBIN")
        return self._compile(text, f"compute_{max(a for a in known if a < arch)}", "PTX")

    def ptx(self, text: str, arch: int, numbered: bool = False) -> str:
        """Compile a source to PTX; ``numbered`` adds source line numbers."""
        more = ("--generate-line-info",) if numbered else ()
        return self._compile(text, f"compute_{arch}", "PTX", more).code.rstrip(b"\0").decode()

    def _compile(
        self, text: str, architecture: str, output_kind: str, extra_options: tuple[str, ...] = ()
    ) -> NvrtcOutput:
        program = ctypes.c_void_p()
        self._call_nvrtc_or_raise(
            "nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None
        )
        try:
            options = [f"--gpu-architecture={architecture}", *OPTIONS, *extra_options]
            flags = (ctypes.c_char_p * len(options))(*map(str.encode, options))
            failed = self._library.nvrtcCompileProgram(program, len(options), flags)
            log = (
                self._read_compiler_output(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
                .rstrip(b"\0")
                .decode(errors="replace")
            )
            if failed:
                first = next((line for line in log.splitlines() if "error" in line), log or "(no output)")
                raise KernelError(
                    f"NVRTC failed for {architecture}: {first}\n"
                    "set TPGEN_NVRTC to another one, or use strategy='grouped'"
                )
            return NvrtcOutput(
                self._read_compiler_output(program, f"nvrtcGet{output_kind}Size", f"nvrtcGet{output_kind}"), log
            )
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read_compiler_output(self, program: ctypes.c_void_p, size_function: str, read_function: str) -> bytes:
        size = ctypes.c_size_t()
        self._call_nvrtc_or_raise(size_function, program, ctypes.byref(size))
        room = ctypes.create_string_buffer(size.value)
        self._call_nvrtc_or_raise(read_function, program, room)
        return room.raw

    def _call_nvrtc_or_raise(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise BackendError(f"{function} of {self.path} failed: {self._library.nvrtcGetErrorString(code).decode()}")


def find_nvrtc(arch: int | None = None, cuda: int | None = None) -> Nvrtc | None:
    """First NVRTC for compute capability ``arch`` and CUDA up to ``cuda``, or None.

    ``TPGEN_NVRTC`` names the only library allowed; ``none`` forbids all.
    """
    return next((one for one in _load_candidate_libraries() if not _why_unusable(one, arch, cuda)), None)


def why_no_nvrtc(arch: int | None = None, cuda: int | None = None) -> str:
    """Why no NVRTC is usable, with advice."""
    named = os.environ.get("TPGEN_NVRTC", "")
    if named == "none":
        return "TPGEN_NVRTC=none forbids it"
    misfits = [_why_unusable(one, arch, cuda) for one in _load_candidate_libraries()]
    if misfits:
        return f"{misfits[-1]}"
    if named:
        return f"TPGEN_NVRTC={named} cannot be loaded"
    return f"there is none: {_pip_command_text(cuda)}"


def need_nvrtc(arch: int | None = None, cuda: int | None = None) -> Nvrtc:
    """Return a usable NVRTC or raise `BackendError` with advice."""
    found = find_nvrtc(arch, cuda)
    if found is None:
        raise BackendError(f"kernels on a GPU need NVRTC, and {why_no_nvrtc(arch, cuda)}; or use strategy='grouped'")
    return found


def list_supported_architectures(cuda: int | None = None) -> tuple[int, ...]:
    """Compute capabilities that usable NVRTC libraries support."""
    serving = (one for one in _load_candidate_libraries() if not _why_unusable(one, None, cuda))
    return tuple(sorted({arch for one in serving for arch in one.architectures}))


def _load_candidate_libraries() -> Iterator[Nvrtc]:
    named = os.environ.get("TPGEN_NVRTC", "")
    if named != "none":
        yield from filter(None, map(_load_library_or_none, [named] if named else _list_candidate_files()))


@cache
def _load_library_or_none(path: str) -> Nvrtc | None:
    try:
        return Nvrtc(path)
    except (OSError, AttributeError):  # no library, or of something else
        return None


def _why_unusable(nvrtc: Nvrtc, arch: int | None, cuda: int | None) -> str | None:
    # a driver takes code of any minor version of its major CUDA version
    major, minor = nvrtc.version
    if cuda is not None and major > cuda:
        newer = f"NVRTC {major}.{minor} is newer than this driver, which takes CUDA {cuda}"
        return f"{newer}: update it, or {_pip_command_text(cuda)}"
    oldest = min(nvrtc.architectures)
    if arch is not None and arch < oldest:
        older = f"NVRTC {major}.{minor} writes no code for sm_{arch}, only from sm_{oldest} on"
        return f"{older}: {_pip_command_text(major - 1)}"
    return None


_FOLDERS = ("CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH")  # variables that name where a CUDA may be
_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
_NAMELESS = 13  # the first CUDA whose wheels do not name it


def _pip_command_text(cuda: int | None) -> str:
    return f"pip install nvidia-cuda-nvrtc{f'-cu{cuda}' if cuda is not None and cuda < _NAMELESS else ''}"


@cache
def _list_candidate_files() -> tuple[str, ...]:
    # newest first: files of wheels (torch's is one), of conda and of toolkits; then names, by which the loader finds a
    # library that is loaded already
    roots = filter(None, [sys.prefix, *map(os.environ.get, _FOLDERS)])
    places = [(root, lib) for root in roots for lib in ("lib", "lib64")]
    places += [(folder, "nvidia/*/lib") for folder in (*sys.path, *site.getsitepackages()) if folder]
    files = {str(file) for root, folder in places for file in Path(root).glob(f"{folder}/libnvrtc.so.*")}
    newest_first = sorted(files, key=lambda file: (_version_in_file_name(file), file), reverse=True)
    return *newest_first, *_NAMES, *filter(None, [ctypes.util.find_library("nvrtc")])


def _version_in_file_name(file: str) -> tuple[int, ...]:
    # libnvrtc.so.12 is (12,)
    return tuple(map(int, re.findall(r"\d+", file.rpartition(".so")[2])))


# -- in the kernel cache -----------------------------------------------------------------------------------------------


def compile_machine_code(text: str, arch: int) -> bytes:
    """Machine code of a CUDA source, cached or compiled; PTX for a device newer than NVRTC.

    Raises `BackendError` without a working NVRTC.
    """
    compiler = need_nvrtc(arch, driver_cuda_version())
    key = key_of(text, arch, *compiler.identity)
    found = find_intact_entry(key, CUBIN)
    if found:
        return read_private_file(found.library)
    return call_with_cache_directory(
        lambda directory: _compile_into_cache_entry(Entry(directory, key, CUBIN), text, arch, compiler)
    )


def _compile_into_cache_entry(entry: Entry, text: str, arch: int, compiler: Nvrtc) -> bytes:
    # another process may have published the entry meanwhile
    with entry.hold_file_lock():
        if not entry.is_intact():
            write_atomically(entry.file_with_suffix(".cu"), text)
            built = entry.create_temporary_file(CUBIN)
            try:
                built.write_bytes(compiler.compile(text, arch).code)
                entry.publish_library(built)
            finally:
                built.unlink(missing_ok=True)
        return read_private_file(entry.library)
