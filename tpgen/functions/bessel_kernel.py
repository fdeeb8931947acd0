r"""Bessel functions of lengths times a polynomial cutoff, and their slope, in one pass each: `bessel.h`.

.. math:: f_n(r) = a\, \frac{\sin(w_n r)}{r}\, u(r / c), \quad
    u(x) = 1 - \tfrac{(p + 1)(p + 2)}{2} x^p + p (p + 2) x^{p + 1} - \tfrac{p (p + 1)}{2} x^{p + 2}

torch takes some thirty operations for it, and twenty for its gradient, each with a tensor of its own.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tpgen.functions.numbers import kernel_of
from tpgen.kernels.runtime.memory import empty
from tpgen.remember import remembered

_NUMBERS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


@dataclass(frozen=True)
class CutBessel:
    """The constants of such functions.

    Parameters
    ----------
    prefactor, cutoff, power
        a, c and p; p is at least 1.
    ends
        whether all is zero from the cutoff on; else the polynomial goes on.
    limit
        whether functions have their limit at length 0; else they are NaN there, as 0 / 0 is.
    """

    prefactor: float
    cutoff: float
    power: int
    ends: bool = True
    limit: bool = False


def bessel_values(r: Tensor, w: Tensor, shape: CutBessel) -> tuple[Tensor, Tensor]:
    """The functions ``(lengths, frequencies)``, and the cutoff alone, in the shape of ``r``.

    ``r`` is lengths, ``w`` frequencies, of one dtype, float32 or float64, on the CPU.
    """
    r, w = r.contiguous(), w.contiguous()
    rows, alone = empty((r.numel(), w.numel()), r.dtype), torch.empty(r.shape, dtype=r.dtype)
    _call(r, w, shape, 0, 0, rows.data_ptr(), alone.data_ptr(), 0)
    return rows, alone


def bessel_slope(r: Tensor, w: Tensor, shape: CutBessel, g: Tensor | None, h: Tensor | None) -> Tensor:
    """The gradient by ``r``, in its shape, for cotangents of the functions and of the cutoff alone, or one of them."""
    r, w, found = r.contiguous(), w.contiguous(), torch.empty(r.shape, dtype=r.dtype)
    given = [None if x is None else x.contiguous() for x in (g, h)]
    _call(r, w, shape, *(0 if x is None else x.data_ptr() for x in given), 0, 0, found.data_ptr())
    return found


def _call(r: Tensor, w: Tensor, shape: CutBessel, *others: int) -> None:
    torch.get_num_threads()  # a Python thread learns torch's setting when it first asks
    constants = ctypes.addressof(_constants(shape, w.numel(), r.dtype))
    kernel_of("bessel", r.dtype)(r.data_ptr(), w.data_ptr(), constants, *others, r.numel())


@remembered("constants of Bessel functions", entries=64)
def _constants(shape: CutBessel, functions: int, dtype: torch.dtype) -> ctypes.Array:
    """`Shape` in C++."""
    end = shape.cutoff if shape.ends else math.inf
    least = torch.finfo(dtype).tiny ** 0.5 if shape.limit else 0.0  # whose square is a number too
    numbers = (shape.prefactor, shape.cutoff, shape.power, end, least, functions)
    return (_NUMBERS[dtype] * len(numbers))(*numbers)
