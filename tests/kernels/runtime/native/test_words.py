"""Words in memory that change when an object does."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tpgen.kernels.runtime.native.words import (
    MemoryWord,
    read_cell_pointer,
    read_class_pointer,
    read_dict_order_words,
    read_dict_pointer,
    read_function_pointers,
    read_list_words,
    read_mro_pointer,
    read_slot_words,
    version_address,
)


class Plain:
    pass


class Other:
    pass


class Slots:
    __slots__ = ("first", "last")


class Irreps(tuple):
    """A tuple with a dict of its own, behind its items."""


def function(x: float = 1.0, *, more: float = 1.0) -> float:
    return x + more


def bare() -> None:
    pass


def closed() -> tuple[Callable[[], float], Callable[[float], None]]:
    value = 1.0

    def get() -> float:
        return value

    def put(x: float) -> None:
        nonlocal value
        value = x

    return get, put


def stand(words: Sequence[MemoryWord | None]) -> bool:
    """Whether words are what they were; each has to be known."""
    assert all(words)
    return all(ctypes.c_size_t.from_address(word.address).value == word.value for word in words if word)


def of_class(*bases: type) -> Any:
    return type("Kind", bases or (Plain,), {})


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Sequence[MemoryWord | None]], Callable[[Any], object]]] = {
    "the class": (Plain, lambda x: [read_class_pointer(x)], lambda x: setattr(x, "__class__", Other)),
    "the class of a module": (nn.Tanh, lambda x: [read_class_pointer(x)], lambda x: setattr(x, "__class__", nn.ReLU)),
    "the dict": (Plain, lambda x: [read_dict_pointer(x)], lambda x: setattr(x, "__dict__", {})),
    "the dict of a module": (
        nn.Tanh,
        lambda x: [read_dict_pointer(x)],
        lambda x: setattr(x, "__dict__", dict(vars(x))),
    ),
    "the dict of a tuple": (
        lambda: Irreps((1, 2)),
        lambda x: [read_dict_pointer(x)],
        lambda x: setattr(x, "__dict__", {}),
    ),
    "the dict of a function": (
        lambda: closed()[0],
        lambda x: [read_dict_pointer(x)],
        lambda x: setattr(x, "__dict__", {"a": 1}),
    ),
    "bases": (lambda: of_class(Plain), lambda x: [read_mro_pointer(x)], lambda x: setattr(x, "__bases__", (Other,))),
    "bases of a base": (
        lambda: (lambda base: (base, of_class(base)))(of_class(Plain)),
        lambda x: [read_mro_pointer(x[1])],
        lambda x: setattr(x[0], "__bases__", (Other,)),
    ),
    "code": (
        lambda: function,
        read_function_pointers,
        lambda x: setattr(x, "__code__", (lambda x, *, more: 2).__code__),
    ),
    "defaults": (lambda: function, read_function_pointers, lambda x: setattr(x, "__defaults__", (2.0,))),
    "no defaults": (lambda: function, read_function_pointers, lambda x: setattr(x, "__defaults__", None)),
    "defaults where none were": (lambda: bare, read_function_pointers, lambda x: setattr(x, "__defaults__", (2.0,))),
    "defaults of keywords": (
        lambda: function,
        read_function_pointers,
        lambda x: setattr(x, "__kwdefaults__", {"more": 2.0}),
    ),
    "a cell": (closed, lambda x: read_cell_pointer(x[0].__closure__[0]), lambda x: x[1](2.0)),
    "an emptied cell": (
        lambda: closed()[0].__closure__[0],
        read_cell_pointer,
        lambda x: delattr(x, "cell_contents"),
    ),
    "an item": (lambda: [1.0, 2.0], read_list_words, lambda x: x.__setitem__(1, 3.0)),
    "an item more": (lambda: [1.0, 2.0], read_list_words, lambda x: x.append(3.0)),
    "an item less": (lambda: [1.0, 2.0], read_list_words, lambda x: x.pop()),
    "an item of an empty list": (list, read_list_words, lambda x: x.append(3.0)),
    "an order": (lambda: OrderedDict(a=1, b=2), read_dict_order_words, lambda x: x.move_to_end("a")),
    "an order, and back": (
        lambda: OrderedDict(a=1, b=2),
        read_dict_order_words,
        lambda x: (x.move_to_end("a"), x.move_to_end("b")),
    ),
    "a slot": (Slots, lambda x: read_slot_words(x, ()), lambda x: setattr(x, "first", 3.0)),
    "a last slot": (Slots, lambda x: read_slot_words(x, ()), lambda x: setattr(x, "last", 3.0)),
}


@pytest.fixture(autouse=True)
def unchanged() -> Any:
    before = function.__code__, function.__defaults__, function.__kwdefaults__
    yield
    function.__code__, function.__defaults__, function.__kwdefaults__ = before
    bare.__defaults__ = None


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_moves_a_word(change: str) -> None:
    make, of, changed = CHANGES[change]
    x = make()
    words = list(of(x))
    assert stand(words)
    assert stand(list(of(x)))
    changed(x)
    assert not stand(words)


def test_what_is_not_where_it_is_looked_for_has_no_word() -> None:
    class Pretending:
        __class__ = Other  # type: ignore[assignment]

    assert read_class_pointer(Pretending()) is not None, "its true class"
    assert read_slot_words(SimpleNamespace(), ()) is None, "of a class in C, whose words are unknown"


def test_each_change_of_a_dict_moves_its_number_where_it_has_one() -> None:
    table: dict[str, Any] = {"a": 1}
    address = version_address(table)
    for change in (
        lambda: table.update(a=2),
        lambda: table.update(b=2),
        lambda: table.pop("b"),
        lambda: table.clear(),
        lambda: table.setdefault("c", 3),
    ):
        if address is None:
            break
        before = ctypes.c_int64.from_address(address).value
        change()
        assert ctypes.c_int64.from_address(address).value != before
