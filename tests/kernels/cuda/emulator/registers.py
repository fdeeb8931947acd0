"""Registers of all threads of a block, as arrays: a place for what is read, and one for what is written, by type."""

from __future__ import annotations

import re
from typing import Protocol

import numpy as np

from tests.kernels.cuda.emulator.parse import Function

Lanes = slice | np.ndarray  # some threads: whole warps side by side, or any
_KINDS = {"b": np.uint32, "u": np.uint32, "s": np.int32, "f": np.float32}


def dtype_of(type_: str) -> np.dtype:
    """What a type of PTX is in numpy.

    >>> dtype_of("s64"), dtype_of("f32"), dtype_of("b16"), dtype_of("pred")
    (dtype('int64'), dtype('float32'), dtype('uint16'), dtype('bool'))
    """
    if type_ == "pred":
        return np.dtype(bool)
    kind = np.dtype(_KINDS[type_[0]]).kind
    return np.dtype(f"{kind}{int(type_[1:]) // 8}")


class Place(Protocol):
    """One number of each thread."""

    def __getitem__(self, lanes: Lanes) -> np.ndarray: ...
    def __setitem__(self, lanes: Lanes, values: np.ndarray) -> None: ...


class Converted:
    """A register that is wider or narrower than what an instruction takes from it: cut off, or filled up."""

    def __init__(self, register: np.ndarray, dtype: np.dtype) -> None:
        unsigned = np.dtype(f"u{register.itemsize}")
        self.register, self.dtype = register.view(unsigned), dtype
        self.filled = np.dtype(f"{dtype.kind if dtype.kind == 'i' else 'u'}{register.itemsize}")

    def __getitem__(self, lanes: Lanes) -> np.ndarray:
        found = self.register[lanes]
        return found.astype(f"u{self.dtype.itemsize}").view(self.dtype)

    def __setitem__(self, lanes: Lanes, values: np.ndarray) -> None:
        self.register[lanes] = values.astype(self.filled).view(self.register.dtype)


class Nowhere:
    """What is thrown away."""

    def __setitem__(self, lanes: Lanes, values: np.ndarray) -> None:
        pass

    def __getitem__(self, lanes: Lanes) -> np.ndarray:
        raise KeyError("_")


class Registers:
    """Those of one function, and constants as registers that nobody writes."""

    def __init__(self, function: Function, threads: int, known: dict[str, np.ndarray]) -> None:
        self.function, self.threads, self.known = function, threads, known
        self._rows = dict[str, np.ndarray]()
        self._names = re.compile("|".join(map(re.escape, sorted(function.registers, key=len, reverse=True))) or "$^")

    def place(self, operand: str, type_: str) -> Place:
        """An operand as numbers of a type."""
        if operand == "_":
            return Nowhere()
        dtype = dtype_of(type_)
        if operand in self.known:
            return self._seen(self.known[operand], dtype)
        if self._names.match(operand):
            return self._seen(self._row(operand), dtype)
        return self._constant(operand, dtype)

    def _row(self, name: str) -> np.ndarray:
        if name not in self._rows:
            self._rows[name] = np.zeros(self.threads, dtype_of(self.function.type_of(name)))
        return self._rows[name]

    def _seen(self, row: np.ndarray, dtype: np.dtype) -> Place:
        return row.view(dtype) if row.itemsize == dtype.itemsize else Converted(row, dtype)

    def _constant(self, text: str, dtype: np.dtype) -> np.ndarray:
        if text[:2] in ("0f", "0d"):
            bits = np.array([int(text[2:], 16)], "u4" if text[1] == "f" else "u8")
            return np.full(self.threads, bits.view(dtype)[0])
        value = int(text, 0)
        if dtype.kind == "b":
            return np.full(self.threads, bool(value))
        whole = np.array([value & (1 << 8 * dtype.itemsize) - 1], f"u{dtype.itemsize}")
        return np.full(self.threads, whole.view(dtype)[0])
