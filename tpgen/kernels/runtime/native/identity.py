"""Whether Python objects kept their parts, in one C++ call."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from functools import cache
from itertools import accumulate, chain, repeat
from typing import Any, NamedTuple

from tpgen.kernels.runtime.native.source import compile_header_function
from tpgen.kernels.runtime.native.words import MemoryWord, read_inline_value_words, version_address

_FUNCTIONS = ("PyDict_GetItemWithError", "PyDict_Next", "PyLong_AsVoidPtr", "PyBool_FromLong")
_WITHOUT_ARGUMENTS = 4  # METH_NOARGS


class Absent(Enum):
    """Type of the marker of a key that a dict lacks."""

    ABSENT = 0


ABSENT = Absent.ABSENT


class WatchedNames(NamedTuple):
    """Keys of a dict and values expected there; ``whole``: no other keys, same order."""

    table: dict[Any, Any]
    names: Sequence[Any]
    values: Sequence[Any]
    whole: bool = False


def can_test_identity() -> bool:
    return _make_identity_test_method() is not None


def group_names_by_dict(pairs: Iterable[tuple[dict[Any, Any], Any]]) -> list[tuple[dict[Any, Any], list[Any]]]:
    """Group (dict, key) pairs by dict."""
    found: dict[int, tuple[dict[Any, Any], list[Any]]] = {}
    for table, name in pairs:
        found.setdefault(id(table), (table, []))[1].append(name)
    return list(found.values())


def read_watched_names(tables: Iterable[tuple[dict[Any, Any], list[Any]]]) -> list[WatchedNames]:
    return [WatchedNames(table, names, list(map(table.get, names, repeat(ABSENT)))) for table, names in tables]


def make_identity_test(words: Sequence[MemoryWord], tables: Sequence[WatchedNames]) -> Callable[[], bool] | None:
    """Return a function that tells whether words and dicts hold the same objects; None without a compiler.

    The function may return False after a change of order, or of equal names.

    >>> table = {"a": 1}
    >>> stands = make_identity_test([], [WatchedNames(table, ["a", "b"], [1, ABSENT])])
    >>> stands(), table.update(a=2), stands(), table.update(a=1), stands()
    (True, None, False, None, True)
    """
    method = _make_identity_test_method()
    if method is None:
        return None
    dicts, told = [of.table for of in tables], False
    shared = [read_inline_value_words(of.table, of.values) for of in tables]
    if None not in shared:
        told, words = _watch_dicts(dicts), [*words, *chain.from_iterable(filter(None, shared))]
    objects = [[*of.names, *of.values] for of in tables]
    columns: dict[str, list[Any]] = {
        "places": [word.address for word in words],
        "values": [word.value for word in words],
        "dicts": list(map(id, dicts)),
        "versions": [version_address(table) for table in dicts],
        "seen": [-1] * len(dicts),
        "ends": list(accumulate(len(of.names) for of in tables)),
        "whole": [of.whole for of in tables],
        "names": list(map(id, chain.from_iterable(of.names for of in tables))),
        "objects": [0 if x is ABSENT else id(x) for of in tables for x in of.values],
    }
    arrays = {name: (ctypes.c_int64 * len(of))(*of) for name, of in columns.items() if None not in of}
    addresses = {name: ctypes.addressof(array) for name, array in arrays.items()}
    watched = _WatchedStruct(count=len(words), tables=len(tables), told=told, last=-1, **addresses)
    return _NEW(ctypes.addressof(method), ctypes.addressof(watched), (watched, arrays, words, dicts, objects))


class _WatchedStruct(ctypes.Structure):
    """ctypes mirror of the header's ``struct Watched``."""

    _fields_ = (
        *(("count", ctypes.c_int64), ("places", ctypes.c_void_p), ("values", ctypes.c_void_p)),
        *(("tables", ctypes.c_int64), ("dicts", ctypes.c_void_p), ("versions", ctypes.c_void_p)),
        *((name, ctypes.c_void_p) for name in ("seen", "ends", "whole", "names", "objects")),
        *(("told", ctypes.c_int64), ("last", ctypes.c_int64)),
    )


class _PyMethodDef(ctypes.Structure):
    """ctypes mirror of Python's ``PyMethodDef``."""

    _fields_ = (
        *(("name", ctypes.c_char_p), ("function", ctypes.c_void_p)),
        *(("flags", ctypes.c_int), ("text", ctypes.c_char_p)),
    )


_NEW = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


@cache
def _make_identity_test_method() -> _PyMethodDef | None:
    stands, use = (
        compile_header_function("identity", "tpgen_stands", "pp"),
        compile_header_function("identity", "tpgen_use_python", "pppp"),
    )
    if stands is None or use is None:
        return None
    use(*map(_function_address, (getattr(ctypes.pythonapi, name) for name in _FUNCTIONS)))
    return _PyMethodDef(b"stands", _function_address(stands), _WITHOUT_ARGUMENTS, None)


def _function_address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _watch_dicts(dicts: Iterable[dict[Any, Any]]) -> bool:
    # Python 3.12 and later tell of changes of a dict
    watcher = _register_dict_watcher()
    watch = ctypes.pythonapi.PyDict_Watch if watcher >= 0 else None
    return watch is not None and all(watch(watcher, ctypes.py_object(table)) == 0 for table in dicts)


@cache
def _register_dict_watcher() -> int:
    # -1 where Python gives no watcher
    if sys.version_info < (3, 12):
        return -1
    told = compile_header_function("identity", "tpgen_dict_changes", "ippp")
    with suppress(RuntimeError):  # all eight are taken
        return ctypes.pythonapi.PyDict_AddWatcher(ctypes.c_void_p(_function_address(told)))
    return -1
