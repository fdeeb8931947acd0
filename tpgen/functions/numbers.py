"""The text of a kernel that goes over many numbers once: `numbers.h` and a header beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tpgen.kernels.build.build import load_kernel
from tpgen.kernels.build.compiler import find_compiler, target
from tpgen.kernels.cpp.prelude import header, type_names
from tpgen.kernels.cpp.text import read_header
from tpgen.remember import remembered

_NEEDS = {"silu": ("functions",), "gate": ("functions",)}  # headers beside this file, besides `numbers.h`


def text_of(name: str, dtype: torch.dtype, tables: Sequence[str] = ()) -> str:
    """The source of the kernel of a header for a dtype, float32 or float64; tables stand before it.

    >>> "tpgen_kernel" in text_of("silu", torch.float32)
    True
    """
    parts = [type_names(target(dtype)), *map(header, ("system", "threads", "plain"))]
    names = ("numbers", *_NEEDS.get(name, ()), name)
    *before, own = (read_header(Path(__file__).with_name(f"{each}.h")) for each in names)
    return "\n".join(part.strip("\n") for part in (*parts, *before, *tables, own))


def can_build() -> bool:
    """Whether a kernel can be built here."""
    return find_compiler() is not None


@remembered("kernels of activations")
def kernel_of(name: str, dtype: torch.dtype) -> Callable[..., int]:
    """The kernel, built at its first call: eight addresses and a number.

    Raises `BackendError` where there is no compiler or it fails.
    """
    return load_kernel(text_of(name, dtype))
