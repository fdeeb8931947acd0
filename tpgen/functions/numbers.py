"""Sources, launches, gradients of elementwise kernels."""

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
from tpgen.kernels.build.compiler import cpu_target, find_compiler
from tpgen.kernels.cpp.prelude import header_text, number_type_definitions
from tpgen.kernels.cpp.text import read_header
from tpgen.kernels.runtime.registration import get_unchecked_apply
from tpgen.nn.plain_tensors import are_plain

_NEEDS = {"silu": ("functions",), "gate": ("functions",)}  # headers beside this file, besides `numbers.h`


def write_elementwise_kernel_source(name: str, dtype: torch.dtype, tables: Sequence[str] = ()) -> str:
    """Write the C++ source of kernel ``name``, after C++ texts ``tables``.

    >>> "tpgen_kernel" in write_elementwise_kernel_source("silu", torch.float32)
    True
    """
    parts = [number_type_definitions(cpu_target(dtype)), *map(header_text, ("system", "threads", "plain"))]
    names = ("numbers", *_NEEDS.get(name, ()), name)
    *before, own = (read_header(Path(__file__).with_name(f"{each}.h")) for each in names)
    return "\n".join(part.strip("\n") for part in (*parts, *before, *tables, own))


def can_build_kernel(build: Callable[..., Any] | None = None, *arguments: Any) -> bool:
    """Whether a compiler exists and ``build(*arguments)`` compiles; warn once of failure."""
    if find_compiler() is None:
        return False
    try:
        if build is not None:
            build(*arguments)
    except KernelError as error:
        _warn_of_failed_kernel_build(error.reason)
        return False
    return True


@remembered("functions whose kernels cannot be built")
def _warn_of_failed_kernel_build(reason: str) -> None:
    warn_caller(
        f"the kernel of a function cannot be built: {reason}\n"
        "PyTorch's operations compute the function from here on, which is right and slower; TPGEN_CXX names another "
        "compiler, and `tpgen cache clear` forgets what was refused"
    )


@remembered("kernels of activations")
def build_elementwise_kernel(name: str, dtype: torch.dtype) -> Callable[..., int]:
    """Build the kernel ``name`` once: a function of eight addresses and a count.

    Raises `BackendError` without a compiler, `KernelError` if compilation fails.
    """
    return load_kernel(write_elementwise_kernel_source(name, dtype), addresses=8, numbers=1)


def pack_numbers(dtype: torch.dtype, *values: float) -> ctypes.Array:
    """Pack values as a C array of float32 or float64."""
    return ((ctypes.c_float if dtype == torch.float32 else ctypes.c_double) * len(values))(*values)


def run_kernel(kernel: Callable[..., int], operands: Sequence[Tensor | ctypes.Array | None], count: int) -> int:
    """Run a kernel over ``count`` numbers or rows; return 0, or a fault.  None is a null address."""
    torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
    addresses = [0] * max(8, len(operands))
    for n, x in enumerate(operands):
        if x is not None:
            addresses[n] = x.data_ptr() if isinstance(x, Tensor) else ctypes.addressof(x)
    return kernel(*addresses, count)


class KernelFunction(NamedTuple):
    """A function of a constant table and a tensor x, with a kernel per order of derivative.

    Kernel 0 computes the value at x, kernel 1 the gradient at (g, x) for a cotangent g, kernel 2 the gradients of
    kernel 1 at (c, g, x).  PyTorch differentiates the ``definition`` for higher orders.
    """

    definition: Callable[[Any, Tensor], Tensor]
    kernels: tuple[Callable[..., tuple[Tensor, ...]], ...]

    def evaluate_by_torch(self, table: Any, order: int, *point: Tensor) -> tuple[Tensor, ...]:
        """Compute the function (order 0) or a derivative by PyTorch operations."""
        if order == 0:
            return (self.definition(table, *point),)
        return self.pull_back_by_torch(table, order - 1, point[1:], point[:1])

    def pull_back_by_torch(
        self, table: Any, order: int, point: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Pull cotangents back through the function (order 0) or a derivative, by PyTorch."""
        pull = torch.func.vjp(partial(self.evaluate_by_torch, table, order), *point)[1]
        return pull(tuple(cotangents))


class _Derivative(torch.autograd.Function):
    """Autograd node of a `KernelFunction` or a derivative."""

    @staticmethod
    def forward(ctx: Any, function: KernelFunction, table: Any, order: int, *point: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*point)
        ctx.of = function, table, order
        return function.kernels[order](table, *point)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (function, table, order), point = ctx.of, ctx.saved_tensors
        next_order = order + 1
        if next_order >= len(function.kernels) or not are_plain(*cotangents):
            found = function.pull_back_by_torch(table, order, point, cotangents)
        elif torch.is_grad_enabled():
            found = _Derivative.apply(function, table, next_order, *cotangents, *point)
        else:
            found = function.kernels[next_order](table, *cotangents, *point)
        return None, None, None, *found


recorded_function = get_unchecked_apply(_Derivative)  # of a `KernelFunction`, its table, the order 0, and x
