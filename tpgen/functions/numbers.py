"""Kernels that go over many numbers once: their text (`numbers.h` and a header beside it), and derivatives by them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tpgen.base.errors import KernelError, warn_caller
from tpgen.base.remember import remembered
from tpgen.kernels.build.build import load_kernel
from tpgen.kernels.build.compiler import find_compiler, target
from tpgen.kernels.cpp.prelude import header, type_names
from tpgen.kernels.cpp.text import read_header
from tpgen.kernels.runtime.registration import apply_of
from tpgen.nn.plain_tensors import is_usual

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


def can_build(kernel: Callable[..., Any] | None = None, *of: Any) -> bool:
    """Whether kernels can be built here; with a function that returns one, and its arguments, whether that one can.

    A kernel that the compiler refuses is said once.
    """
    if find_compiler() is None:
        return False
    try:
        if kernel is not None:
            kernel(*of)
    except KernelError as error:
        _say(error.reason)
        return False
    return True


@remembered("functions whose kernels cannot be built")
def _say(reason: str) -> None:
    warn_caller(
        f"the kernel of a function cannot be built: {reason}\n"
        "PyTorch's operations compute the function from here on, which is right and slower; TPGEN_CXX names another "
        "compiler, and `tpgen cache clear` forgets what was refused"
    )


@remembered("kernels of activations")
def kernel_of(name: str, dtype: torch.dtype) -> Callable[..., int]:
    """The kernel, built at its first call: eight addresses and a number.

    Raises `BackendError` where there is no compiler, its `KernelError` where that fails.
    """
    return load_kernel(text_of(name, dtype), addresses=8, numbers=1)


def constants(dtype: torch.dtype, *values: float) -> ctypes.Array:
    """Constants as a kernel of a dtype, float32 or float64, reads them."""
    return ((ctypes.c_float if dtype == torch.float32 else ctypes.c_double) * len(values))(*values)


def run_kernel(kernel: Callable[..., int], operands: Sequence[Tensor | ctypes.Array | None], count: int) -> int:
    """Run a kernel over so many numbers or rows; operands are contiguous, None and those left out of eight nowhere."""
    torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
    addresses = [0] * max(8, len(operands))
    for n, x in enumerate(operands):
        if x is not None:
            addresses[n] = x.data_ptr() if isinstance(x, Tensor) else ctypes.addressof(x)
    return kernel(*addresses, count)


class KernelFunction(NamedTuple):
    """A function of a tensor x, and of a table that does not change, with a kernel for each order of derivatives.

    The kernels compute the value at x, the gradient at (g, x) for a cotangent g, the gradients of that by g and x at
    (c, g, x), and so on.  Further derivatives are those of the ``definition`` in torch's operations, as is all that is
    transformed.
    """

    definition: Callable[[Any, Tensor], Tensor]
    kernels: tuple[Callable[..., tuple[Tensor, ...]], ...]

    def by_torch(self, table: Any, order: int, *point: Tensor) -> tuple[Tensor, ...]:
        """Compute the function (order 0) or its derivative of an order, in torch's operations."""
        if order == 0:
            return (self.definition(table, *point),)
        return self.pulled_back(table, order - 1, point[1:], point[:1])

    def pulled_back(
        self, table: Any, order: int, point: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """The gradients of an order at a point, in any transform, and with a graph where one is wanted of them."""
        pull = torch.func.vjp(partial(self.by_torch, table, order), *point)[1]
        return pull(tuple(cotangents))


class _Derivative(torch.autograd.Function):
    """A function (order 0, at x), its gradient (order 1, at g, x), or the gradients of that (order 2, at c, g, x)."""

    @staticmethod
    def forward(ctx: Any, function: KernelFunction, table: Any, order: int, *point: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*point)
        ctx.of = function, table, order
        return function.kernels[order](table, *point)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (function, table, before), point = ctx.of, ctx.saved_tensors
        order = before + 1
        if order >= len(function.kernels) or not is_usual(*cotangents):
            found = function.pulled_back(table, before, point, cotangents)
        elif torch.is_grad_enabled():
            found = _Derivative.apply(function, table, order, *cotangents, *point)
        else:
            found = function.kernels[order](table, *cotangents, *point)
        return None, None, None, *found


recorded_function = apply_of(_Derivative)  # of a `KernelFunction`, its table, the order 0, and x
