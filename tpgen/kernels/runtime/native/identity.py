"""Names in dicts and parts of functions, each compared with the object that stood there, in one call of C++."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from tpgen.kernels.runtime.native.functions import native_function

_PARTS = {
    "PyFunction_GetCode": "__code__",
    "PyFunction_GetDefaults": "__defaults__",
    "PyFunction_GetKwDefaults": "__kwdefaults__",
}


def names_stand(tables: Sequence[dict], names: Sequence[str], values: Sequence[Any]) -> Callable[[], bool]:
    """A function that says whether each name of a dict stands for the same object; None stands for an absent name.

    >>> table = {"a": 1}
    >>> stand = names_stand([table, table], ["a", "b"], [1, None])
    >>> stand(), table.update(a=2), stand()
    (True, None, False)
    """
    return _compared("tpgen_names_stand", "pppppi", "PyDict_GetItemWithError", tables, names, values)


def functions_stand(functions: Sequence[FunctionType]) -> Callable[[], bool]:
    """A function that says whether functions have the code and the defaults that they have now.

    >>> def f(x=1):
    ...     return x
    >>> stand = functions_stand([f])
    >>> stand(), setattr(f, "__defaults__", (2,)), stand()
    (True, None, False)
    """
    each = [
        _compared("tpgen_parts_stand", "ppppi", part, functions, [getattr(f, name) for f in functions])
        for part, name in _PARTS.items()
    ]
    return lambda: all(stand() for stand in each)


def _compared(entry: str, arguments: str, python: str, *columns: Sequence[Any]) -> Callable[[], bool]:
    function = native_function("identity", entry, arguments, holds_gil=True)
    if function is None:
        return lambda: False  # nobody can say
    kept = [list(column) for column in columns]
    places = [(ctypes.c_void_p * len(column))(*map(id, column)) for column in kept]
    given = (ctypes.cast(getattr(ctypes.pythonapi, python), ctypes.c_void_p), id(None), *places, len(kept[0]))
    return lambda kept=kept: bool(function(*given))  # type: ignore[misc]
