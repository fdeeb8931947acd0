"""A class swap as a value: a module keeps its tensors, names, hooks and place, and only its class becomes another.

The new class is a subclass of the old one whose ``forward`` calls tpgen.  What that needs besides stands in attributes
of the module, and a mark says what to take away again.  So parameters stay the same objects, a state_dict keeps its
keys, and undoing a swap leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

MARK = "_tpgen_swap"


@dataclass(frozen=True)
class Kept:
    """A module that stays as it is, and why."""

    module: nn.Module
    why: str


@dataclass(frozen=True)
class Swap:
    """A module, the class it gets, and what that class needs.

    Parameters
    ----------
    module
        stays the same object.
    cls
        a class that takes over all that the module holds, as a rule a subclass of its class; or that class itself where
        attributes alone make the difference.
    now
        what computes afterwards, for the report; empty where that is said of another module.
    extra
        attributes to add: none that is there already.  A module among them must bring no key into the state_dict.
    exact
        brings the constants of the module, while it is stock and in float64, to full precision: one built in float32
        holds rounded ones, and a proof must not take that for an error of the swap.
    covers
        names of children that the new class does not call any more: they stay as they are.
    """

    module: nn.Module
    cls: type[nn.Module]
    now: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    exact: Callable[[], None] | None = None
    covers: tuple[str, ...] = ()

    @property
    def was(self) -> str:
        return qualified(type(self.module))


@dataclass(frozen=True)
class Mark:
    """What a swapped module remembers: the class it had, what came, what computes now and what no longer does."""

    cls: type[nn.Module]
    extra: tuple[str, ...]
    now: str
    covers: tuple[str, ...]


Finding = Swap | Kept


def apply_all(swaps: Iterable[Swap]) -> None:
    """Swap every module, or none where one of them cannot be."""
    done: list[nn.Module] = []
    try:
        for swap in swaps:
            _apply(swap)
            done.append(swap.module)
    except BaseException:
        for module in reversed(done):
            undo(module)
        raise


def _apply(swap: Swap) -> None:
    module = swap.module
    there = [name for name in (*swap.extra, MARK) if hasattr(module, name)]
    if there:
        raise AttributeError(f"{swap.was} has attributes {', '.join(there)} already, which a swap would hide")
    mark = Mark(type(module), tuple(swap.extra), swap.now, swap.covers)
    module.__class__ = swap.cls  # the one step that Python may refuse, so it comes first
    setattr(module, MARK, mark)
    for name, value in swap.extra.items():
        setattr(module, name, value)


def mark_of(module: nn.Module) -> Mark | None:
    """What a swapped module remembers; None for any other."""
    return module.__dict__.get(MARK)


def undo(module: nn.Module) -> None:
    """Give a swapped module its class back."""
    mark = mark_of(module)
    if mark is not None:
        for name in (*mark.extra, MARK):
            delattr(module, name)
        module.__class__ = mark.cls


def qualified(cls: type) -> str:
    """The name of a class with the package it comes from.

    >>> qualified(nn.Linear)
    'torch.Linear'
    """
    return f"{cls.__module__.partition('.')[0]}.{cls.__name__}"
