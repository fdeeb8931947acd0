"""Source of the C++ runtime."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

_COMMON = ("torch", "memory", "form")  # each needs those before it


@cache
def process_text() -> str:
    """Source of this process's runtime.

    >>> "tpgen_register" in process_text()
    True
    """
    return "\n".join([f"// for torch {torch.__version__}", *map(native_header, (*_COMMON, "gpu", "process"))])


def deployed_text(table: str) -> str:
    """Source of a runtime without Python, with a kernel ``table``.

    >>> "none of it" in deployed_text("// none of it")
    True
    """
    return "\n".join([*map(native_header, _COMMON), table, native_header("deployed")])


def native_header(name: str) -> str:
    """Text of a header beside this file."""
    return (Path(__file__).parent / f"{name}.h").read_text(encoding="utf-8")


def libtorch() -> str:
    """Library file that exports torch's stable functions, or empty."""
    files = (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")
    return next((str(file) for file in sorted(files) if file.suffix in (".so", ".dylib")), "")
