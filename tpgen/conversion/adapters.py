"""The table of adapters: how the modules of a project, besides e3nn's own, come to compute with tpgen.

An adapter is a function ``(network, options) -> list of Swap and Kept``.  It is imported when a network holds a module
of its project, so nobody pays for projects that are not in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from torch import nn

from tpgen.conversion.swap import Finding

Adapter = Callable[[nn.Module, dict[str, Any]], Iterable[Finding]]

# root package of a project's classes -> the adapter, or "module:function" that is imported when it is needed
ADAPTERS: dict[str, Adapter | str] = {
    "mace": "tpgen.integrations.mace:swaps",
    "nequip": "tpgen.integrations.nequip:swaps",
    "sevenn": "tpgen.integrations.sevennet:swaps",
}


def register_adapter(package: str, adapter: Adapter | str) -> None:
    """Let `convert` call an adapter for networks that hold modules of a package.

    >>> register_adapter("my_potentials", "my_potentials.speed:swaps")
    >>> ADAPTERS.pop("my_potentials")
    'my_potentials.speed:swaps'
    """
    ADAPTERS[package] = adapter


def adapters_for(network: nn.Module) -> list[Adapter]:
    """The adapters whose projects have modules in a network, in the order of the table."""
    packages = {cls.__module__.partition(".")[0] for module in network.modules() for cls in type(module).__mro__}
    return [_loaded(adapter) for package, adapter in ADAPTERS.items() if package in packages]


def _loaded(adapter: Adapter | str) -> Adapter:
    if not isinstance(adapter, str):
        return adapter
    where, _, function = adapter.partition(":")
    return getattr(import_module(where), function)
