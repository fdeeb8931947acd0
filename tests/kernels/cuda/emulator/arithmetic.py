"""Instructions that compute with registers alone, as functions of arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Numbers = np.ndarray


def bits_of(dtype: np.dtype) -> int:
    return 8 * dtype.itemsize


def _divided(x: Numbers, y: Numbers) -> Numbers:
    return x / y if x.dtype.kind == "f" else ((x - np.fmod(x, y)) // y).astype(x.dtype)


def _shifted_left(x: Numbers, by: Numbers) -> Numbers:
    most = bits_of(x.dtype)
    return np.where(by < most, x << np.minimum(by, most - 1).astype(x.dtype), 0).astype(x.dtype)


def _shifted_right(x: Numbers, by: Numbers) -> Numbers:
    most = bits_of(x.dtype)
    kept = x >> np.minimum(by, most - 1).astype(x.dtype)
    return kept if x.dtype.kind == "i" else np.where(by < most, kept, 0).astype(x.dtype)


def high(x: Numbers, y: Numbers) -> Numbers:
    """The upper half of products."""
    assert x.itemsize == 4
    wide = np.int64 if x.dtype.kind == "i" else np.uint64
    return (x.astype(wide) * y.astype(wide) >> wide(32)).astype(x.dtype)


def wide(x: Numbers, y: Numbers) -> Numbers:
    """Products in twice as many bits."""
    to = f"{x.dtype.kind}{2 * x.itemsize}"
    return x.astype(to) * y.astype(to)


def fused(x: Numbers, y: Numbers, z: Numbers) -> Numbers:
    """A product and a sum that are rounded once, in float32; in float64 twice."""
    return x * y + z if x.itemsize == 8 else (x.astype(np.float64) * y + z).astype(np.float32)


BINARY: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "rem": np.fmod,
    "div": _divided,
    "shl": _shifted_left,
    "shr": _shifted_right,
    "mul": np.multiply,
}
UNARY: dict[str, Callable[[Numbers], Numbers]] = {"neg": np.negative, "abs": np.abs, "not": np.invert}
COMPARISONS: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "nan": lambda x, y: np.isnan(x) | np.isnan(y),
}


def compared(how: str) -> Callable[[Numbers, Numbers], Numbers]:
    """A comparison by its name; with a u at its end it is true of what is no number, too."""
    if how in COMPARISONS:
        return COMPARISONS[how]
    ordered = COMPARISONS[how[:-1]]
    return lambda x, y: ordered(x, y) | COMPARISONS["nan"](x, y)


def inserted(x: Numbers, into: Numbers, at: int, count: int) -> Numbers:
    """Some bits put into others."""
    of = into.dtype.type
    mask = of(((1 << count) - 1) << at)
    return (into & ~mask) | (x << of(at) & mask)


def extracted(x: Numbers, at: int, count: int) -> Numbers:
    """Some bits of others, the highest of which says the sign of signed ones."""
    left = bits_of(x.dtype) - at - count
    return x << x.dtype.type(left) >> x.dtype.type(left + at)


def permuted(x: Numbers, y: Numbers, choice: Numbers) -> Numbers:
    """Bytes of two numbers, chosen by three bits each."""
    both = np.stack([x, y], 1).view(np.uint8)
    picked = choice[:, None] >> (4 * np.arange(4, dtype=np.uint32)) & 7
    return np.take_along_axis(both, picked.astype(np.int64), 1).view(np.uint32)[:, 0]


def multiplied_in_parts(x: Numbers, y: Numbers, z: Numbers, upper: bool) -> Numbers:
    """Two halves of a number times two bytes of another, added to a third."""
    first = 16 if upper else 0
    low, high_ = ((y >> np.uint32(first + 8 * k)) & np.uint32(255) for k in (0, 1))
    return (x & np.uint32(0xFFFF)) * low + (x >> np.uint32(16)) * high_ + z
