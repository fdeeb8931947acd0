"""Names of dicts and words, compared in one call: with what Python says of changes, and without."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest

from tests.machine import needs_compiler
from tpgen.kernels.runtime.native import identity
from tpgen.kernels.runtime.native.identity import (
    ABSENT,
    WatchedNames,
    group_names_by_dict,
    make_identity_test,
    read_watched_names,
)
from tpgen.kernels.runtime.native.words import MemoryWord, read_list_words

pytestmark = needs_compiler


@pytest.fixture(params=["where dicts change", "all names"], autouse=True)
def compared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare names of dicts that Python says have changed, or all of them, where it says nothing."""
    if request.param == "all names":
        monkeypatch.setattr(identity, "version_address", lambda _: None)
        monkeypatch.setattr(identity, "_register_dict_watcher", lambda: -1)


def again(table: dict[str, Any], name: str) -> None:
    table[name] = table.pop(name)


# whether two of its names stand, and all of it
CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], bool, bool]] = {
    "nothing": (lambda table: None, True, True),
    "another name": (lambda table: table.update(z=1), True, False),
    "a value": (lambda table: table.update(a=2.5), False, False),
    "the same value": (lambda table: table.update(a=table["a"]), True, True),
    "a value there and back": (lambda table: table.update(a=2.5) or table.update(a=ONE), True, True),
    "a name less": (lambda table: table.pop("a"), False, False),
    "a name that goes and comes": (lambda table: again(table, "a"), True, False),
    "an absent name": (lambda table: table.update(b=1), False, False),
    "an absent name, None": (lambda table: table.update(b=None), False, False),
    "no name": (lambda table: table.clear(), False, False),
    "many names": (lambda table: table.update(dict.fromkeys("stuvwxyz")), True, False),
}
ONE = float("1.25")


@pytest.mark.parametrize("change", CHANGES)
def test_names_of_a_dict(change: str) -> None:
    table = {"a": ONE, "c": "text"}
    some = make_identity_test((), read_watched_names(group_names_by_dict([(table, "a"), (table, "b")])))
    every = make_identity_test((), [WatchedNames(table, list(table), list(table.values()), whole=True)])
    assert some is not None
    assert every is not None
    assert some() is True
    assert every() is True
    changed, names_stand, whole_stands = CHANGES[change]
    changed(table)
    for _ in range(2):  # what has been compared is not forgotten
        assert some() is names_stand
        assert every() is whole_stands


def test_names_of_many_dicts_and_words() -> None:
    tables = [{str(n): n for n in range(m)} for m in range(5)]
    items = [1.0, 2.0]
    words = read_list_words(items)
    assert words is not None
    names = [
        *read_watched_names(group_names_by_dict((table, name) for table in tables for name in ("0", "3"))),
        WatchedNames({}, [], [], True),
    ]
    stands = make_identity_test(words, names)
    assert stands is not None
    for table in tables:
        for name in ("0", "3"):
            held = table.pop(name, ABSENT)
            table[name] = -1
            assert not stands()
            del table[name]
            assert stands() is (held is ABSENT)
            if held is not ABSENT:
                table[name] = held  # type: ignore[assignment]
            assert stands()
    items[1] = 3.0
    assert not stands()


class Plain:
    scale = 0.0

    def __init__(self) -> None:
        self.scale = 1.0


def put(x: Any, value: float) -> None:
    x.scale = value


def put_global(value: float) -> None:
    global ONE
    ONE = value


@pytest.mark.parametrize("kind", ["an object", "a class", "a file"])
def test_writes_of_code_that_python_has_made_faster(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "scale", 0.0)
    monkeypatch.setitem(globals(), "ONE", ONE)
    for _ in range(100):  # before a dict is there, too
        put(Plain(), 2.0)
        put_global(1.25)
    x: Any = {"an object": Plain(), "a class": Plain}.get(kind)
    table = {"an object": lambda: vars(x), "a class": lambda: gc.get_referents(vars(x))[0], "a file": globals}[kind]()
    name = "ONE" if kind == "a file" else "scale"
    for n in range(200):
        stands = make_identity_test((), read_watched_names(group_names_by_dict([(table, name)])))
        assert stands is not None
        assert stands()
        value = float(f"{n}.5")
        if kind == "a file":
            put_global(value)
        else:
            put(x, value)
        assert not stands(), n


def test_attributes_that_come_and_go() -> None:
    x: Any = Plain()
    x.beside, x.again = 2.0, 3.0
    stands = make_identity_test((), [WatchedNames(vars(x), list(vars(x)), list(vars(x).values()), whole=True)])
    some = make_identity_test((), read_watched_names(group_names_by_dict([(vars(x), "scale"), (vars(x), "later")])))
    assert stands is not None
    assert some is not None
    assert stands()
    del x.again
    assert not stands()
    x.again = 3.0
    assert stands()
    x.later = None
    assert not stands()
    assert not some()
    del x.later, x.scale
    assert not some()
    x.scale = 1.0
    assert some()


def test_what_is_watched_is_kept_as_long_as_the_function() -> None:
    class Kept:
        pass

    x = Kept()
    table, seen = {"a": x}, ref(x)
    stands = make_identity_test([MemoryWord(id(x), 0, x)], [WatchedNames(table, ["a"], [x])])
    del x
    table.clear()
    gc.collect()
    assert seen() is not None
    del stands
    gc.collect()
    assert seen() is None


def test_nothing_is_said_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_make_identity_test_method", lambda: None)
    assert make_identity_test((), ()) is None
