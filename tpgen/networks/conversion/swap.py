"""A class swap as a value: a module keeps its tensors, names, hooks and place, and only its class becomes another.

The new class is a subclass of the old one whose ``forward`` calls tpgen.  What that needs besides stands in attributes
of the module, and a mark says what to take away again.  So parameters stay the same objects, a state_dict keeps its
keys, and undoing a swap leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tpgen.base.errors import TpgenError
from tpgen.emitter.leaf import keep_whole, look_inside
from tpgen.networks.conversion.packages import check_give_back, give_back, home
from tpgen.nn.planned import PlannedModule, follow

MARK = "_tpgen_swap"
# what computes: a text, or how to say it of a module and what a swap adds to it
_Told = str | Callable[[nn.Module, Mapping[str, Any]], str]


@dataclass(frozen=True)
class Kept:
    """A module that stays as it is, and why.

    ``asked`` says that the caller of `convert` wanted that, ``general`` that something is said of a whole project: no
    choice of modules takes that away.
    """

    module: nn.Module
    why: str
    asked: bool = False
    general: bool = False


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
        what computes afterwards, for the report; empty where that is said of another module.  A function where it may
        change, as a module that moves to another dtype gets another program: it takes ``module`` and ``extra``, as they
        are by then.
    extra
        attributes to add: none that is there already.  A module among them must bring no key into the state_dict.
    exact
        brings the constants of the module, while it is stock and in float64, to full precision: one built in float32
        holds rounded ones, and a proof must not take that for an error of the swap.
    covers
        names of children that the new class does not call any more: they stay as they are.
    paired
        whether a module that holds this one is swapped with it, so that neither can be restored alone.
    """

    module: nn.Module
    cls: type[nn.Module]
    now: _Told
    extra: Mapping[str, Any] = field(default_factory=dict)
    exact: Callable[[], None] | None = None
    covers: tuple[str, ...] = ()
    paired: bool = False

    @property
    def was(self) -> str:
        return qualified(type(self.module))

    @property
    def told(self) -> str:
        return _tell(self.now, self.module, self.extra)


@dataclass(frozen=True)
class Mark:
    """The mark of a swapped module: the class it had and the one it got, and of the `Swap` what is needed later."""

    cls: type[nn.Module]
    swapped: type[nn.Module]
    extra: tuple[str, ...]
    now: _Told
    covers: tuple[str, ...]
    paired: bool


SwapOrKept = Swap | Kept


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
    mark = Mark(type(module), swap.cls, tuple(swap.extra), swap.now, swap.covers, swap.paired)
    module.__class__ = swap.cls  # the one step that Python may refuse, so it comes first
    try:
        setattr(module, MARK, mark)
        for name, value in swap.extra.items():
            setattr(module, name, value)
        if _computes(swap):
            keep_whole(module)
        module.register_load_state_dict_post_hook(_follow)
        _to_the_front(module, mark.extra)
    except BaseException:
        _take_away(module, mark)
        raise


def _computes(swap: Swap) -> bool:
    """Whether a forward of tpgen's computes: no block that calls others, no ``__call__`` around a project's forward."""
    return bool(swap.now) and swap.cls.__call__ is nn.Module.__call__


def _to_the_front(module: nn.Module, names: Sequence[str]) -> None:
    # let added children come first: e3nn puts its own last in every copy, and tools pair buffers by their order
    for name in [name for name in module._modules if name not in names]:
        module._modules[name] = module._modules.pop(name)


def _follow(module: nn.Module, _keys: Any) -> None:
    """Move what computes for a module to where the tensors are that it has loaded."""
    for program in module._modules.values():
        if isinstance(program, PlannedModule):
            follow(program)


def mark_of(module: nn.Module) -> Mark | None:
    """Return the mark of a swapped module; None for any other."""
    return module.__dict__.get(MARK)


def what_computes(module: nn.Module) -> str:
    """Name what computes a swapped module, in its present dtype and place."""
    mark = mark_of(module)
    assert mark is not None
    return _tell(mark.now, module, {name: getattr(module, name) for name in mark.extra})


def _tell(now: _Told, module: nn.Module, extra: Mapping[str, Any]) -> str:
    return now if isinstance(now, str) else now(module, extra)


def undo_all(*networks: nn.Module) -> None:
    """Give every swapped module its class back, or none where one of them cannot be."""
    modules = [module for network in networks for module in network.modules()]
    swapped = [module for module in modules if mark_of(module) is not None]
    for module in swapped:
        _check_undo(module, swapped)
    for module in modules:
        mark = mark_of(module)
        check_give_back(module, type(module) if mark is None else mark.cls)
    for module in swapped:
        undo(module)
    give_back(modules)


def _check_undo(module: nn.Module, swapped: Sequence[nn.Module]) -> None:
    mark = mark_of(module)
    assert mark is not None
    if type(module) is not mark.swapped:
        raise TpgenError(
            f"{qualified(type(module))}: something changed the class of this module after tpgen.convert had (it was "
            f"{mark.swapped.__name__}), and its class cannot be given back: take that off first, a parametrisation or "
            "a wrapper, then restore"
        )
    if mark.paired and not any(child is module for holder in swapped for child in holder.children()):
        raise TpgenError(
            f"{mark.swapped.__name__} was converted together with the module that holds it, which calls it in another "
            "way now: restore that module, or the whole network"
        )


def undo(module: nn.Module) -> None:
    """Give one module its class back, if it is swapped."""
    mark = mark_of(module)
    if mark is not None:
        _take_away(module, mark)


def _take_away(module: nn.Module, mark: Mark) -> None:
    for name in (*mark.extra, MARK):
        if hasattr(module, name):
            delattr(module, name)
    look_inside(module)
    hooks = module._load_state_dict_post_hooks
    for key in [key for key, hook in hooks.items() if hook is _follow]:
        del hooks[key]
    module.__class__ = mark.cls


def qualified(cls: type) -> str:
    """The name of a class with the package it comes from.

    >>> qualified(nn.Linear)
    'torch.Linear'
    """
    return f"{home(cls).partition('.')[0]}.{cls.__name__}"
