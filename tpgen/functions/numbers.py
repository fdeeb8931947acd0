"""The text of a kernel that goes over many numbers once: `numbers.h` and a header beside it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

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


def constants(dtype: torch.dtype, *values: float) -> ctypes.Array:
    """Constants as a kernel of a dtype, float32 or float64, reads them."""
    return ((ctypes.c_float if dtype == torch.float32 else ctypes.c_double) * len(values))(*values)


def run_kernel(kernel: Callable[..., int], operands: Sequence[Tensor | ctypes.Array | None], count: int) -> None:
    """Run a kernel over so many numbers or rows; its eight operands lie contiguous, None and those left out nowhere."""
    torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
    addresses = [0] * 8
    for n, x in enumerate(operands):
        if x is not None:
            addresses[n] = x.data_ptr() if isinstance(x, Tensor) else ctypes.addressof(x)
    kernel(*addresses, count)
