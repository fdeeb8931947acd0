"""Parts of objects by class: an object is unchanged if all parts are."""

from __future__ import annotations

import gc
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from operator import attrgetter
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
)
from typing import Any
from weakref import ref

import numpy as np

PartsOf = Callable[[Any], tuple]

FUNCTION: PartsOf = attrgetter("__code__", "__defaults__", "__kwdefaults__")
LIST: PartsOf = tuple
_READING = ("__call__", "__getattr__", "__getattribute__")  # what attributes and calls of an object go through


def bases_of(kind: type) -> tuple:
    """Classes of the method resolution order."""
    return kind.__mro__


def names_of_class(kind: type) -> tuple[str, ...]:
    """Names of a class's own attributes, without most special ones."""
    return tuple(name for name in vars(kind) if not name.startswith("__") or name in _READING)


def class_table(kind: type) -> dict[str, Any]:
    """Dict behind the proxy of a class's attributes."""
    return gc.get_referents(vars(kind))[0]


def body_of(x: Any) -> tuple:
    """Class and attribute dict of an object."""
    return type(x), object.__getattribute__(x, "__dict__")


def attribute_names(x: Any) -> tuple[str, ...]:
    """Names of an object's own attributes."""
    return tuple(object.__getattribute__(x, "__dict__"))


def items_of(x: Mapping[Any, Any]) -> tuple:
    """Keys, then values, of a dict."""
    return (*x, *x.values())


def closure_cell_content(cell: CellType) -> tuple:
    """Content of a closure cell as a tuple, empty if unset."""
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing has been written into it yet
        return ()


def attributes_of(x: Any) -> tuple:
    """Names and values of an object's dict and slots, then the class."""
    held = getattr(x, "__dict__", {})
    slots = [name for name in slot_names(type(x)) if hasattr(x, name)]
    return (*held, *held.values(), *slots, *(getattr(x, name) for name in slots), type(x))


def slot_names(kind: type) -> list[str]:
    """Names of a class's slots."""
    names = (vars(of).get("__slots__", ()) for of in kind.__mro__)
    every = (name for of in names for name in ((of,) if isinstance(of, str) else of))
    return [name for name in every if name not in ("__dict__", "__weakref__") and not name.startswith("__")]


# what objects that can be changed are made of
CHANGED: dict[type, PartsOf] = {
    FunctionType: FUNCTION,
    CellType: closure_cell_content,
    dict: items_of,
    list: LIST,
    set: tuple,
    deque: tuple,
    bytearray: lambda x: (bytes(x),),
    array: lambda x: (x.tobytes(),),
    np.ndarray: lambda x: (x.shape, str(x.dtype), x.tobytes() if x.dtype != object else tuple(x.flat)),
    memoryview: lambda x: (x.tobytes(),),
    **dict.fromkeys((type({}.keys()), type({}.values()), type({}.items())), tuple),
    ContextVar: lambda x: (x.get(None),),
    ref: lambda x: (x(),),
}
# and those that cannot
KEPT: dict[type, PartsOf] = {
    tuple: lambda x: tuple(tuple.__iter__(x)),  # e3nn's irreps have no length
    frozenset: tuple,
    MethodType: attrgetter("__self__", "__func__"),
    BuiltinMethodType: lambda x: (x.__self__,),
    MethodWrapperType: lambda x: (x.__self__,),
    partial: attrgetter("func", "args", "keywords"),
    property: attrgetter("fget", "fset"),
    staticmethod: lambda x: (x.__func__,),
    classmethod: lambda x: (x.__func__,),
    MappingProxyType: items_of,
}


def parts_function_of(table: dict[type, PartsOf], x: Any) -> PartsOf | None:
    """Look up the parts function of an object's class or nearest base."""
    return next((table[kind] for kind in type(x).__mro__ if kind in table), None)
