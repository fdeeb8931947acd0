"""Networks from `torch.package` files, as of NequIP."""

# An installed class replaces a packaged class of the same code: equal names, bases and bytecode.

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tpgen.base.errors import TpgenError

_PREFIX = re.compile(r"^<torch_package_\d+>\.")
_FROM = "_tpgen_from_package"  # where a module holds the class that its package gave it
_NO_CODE = {
    "__module__",
    "__dict__",
    "__weakref__",
    "__doc__",
    "__annotations__",
    "__firstlineno__",
    "_abc_impl",
    "__slotnames__",
}
_MISSING = object()
_SETTINGS = {("e3nn", "_OPT_DEFAULTS")}  # module, name: what a process may set, and no code


def get_module_name_in_package(cls: type) -> str:
    """Name of a class's module, without a package's prefix.

    >>> get_module_name_in_package(nn.Linear)
    'torch.nn.modules.linear'
    """
    return _PREFIX.sub("", cls.__module__)


def is_packaged(cls: type) -> bool:
    return _PREFIX.match(cls.__module__) is not None


@contextmanager
def use_installed_classes(network: nn.Module) -> Iterator[None]:
    """Inside the context, modules from `torch.package` have the installed classes of the same code."""
    adopted = switch_to_installed_classes(network)
    try:
        yield
    finally:
        switch_to_packaged_classes(adopted)


def switch_to_installed_classes(network: nn.Module) -> list[nn.Module]:
    """Give modules from `torch.package` the installed classes of the same code; return these modules."""
    found = [(module, find_installed_class(type(module))) for module in network.modules() if is_packaged(type(module))]
    adopted = [(module, cls) for module, cls in found if cls is not None]
    for module, cls in adopted:
        vars(module)[_FROM] = type(module), cls
        module.__class__ = cls
    return [module for module, _ in adopted]


def switch_to_packaged_classes(modules: Iterable[nn.Module]) -> None:
    """Give modules their classes from `torch.package` back."""
    for module in modules:
        if _FROM in vars(module):
            module.__class__ = vars(module).pop(_FROM)[0]


def check_installed_class_unchanged(module: nn.Module, stock_class: type) -> None:
    """Raise `TpgenError` if `switch_to_installed_classes` gave a module another class than ``stock_class``."""
    held = vars(module).get(_FROM)
    if held is not None and stock_class is not held[1]:
        raise TpgenError(
            f"{stock_class.__name__}: something changed the class of this module, which came from a package, after "
            f"tpgen.convert had (it was {held[1].__name__}), and its class cannot be given back: take that off first, "
            "a parametrisation or a wrapper, then restore"
        )


def group_modules_without_installed_class(network: nn.Module) -> dict[str, list[nn.Module]]:
    """Modules from `torch.package` without an installed class, by project."""
    found: dict[str, list[nn.Module]] = {}
    for module in network.modules():
        if is_packaged(type(module)) and find_installed_class(type(module)) is None:
            found.setdefault(get_module_name_in_package(type(module)).partition(".")[0], []).append(module)
    return found


_installed: WeakKeyDictionary[type, type | None] = WeakKeyDictionary()


def find_installed_class(packaged_class: type) -> type | None:
    """The installed class of the same name and code, or None."""
    if packaged_class not in _installed:
        ours = _import_class_of_same_name(packaged_class)
        _installed[packaged_class] = ours if ours is not None and have_same_code(packaged_class, ours) else None
    return _installed[packaged_class]


def _import_class_of_same_name(packaged_class: type) -> type | None:
    try:
        found: Any = import_module(get_module_name_in_package(packaged_class))
    except ModuleNotFoundError:
        return None
    for name in packaged_class.__qualname__.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) else None


# --- the same code ----------------------------------------------------------------------------------------------------


def have_same_code(packaged: Any, installed: Any) -> bool:
    """Whether two classes or functions, and all these reach, have the same code.

    >>> have_same_code(lambda x: x + 1, lambda x: x + 1), have_same_code(lambda x: x + 1, lambda x: x + 2)
    (True, False)
    """
    return _is_object_code_equal(packaged, installed, set())


_Seen = set[tuple[int, int]]  # pairs of objects that are compared, or were


def _is_object_code_equal(packaged: Any, installed: Any, compared_ids: _Seen) -> bool:
    if (
        packaged is installed or (id(packaged), id(installed)) in compared_ids
    ):  # a pair that is under way is the same if the rest is
        return True
    compared_ids.add((id(packaged), id(installed)))
    for kinds, compare in _KINDS:
        if isinstance(packaged, kinds):
            return isinstance(installed, kinds) and compare(packaged, installed, compared_ids)
    if isinstance(wrapped := getattr(packaged, "__wrapped__", None), FunctionType):  # as caches of functions have it
        return _is_object_code_equal(
            wrapped, getattr(installed, "__wrapped__", None), compared_ids
        ) and _is_object_code_equal(type(packaged), type(installed), compared_ids)
    return _is_object_code_equal(
        type(packaged), type(installed), compared_ids
    )  # an object is no code, but that of its class


def _is_class_code_equal(packaged: Any, installed: Any, compared_ids: _Seen) -> bool:
    if not is_packaged(packaged) or (get_module_name_in_package(packaged), packaged.__qualname__) != (
        installed.__module__,
        installed.__qualname__,
    ):
        return False  # one that no package brought would be the same object
    return _is_sequence_code_equal(packaged.__bases__, installed.__bases__, compared_ids) and _is_dict_code_equal(
        _select_code_attributes(packaged), _select_code_attributes(installed), compared_ids
    )


def _select_code_attributes(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if name not in _NO_CODE}


def _is_function_code_equal(packaged: Any, installed: Any, compared_ids: _Seen) -> bool:
    if not _is_bytecode_equal(packaged.__code__, installed.__code__):
        return False
    cells = [[cell.cell_contents for cell in f.__closure__ or ()] for f in (packaged, installed)]
    kept = (
        (packaged.__defaults__, packaged.__kwdefaults__, cells[0]),
        (installed.__defaults__, installed.__kwdefaults__, cells[1]),
    )
    return _is_sequence_code_equal(*kept, compared_ids) and all(
        _is_object_code_equal(a, b, compared_ids) for a, b in _pair_referenced_globals(packaged, installed)
    )


def _is_bytecode_equal(packaged: CodeType, installed: CodeType) -> bool:
    for name in ("co_code", "co_names", "co_varnames", "co_freevars", "co_flags"):
        if getattr(packaged, name) != getattr(installed, name):
            return False
    pairs = list(zip(packaged.co_consts, installed.co_consts, strict=False))
    return len(packaged.co_consts) == len(installed.co_consts) and all(
        _is_bytecode_equal(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else a == b for a, b in pairs
    )


def _pair_referenced_globals(packaged: FunctionType, installed: FunctionType) -> Iterator[tuple[Any, Any]]:
    # objects that the names of a function refer to in its module, and in packaged modules among these objects
    names = {name for name in _list_names_in_code(packaged.__code__) if not name.startswith("__")}
    spaces: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [(packaged.__globals__, installed.__globals__)]
    for a, b in spaces:  # which grows
        home = _PREFIX.sub("", a.get("__name__", ""))
        for name in (name for name in names & a.keys() if (home, name) not in _SETTINGS):
            x, y = a[name], b.get(name, _MISSING)
            yield x, y
            inner = (vars(x), vars(y)) if isinstance(x, ModuleType) and isinstance(y, ModuleType) else None
            if inner and x is not y and not any(inner[0] is space for space, _ in spaces):
                spaces.append(inner)


def _list_names_in_code(code: CodeType) -> set[str]:
    return {*code.co_names}.union(*(_list_names_in_code(c) for c in code.co_consts if isinstance(c, CodeType)))


def _is_sequence_code_equal(packaged: Any, installed: Any, compared_ids: _Seen) -> bool:
    return len(packaged) == len(installed) and all(
        _is_object_code_equal(a, b, compared_ids) for a, b in zip(packaged, installed, strict=True)
    )


def _is_dict_code_equal(packaged: Any, installed: Any, compared_ids: _Seen) -> bool:
    return packaged.keys() == installed.keys() and all(
        _is_object_code_equal(packaged[name], installed[name], compared_ids) for name in packaged
    )


def _make_comparison_by_part(get_part: Callable[[Any], Any]) -> Callable[[Any, Any, _Seen], bool]:
    return lambda theirs, ours, seen: _is_object_code_equal(get_part(theirs), get_part(ours), seen)


_KINDS: tuple[tuple[Any, Callable[[Any, Any, _Seen], bool]], ...] = (
    (type, _is_class_code_equal),
    (FunctionType, _is_function_code_equal),
    ((classmethod, staticmethod, MethodType), _make_comparison_by_part(lambda held: held.__func__)),
    (property, _make_comparison_by_part(lambda held: (held.fget, held.fset, held.fdel))),
    (partial, _make_comparison_by_part(lambda held: (held.func, held.args, held.keywords))),
    (ModuleType, lambda theirs, ours, _seen: _PREFIX.sub("", theirs.__name__) == ours.__name__),
    (torch.jit.ScriptFunction, _make_comparison_by_part(lambda held: held.code)),
    (Tensor, lambda theirs, ours, _seen: torch.equal(theirs, ours)),
    ((list, tuple), _is_sequence_code_equal),
    (dict, _is_dict_code_equal),
    ((str, bytes, int, float, complex, frozenset, set, type(None)), lambda theirs, ours, _seen: theirs == ours),
)
