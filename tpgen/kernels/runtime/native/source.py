"""Source of the C++ runtime."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tpgen.base.errors import BackendError
from tpgen.kernels.build.build import LibraryRequest, load_library
from tpgen.kernels.build.cache import RUNTIME
from tpgen.kernels.cpp.text import read_header

_COMMON = ("torch", "memory", "form")  # each needs those before it


@cache
def write_process_runtime_source() -> str:
    """C++ source of the runtime of Python processes.

    >>> "tpgen_register" in write_process_runtime_source()
    True
    """
    return "\n".join([f"// for torch {torch.__version__}", *map(read_native_header, (*_COMMON, "gpu", "process"))])


def write_deployed_runtime_source(kernel_table: str) -> str:
    """C++ source of a runtime without Python, with the source of a kernel table.

    >>> "none of it" in write_deployed_runtime_source("// none of it")
    True
    """
    return "\n".join([*map(read_native_header, _COMMON), kernel_table, read_native_header("deployed")])


def read_native_header(name: str) -> str:
    return (Path(__file__).parent / f"{name}.h").read_text(encoding="utf-8")


def libtorch() -> str:
    """Path of the library that exports torch's stable functions, or empty."""
    files = (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")
    return next((str(file) for file in sorted(files) if file.suffix in (".so", ".dylib")), "")


_ARGUMENTS = {"p": ctypes.c_void_p, "i": ctypes.c_int64}  # an address, a number


@cache
def compile_header_function(header: str, function: str, argument_letters: str, holds_gil: bool = False) -> Any:
    """Compile a C++ function of a header, which returns int64; None without a compiler.

    ``argument_letters``: ``p`` address, ``i`` int64.
    """
    here = Path(__file__).parent
    texts = [read_header(here.parents[1] / "cpp" / "system.h"), read_header(here / f"{header}.h")]
    try:
        library = load_library(LibraryRequest("\n".join(["typedef long long i64;", *texts]), function, (), RUNTIME))
    except BackendError:  # without a compiler there are no kernels either, and who asks for one is told
        return None
    prototype = ctypes.PYFUNCTYPE if holds_gil else ctypes.CFUNCTYPE
    return prototype(ctypes.c_int64, *[_ARGUMENTS[letter] for letter in argument_letters])((function, library))
