"""Class swaps: a module gets a class whose ``forward`` calls tpgen, and keeps all else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tpgen.base.errors import TpgenError
from tpgen.emitter.leaf import keep_whole, look_inside
from tpgen.networks.conversion.packages import (
    check_installed_class_unchanged,
    get_module_name_in_package,
    switch_to_packaged_classes,
)
from tpgen.nn.planned import PlannedModule, adapt_programs

MARK = "_tpgen_swap"
# what computes: a text, or how to say it of a module and what a swap adds to it
_Description = str | Callable[[nn.Module, Mapping[str, Any]], str]


@dataclass(frozen=True)
class KeptModule:
    """A module that is not converted, and the reason.

    ``asked``: the caller left the module out.  ``general``: the reason concerns a whole project.
    """

    module: nn.Module
    why: str
    asked: bool = False
    general: bool = False


@dataclass(frozen=True)
class ClassSwap:
    """A module, its new class and attributes.

    Parameters
    ----------
    cls
        the module's class or a subclass.
    now
        report text or function of ``module`` and ``extra``; empty if another row tells.
    extra
        new attributes, no keys of the state_dict.
    exact
        writes constants of the stock module in float64, for proofs.
    covers
        children that the new class never calls.
    paired
        whether module and holder are restored together.
    """

    module: nn.Module
    cls: type[nn.Module]
    now: _Description
    extra: Mapping[str, Any] = field(default_factory=dict)
    exact: Callable[[], None] | None = None
    covers: tuple[str, ...] = ()
    paired: bool = False

    @property
    def was(self) -> str:
        return name_class_with_package(type(self.module))

    @property
    def description(self) -> str:
        return _resolve_report_text(self.now, self.module, self.extra)


@dataclass(frozen=True)
class SwapMark:
    """Record on a swapped module: old class, new class, fields of the `ClassSwap`."""

    cls: type[nn.Module]
    swapped: type[nn.Module]
    extra: tuple[str, ...]
    now: _Description
    covers: tuple[str, ...]
    paired: bool


SwapOrKept = ClassSwap | KeptModule


def apply_swaps(swaps: Iterable[ClassSwap]) -> None:
    """Give all modules their new classes, or none if one fails."""
    done: list[nn.Module] = []
    try:
        for swap in swaps:
            _apply_swap(swap)
            done.append(swap.module)
    except BaseException:
        for module in reversed(done):
            undo_if_swapped(module)
        raise


def _apply_swap(swap: ClassSwap) -> None:
    module = swap.module
    there = [name for name in (*swap.extra, MARK) if hasattr(module, name)]
    if there:
        raise AttributeError(f"{swap.was} has attributes {', '.join(there)} already, which a swap would hide")
    mark = SwapMark(type(module), swap.cls, tuple(swap.extra), swap.now, swap.covers, swap.paired)
    module.__class__ = swap.cls  # the one step that Python may refuse, so it comes first
    try:
        setattr(module, MARK, mark)
        for name, value in swap.extra.items():
            setattr(module, name, value)
        if _is_called_by_own_forward(swap):
            keep_whole(module)
        module.register_load_state_dict_post_hook(_adapt_tpgen_children_to_loaded_dtype)
        _move_children_to_front(module, mark.extra)
    except BaseException:
        _undo_swap(module, mark)
        raise


def _is_called_by_own_forward(swap: ClassSwap) -> bool:
    # no block that calls others, and no ``__call__`` around a project's forward
    return bool(swap.now) and swap.cls.__call__ is nn.Module.__call__


def _move_children_to_front(module: nn.Module, child_names: Sequence[str]) -> None:
    # let added children come first: e3nn puts its own last in every copy, and tools pair buffers by their order
    for name in [name for name in module._modules if name not in child_names]:
        module._modules[name] = module._modules.pop(name)


def _adapt_tpgen_children_to_loaded_dtype(module: nn.Module, _keys: Any) -> None:
    # to the device of the tensors that the module has loaded
    for program in module._modules.values():
        if isinstance(program, PlannedModule):
            adapt_programs(program)


def get_swap_mark(module: nn.Module) -> SwapMark | None:
    return module.__dict__.get(MARK)


def describe_computing_code(module: nn.Module) -> str:
    """Report text on a swapped module's code."""
    mark = get_swap_mark(module)
    assert mark is not None
    return _resolve_report_text(mark.now, module, {name: getattr(module, name) for name in mark.extra})


def _resolve_report_text(text_or_function: _Description, module: nn.Module, extra: Mapping[str, Any]) -> str:
    return text_or_function if isinstance(text_or_function, str) else text_or_function(module, extra)


def undo_swaps(*networks: nn.Module) -> None:
    """Give all swapped modules their classes back, or raise `TpgenError` without changes."""
    modules = [module for network in networks for module in network.modules()]
    swapped = [module for module in modules if get_swap_mark(module) is not None]
    for module in swapped:
        _check_swap_can_be_undone(module, swapped)
    for module in modules:
        mark = get_swap_mark(module)
        check_installed_class_unchanged(module, type(module) if mark is None else mark.cls)
    for module in swapped:
        undo_if_swapped(module)
    switch_to_packaged_classes(modules)


def _check_swap_can_be_undone(module: nn.Module, swapped: Sequence[nn.Module]) -> None:
    mark = get_swap_mark(module)
    assert mark is not None
    if type(module) is not mark.swapped:
        raise TpgenError(
            f"{name_class_with_package(type(module))}: something changed the class of this module after tpgen.convert "
            f"had (it was {mark.swapped.__name__}), and its class cannot be given back: take that off first, a "
            "parametrisation or a wrapper, then restore"
        )
    if mark.paired and not any(child is module for holder in swapped for child in holder.children()):
        raise TpgenError(
            f"{mark.swapped.__name__} was converted together with the module that holds it, which calls it in another "
            "way now: restore that module, or the whole network"
        )


def undo_if_swapped(module: nn.Module) -> None:
    """Give one module its class back if swapped."""
    mark = get_swap_mark(module)
    if mark is not None:
        _undo_swap(module, mark)


def _undo_swap(module: nn.Module, mark: SwapMark) -> None:
    for name in (*mark.extra, MARK):
        if hasattr(module, name):
            delattr(module, name)
    look_inside(module)
    hooks = module._load_state_dict_post_hooks
    for key in [key for key, hook in hooks.items() if hook is _adapt_tpgen_children_to_loaded_dtype]:
        del hooks[key]
    module.__class__ = mark.cls


def name_class_before_conversion(module: nn.Module) -> str:
    """Name of a module's class before conversion."""
    mark = get_swap_mark(module)
    return name_class_with_package(mark.cls if mark else type(module))


def name_class_with_package(cls: type) -> str:
    """Class name after its package.

    >>> name_class_with_package(nn.Linear)
    'torch.Linear'
    """
    return f"{get_module_name_in_package(cls).partition('.')[0]}.{cls.__name__}"
