"""Networks inside containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from torch import nn


def held_networks(holder: Any) -> dict[str, nn.Module]:
    """Find outermost networks in a list, dict or object, by path; a network holds itself.

    >>> held_networks({"energy": nn.ReLU()})
    {"['energy']": ReLU()}
    """
    if isinstance(holder, nn.Module):
        return {"": holder}
    places = dict(_list_paths_and_objects("", holder, set()))
    first = {one: place for place, one in reversed(places.items()) if isinstance(one, nn.Module)}
    inner = {part for one in first for part in one.modules() if part is not one}
    return {place: one for one, place in reversed(first.items()) if one not in inner}


def calculators_in(holder: Any) -> list[Any]:
    """Calculators of ASE in an object."""
    return [one for _, one in _list_paths_and_objects("", holder, set()) if _is_ase_calculator(one)]


def _list_paths_and_objects(path: str, holder: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    seen.add(id(holder))
    held = {} if isinstance(holder, type | ModuleType) else getattr(holder, "__dict__", {})
    values = {path: holder, **{f"{path}.{name}": value for name, value in held.items()}}
    near = [
        near for place, value in values.items() for near in ((place, value), *_list_item_paths_and_values(place, value))
    ]
    yield from near
    for place, one in near:
        if id(one) not in seen and _is_ase_calculator(one):
            yield from _list_paths_and_objects(place, one, seen)


def _list_item_paths_and_values(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{n}]", one) for n, one in enumerate(value)]
    return [(f"{path}[{key!r}]", one) for key, one in value.items()] if isinstance(value, Mapping) else []


def _is_ase_calculator(value: Any) -> bool:
    # a calculator of ASE, or what a sum of calculators mixes them by
    return any(cls.__module__.startswith("ase.calculators.") for cls in type(value).__mro__)
