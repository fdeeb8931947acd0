"""Registry of this process's caches."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import _lru_cache_wrapper, lru_cache
from typing import TypeVar

from tpgen.base.locks import ForkedLock
from tpgen.base.text import quantity, table

_T = TypeVar("_T")
K = TypeVar("K")
V = TypeVar("V")
_ENTRIES = 4096


@dataclass(frozen=True)
class RegisteredCache:
    """Registered cache: functions that count and clear its entries."""

    what: str
    count: Callable[[], int]
    most: int | None  # None: no number of entries limits it
    forget: Callable[[], object] | None  # None: it stays until the process ends
    unit: str = ""  # of what is counted; entries where it is empty


@dataclass(frozen=True)
class _CacheState:
    what: str
    count: int
    most: int | None
    stays: bool
    unit: str = ""

    def cells(self) -> tuple[str, str, str, str]:
        """Table cells: name, count, limit, whether clearable."""
        count = quantity(self.count, self.unit) if self.unit else str(self.count)
        return self.what, count, "-" if self.most is None else str(self.most), "no" if self.stays else "yes"


class _CacheStates(tuple[_CacheState, ...]):
    def clear(self) -> None:
        """Clear all clearable caches; kernels on disk and loaded libraries stay."""
        for cache in _all:
            if cache.forget is not None:
                cache.forget()

    def __repr__(self) -> str:
        heads = ("remembered", "now", "at most", "can be emptied")
        return table([heads, *(state.cells() for state in self)], left=[0])

    __str__ = __repr__


_all: list[RegisteredCache] = []


def register_cache(cache: RegisteredCache) -> None:
    """List a cache in `caches`."""
    _all.append(cache)


def remembered(what: str, entries: int = _ENTRIES) -> Callable[[Callable[..., _T]], _lru_cache_wrapper[_T]]:
    """Decorator that caches a function's last ``entries`` results (limited by TPGEN_CACHE_ENTRIES).

    >>> @remembered("squares", entries=2)
    ... def square(n: int) -> int:
    ...     return n * n
    >>> [square(n) for n in (1, 2, 3)], square.cache_info().currsize
    ([1, 4, 9], 2)
    >>> _ = _all.pop()
    """
    most = _limit_entries_by_user_setting(entries)

    def cache_and_register(function: Callable[..., _T]) -> _lru_cache_wrapper[_T]:
        made = lru_cache(most)(function)
        register_cache(RegisteredCache(what, lambda: made.cache_info().currsize, most, made.cache_clear))
        return made

    return cache_and_register


class Shelf(dict[K, V]):
    """Registered dict that drops its oldest entries.

    >>> shelf = Shelf("squares", entries=2)
    >>> for n in range(3):
    ...     shelf[str(n)] = n * n
    >>> shelf
    {'1': 1, '2': 4}
    >>> _ = _all.pop()
    """

    def __init__(self, what: str, entries: int = _ENTRIES) -> None:
        """Register an empty dict of at most ``entries`` entries under the name ``what``."""
        super().__init__()
        self._most, self._guard = _limit_entries_by_user_setting(entries), ForkedLock()
        register_cache(RegisteredCache(what, self.__len__, self._most, self.clear))

    def __setitem__(self, key: K, value: V) -> None:
        with self._guard.lock:
            super().__setitem__(key, value)
            while len(self) > self._most:
                self.pop(next(iter(self)))


def caches() -> _CacheStates:
    """List this process's caches.

    >>> print(caches())  # doctest: +ELLIPSIS
    remembered ...
    """
    return _CacheStates(_CacheState(c.what, c.count(), c.most, c.forget is None, c.unit) for c in _all)


def integer_setting(name: str, unit: str) -> int | None:
    """Whole number from an environment variable; None if unset or (with a warning) malformed.

    >>> integer_setting("TPGEN_NO_SUCH_SETTING", "MB") is None
    True
    """
    text = os.environ.get(name, "")
    if text and not (text.isascii() and text.isdecimal()):
        warnings.warn(
            f"{name} must be a whole number of {unit}, got {text!r}: doing as if it was not set", stacklevel=3
        )
        return None
    return int(text) if text else None


def _limit_entries_by_user_setting(entries: int) -> int:
    asked = integer_setting("TPGEN_CACHE_ENTRIES", "entries")
    return entries if asked is None else min(entries, max(asked, 1))
