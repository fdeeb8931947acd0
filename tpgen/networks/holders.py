"""Networks inside containers."""

from __future__ import annotations

from collections.abc import Mapping
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
    held = {} if isinstance(holder, type | ModuleType) else getattr(holder, "__dict__", {})
    attributes = {f".{name}": value for name, value in held.items()}
    places = {
        place: one
        for where, value in {"": holder, **attributes}.items()
        for place, one in {where: value, **_items_by_path(where, value)}.items()
    }
    first = {one: place for place, one in reversed(places.items()) if isinstance(one, nn.Module)}
    inner = {part for one in first for part in one.modules() if part is not one}
    return {place: one for one, place in reversed(first.items()) if one not in inner}


def _items_by_path(where: str, value: Any) -> dict[str, Any]:
    if isinstance(value, (list, tuple)):
        return {f"{where}[{n}]": one for n, one in enumerate(value)}
    return {f"{where}[{key!r}]": one for key, one in value.items()} if isinstance(value, Mapping) else {}
