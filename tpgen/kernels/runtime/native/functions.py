"""C++ functions on addresses of tensors."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from tpgen.base.errors import BackendError
from tpgen.kernels.build.build import LibraryRequest, load_library
from tpgen.kernels.build.cache import RUNTIME
from tpgen.kernels.cpp.text import read_header

_ARGUMENTS = {"p": ctypes.c_void_p, "i": ctypes.c_int64}  # an address, a number


@cache
def native_function(name: str, entry: str, arguments: str, holds_gil: bool = False) -> Any:
    """Compile function ``entry`` of header ``name``, which returns int64; None without a compiler.

    ``arguments`` has a letter per argument: ``p`` address, ``i`` int64.
    """
    here = Path(__file__).parent
    texts = [read_header(here.parents[1] / "cpp" / "system.h"), read_header(here / f"{name}.h")]
    try:
        library = load_library(LibraryRequest("\n".join(["typedef long long i64;", *texts]), entry, (), RUNTIME))
    except BackendError:  # without a compiler there are no kernels either, and who asks for one is told
        return None
    prototype = ctypes.PYFUNCTYPE if holds_gil else ctypes.CFUNCTYPE
    return prototype(ctypes.c_int64, *[_ARGUMENTS[letter] for letter in arguments])((entry, library))
