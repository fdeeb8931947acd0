"""Functions of e3nn that a network calls instead of modules that convert."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from e3nn import o3
from torch import nn

_MODULES = {"spherical_harmonics": "SphericalHarmonics"}  # of o3
_NOT_OWN = "torch", "e3nn", "tpgen"


def describe_e3nn_functions_called(network: nn.Module) -> tuple[str, ...]:
    """A sentence per method of a network that calls a function of e3nn, not a module."""
    classes = dict.fromkeys(type(module) for module in network.modules())
    own = [cls for cls in classes if cls.__module__.partition(".")[0] not in _NOT_OWN]
    return tuple(
        f"{method.__qualname__.rpartition('.<locals>.')[2]} calls o3.{name}, which e3nn computes: "
        f"hold an o3.{_MODULES[name]}"
        for cls in own
        for method in vars(cls).values()
        if isinstance(method, FunctionType)
        for name in dict.fromkeys(_find_e3nn_functions_called_in(method.__code__, method.__globals__))
    )


def _find_e3nn_functions_called_in(code: CodeType, global_names: dict[str, Any]) -> Iterator[str]:
    if _MODULES.keys().isdisjoint(code.co_names):
        return
    value: Any = None  # of the name or attribute that was loaded last
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            value = global_names.get(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            value = getattr(value, step.argval, None) if isinstance(value, ModuleType) else None
        else:
            value = None
        yield from (name for name in _MODULES if value is getattr(o3, name))
