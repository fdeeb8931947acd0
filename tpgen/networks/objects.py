"""Objects, such as `torch_geometric.data.Data`, as pytrees."""

from __future__ import annotations

import weakref
from argparse import Namespace
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from tpgen.base._torch import pytree
from tpgen.networks.parts import slot_names

_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: of classes that are written in Python
_OF_PYTHON = SimpleNamespace, Namespace


class ObjectParts:
    """Pytree node of an object: class and ``__dict__``."""

    __slots__ = ("kind", "values")

    def __init__(self, kind: type, values: dict[str, Any]) -> None:
        self.kind: Any = kind
        self.values = values


pytree.register_pytree_node(
    ObjectParts,
    lambda x: (list(x.values.values()), (x.kind, tuple(x.values))),
    lambda values, context: ObjectParts(context[0], dict(zip(context[1], values, strict=True))),
    flatten_with_keys_fn=lambda x: (
        [(pytree.GetAttrKey(name), value) for name, value in x.values.items()],
        (x.kind, tuple(x.values)),
    ),
)


@dataclass(frozen=True)
class EnclosingObject:
    """Placeholder of a weak reference to the object ``levels`` further out."""

    levels: int


def has_attributes(x: Any) -> bool:
    """Whether class and ``__dict__`` determine an object.

    >>> has_attributes(SimpleNamespace(x=1)), has_attributes(nn.ReLU()), has_attributes([1])
    (True, False, False)
    """
    kind: Any = type(x)
    return _is_class_of_plain_attributes(kind)


@lru_cache(256)
def _is_class_of_plain_attributes(kind: type) -> bool:
    if issubclass(kind, (Tensor, nn.Module, type, BaseException)) or kind.__module__.partition(".")[0] == "torch":
        return False
    if kind in _OF_PYTHON:
        return True
    of_python = all(base.__flags__ & _HEAP for base in kind.__mro__[:-1])
    makes = getattr(kind, "__new__", None)
    return of_python and makes is object.__new__ and kind.__dictoffset__ != 0 and not slot_names(kind)


def enclosing_object(reference: Any, around: tuple[Any, ...]) -> EnclosingObject | None:
    """Placeholder for a weak reference to an object ``around``, innermost last; else None."""
    found = reference() if type(reference) is weakref.ref else None
    return next((EnclosingObject(n) for n, x in enumerate(reversed(around)) if x is found), None)


def split_objects(x: Any, around: tuple[Any, ...] = ()) -> Any:
    """Replace objects in nested dicts, lists and tuples by `ObjectParts`."""
    if type(x) is dict:
        return {name: split_objects(value, around) for name, value in x.items()}
    if type(x) in (list, tuple):
        return type(x)(split_objects(value, around) for value in x)
    if has_attributes(x) and not any(x is each for each in around):
        return ObjectParts(type(x), {name: split_objects(value, (*around, x)) for name, value in vars(x).items()})
    return enclosing_object(x, around) or x


def rebuild_objects(x: Any, around: tuple[Any, ...] = ()) -> Any:
    """Undo `split_objects`."""
    if type(x) is ObjectParts:
        made: Any = x.kind.__new__(x.kind)
        vars(made).update({name: rebuild_objects(value, (*around, made)) for name, value in x.values.items()})
        return made
    if type(x) is EnclosingObject:
        return weakref.ref(around[-1 - x.levels])
    if type(x) is dict:
        return {name: rebuild_objects(value, around) for name, value in x.items()}
    if type(x) in (list, tuple):
        return type(x)(rebuild_objects(value, around) for value in x)
    return x


def nested_dicts(x: Any) -> list[dict[Any, Any]]:
    """Distinct dicts inside a value, and dicts of objects."""
    return [names for _, names in objects_with_dicts((x,), {})]


def objects_with_dicts(args: tuple, options: dict[str, Any]) -> list[tuple[Any, dict[Any, Any]]]:
    """Distinct dicts and objects inside arguments, each with its dict."""
    found: dict[int, tuple[Any, dict]] = {}
    pending: list[Any] = [*args, *options.values()]
    while pending:
        x = pending.pop(0)
        if id(x) in found or isinstance(x, Tensor):
            continue
        if isinstance(x, dict) or has_attributes(x):
            found[id(x)] = x, x if isinstance(x, dict) else vars(x)
            pending += found[id(x)][1].values()
        elif isinstance(x, (list, tuple)):
            pending += x
    return list(found.values())
