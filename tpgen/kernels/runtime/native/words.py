"""Memory words that change when a Python object changes."""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import cache
from types import CellType, FunctionType
from typing import Any, NamedTuple

_SIZE = ctypes.sizeof(ctypes.c_void_p)
_BEFORE = 3 * _SIZE  # what stands before an object: of the collector, and where its dict may be
_OF_PYTHON = 1 << 9  # the flag of a class that code in Python has made
_FUNCTION = ("__code__", "__defaults__", "__kwdefaults__")


class MemoryWord(NamedTuple):
    """A word of memory: address, value when read, and objects kept alive."""

    address: int
    value: int
    kept: Any = None


def read_class_pointer(x: Any) -> MemoryWord | None:
    return _read_pointer_at_offset(x, _offset_of_class_pointer(), type(x))


def read_dict_pointer(x: Any) -> MemoryWord | None:
    """Pointer from an object to the ``__dict__``."""
    held = object.__getattribute__(x, "__dict__")
    if _read_word(id(x) - _BEFORE) == id(held):  # where classes of Python's have it from 3.11 on
        return MemoryWord(id(x) - _BEFORE, id(held), held)
    found = [at for at in range(id(x) - _BEFORE, id(x) + object.__sizeof__(x), _SIZE) if _read_word(at) == id(held)]
    return MemoryWord(found[0], id(held), held) if len(found) == 1 else None


def read_mro_pointer(kind: type) -> MemoryWord | None:
    return _read_pointer_at_offset(kind, _offset_of_mro_pointer(), kind.__mro__)


def read_function_pointers(function: FunctionType) -> list[MemoryWord] | None:
    """Pointers from a function to code and defaults."""
    found = [
        _read_pointer_at_offset(function, at, getattr(function, name))
        for name, at in zip(_FUNCTION, _find_offsets_of_function_fields(), strict=True)
    ]
    return _all_or_none(found)


def read_cell_pointer(cell: CellType) -> list[MemoryWord] | None:
    """Pointer from a closure's cell to the content."""
    try:
        content = cell.cell_contents
    except ValueError:  # nothing has been written into it yet
        content = None
    return _all_or_none([_read_pointer_at_offset(cell, _offset_of_cell_content(), content)])


def read_list_words(x: list[Any]) -> list[MemoryWord] | None:
    """Words of a list's length and items; read an item only while earlier words are unchanged."""
    if not _is_list_layout_known():
        return None
    size, items = (MemoryWord(at, _read_word(at)) for at in _list_head_addresses(x))
    return [size, items, *(MemoryWord(items.value + n * _SIZE, id(item), item) for n, item in enumerate(x))]


def read_dict_order_words(x: OrderedDict[Any, Any]) -> list[MemoryWord] | None:
    """Words of an ordered dict that change with the order."""
    return (
        [MemoryWord(at, _read_word(at)) for at in _addresses_of_order_fields(x)]
        if _is_dict_order_layout_known()
        else None
    )


def read_slot_words(x: Any, values: Sequence[Any]) -> list[MemoryWord] | None:
    """Words of all ``__slots__`` of an object of Python classes; keeps ``values`` alive."""
    begin, kept = _offset_of_class_pointer(), (type(x), *values)
    if begin is None or not all(kind.__flags__ & _OF_PYTHON for kind in type(x).__mro__[:-1]):
        return None
    return [MemoryWord(at, _read_word(at), kept) for at in range(id(x) + begin, id(x) + type(x).__basicsize__, _SIZE)]


def version_address(table: dict[Any, Any]) -> int | None:
    """Address of a dict's version number, or None from Python 3.12 on."""
    return id(table) + _offset_of_dict_version() if _is_dict_version_layout_known() else None


def read_inline_value_words(table: dict[Any, Any], values: Iterable[Any]) -> list[MemoryWord] | None:
    """Words of an object's attribute values outside the dict, from Python 3.13 on.

    Empty for a dict with its own values; None for an unknown layout.
    """
    if not _can_objects_hold_values_inline():
        return []
    return _find_inline_value_words(table, values) if _is_inline_value_layout_known() else None


def _find_inline_value_words(table: dict[Any, Any], values: Iterable[Any]) -> list[MemoryWord]:
    # the place of the values, their number, and the words that point to wanted values
    place = MemoryWord(id(table) + 5 * _SIZE, _read_word(id(table) + 5 * _SIZE))
    if not place.value:
        return []
    wanted = {id(x): x for x in values}
    most = ctypes.c_uint8.from_address(place.value).value
    words = [MemoryWord(at, _read_word(at)) for at in range(place.value, place.value + (1 + most) * _SIZE, _SIZE)]
    return [place, words[0], *(word._replace(kept=wanted[word.value]) for word in words[1:] if word.value in wanted)]


def _read_word(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


def _read_pointer_at_offset(x: Any, offset: int | None, target: Any) -> MemoryWord | None:
    # None may be a null pointer
    if offset is None:
        return None
    found = _read_word(id(x) + offset)
    return MemoryWord(id(x) + offset, found, target) if found == id(target) or (target is None and not found) else None


def _all_or_none(words: Sequence[MemoryWord | None]) -> list[MemoryWord] | None:
    found = [word for word in words if word is not None]
    return found if len(found) == len(words) else None


# -- where an object has what ------------------------------------------------------------------------------------------


def _offset_of_pointer_to(x: Any, part: Any) -> int | None:
    found = [at for at in range(0, type(x).__basicsize__, _SIZE) if _read_word(id(x) + at) == id(part)]
    return found[0] if len(found) == 1 else None


@cache
def _offset_of_class_pointer() -> int | None:
    return _offset_of_pointer_to(object(), object)


@cache
def _offset_of_mro_pointer() -> int | None:
    kind = type("probe", (), {})
    return _offset_of_pointer_to(kind, kind.__mro__)


@cache
def _find_offsets_of_function_fields() -> tuple[int | None, ...]:
    def probe(_x: Any = object(), *, _y: Any = None) -> None:  # noqa: B008
        """Have each part that a function may have."""

    return tuple(_offset_of_pointer_to(probe, getattr(probe, name)) for name in _FUNCTION)


@cache
def _offset_of_cell_content() -> int | None:
    content = object()
    return _offset_of_pointer_to(CellType(content), content)


def _list_head_addresses(x: list[Any]) -> tuple[int, int]:
    return id(x) + 2 * _SIZE, id(x) + 3 * _SIZE


@cache
def _is_list_layout_known() -> bool:
    for probe in ([object()] * 3, [object()] * 7):
        size, items = _list_head_addresses(probe)
        if _read_word(size) != len(probe) or any(
            _read_word(_read_word(items) + n * _SIZE) != id(x) for n, x in enumerate(probe)
        ):
            return False
    return True


def _can_objects_hold_values_inline() -> bool:
    return sys.version_info >= (3, 13)


@cache
def _is_inline_value_layout_known() -> bool:
    class Probe:
        def __init__(self) -> None:
            self.first, self.last = object(), object()

    probes = [Probe() for _ in range(8)]
    for x in probes:
        values = [x.first, x.last]
        words = _find_inline_value_words(vars(x), values)
        if [word.value for word in words[2:]] != list(map(id, values)):
            return False
        x.last = x.first
        if _read_word(words[3].address) != id(x.first):
            return False
        del x.last
        if _read_word(words[1].address) == words[1].value:
            return False
    return True


def _addresses_of_order_fields(x: OrderedDict[Any, Any]) -> range:
    return range(id(x) + dict.__basicsize__, id(x) + OrderedDict.__basicsize__, _SIZE)


@cache
def _is_dict_order_layout_known() -> bool:
    table, seen = OrderedDict(a=1, b=2), set()
    for n in range(4):  # there and back, which is no order that was before
        seen.add(tuple(map(_read_word, _addresses_of_order_fields(table))))
        table.move_to_end("ab"[n % 2])
    return len(seen) == 4


def _offset_of_dict_version() -> int:
    return 3 * _SIZE


@cache
def _is_dict_version_layout_known() -> bool:
    if sys.version_info >= (3, 12):  # other ways to write pass the number by
        return False
    table: dict[str, Any] = {"a": 1}
    seen = []
    for change in (lambda: None, lambda: table.update(b=2), lambda: table.update(b=3), lambda: table.pop("b")):
        change()
        seen.append(_read_word(id(table) + _offset_of_dict_version()))
    return seen == sorted(set(seen)) and _read_word(id(table) + _offset_of_dict_version()) == seen[-1]
