"""Adapters, which find swaps of modules of other projects than e3nn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pkgutil import resolve_name
from typing import Any

from torch import nn

from tpgen.networks.conversion.packages import foreign_modules, module_name_of
from tpgen.networks.conversion.swap import Kept, SwapOrKept

Adapter = Callable[[nn.Module, dict[str, Any]], Iterable[SwapOrKept]]

# root package of a project's classes -> the adapter, or "module:function" that is imported when it is needed
ADAPTERS: dict[str, Adapter | str] = {
    "allegro": "tpgen.networks.conversion.projects.allegro:allegro_swaps",
    "mace": "tpgen.networks.conversion.projects.mace:mace_swaps",
    "nequip": "tpgen.networks.conversion.projects.nequip:nequip_swaps",
    "sevenn": "tpgen.networks.conversion.projects.sevennet:sevennet_swaps",
}


# root package -> what casts its modules to float64, "module:function", besides ``network.double()``; for proofs
CASTS: dict[str, str] = {"sevenn": "tpgen.networks.conversion.projects.sevennet:to_float64"}


def register_adapter(package: str, adapter: Adapter | str) -> None:
    """Let `convert` call ``adapter(network, options)``, which yields `Swap` and `Kept`, for modules of a package.

    >>> register_adapter("my_potentials", "my_potentials.speed:swaps")
    >>> ADAPTERS.pop("my_potentials")
    'my_potentials.speed:swaps'
    """
    ADAPTERS[package] = adapter


def adapters_for(network: nn.Module) -> list[Adapter]:
    """Adapters of the projects in a network."""
    packages = packages_in(network)
    return [_load_adapter(package, adapter) for package, adapter in ADAPTERS.items() if package in packages]


def cast_projects_to_float64(network: nn.Module) -> None:
    """Let modules that cast to float32 cast to float64, in place."""
    for package in packages_in(network) & CASTS.keys():
        resolve_name(CASTS[package])(network)


def packages_in(network: nn.Module) -> set[str]:
    """Package names of all modules."""
    return {package for module in network.modules() for package in packages_of(module)}


def packages_of(module: nn.Module) -> set[str]:
    """Package names of a module's class and bases."""
    return {module_name_of(cls).partition(".")[0] for cls in type(module).__mro__}


def kept_in_packages(network: nn.Module) -> Iterable[Kept]:
    """Yield a `Kept` per known project whose installed code differs from packaged code."""
    for project, modules in foreign_modules(network).items():
        if project == "e3nn" or project in ADAPTERS:
            yield Kept(
                modules[0],
                f"from a package with another {project} than is installed here (modules that differ: {len(modules)}): "
                f"install the {project} that the package was made with, or make it anew",
                general=True,
            )


def _load_adapter(package: str, adapter: Adapter | str) -> Adapter:
    if not isinstance(adapter, str):
        return adapter
    try:
        if ":" not in adapter:
            raise ValueError("an adapter is written as module:function")
        return resolve_name(adapter)
    except (ImportError, AttributeError, ValueError) as error:
        return partial(_kept_modules_without_adapter, package, f"{adapter}: {error}")


def _kept_modules_without_adapter(
    package: str, why: str, network: nn.Module, options: dict[str, Any]
) -> Iterable[SwapOrKept]:
    first = next(module for module in network.modules() if package in packages_of(module))
    yield Kept(
        first,
        f"of {package}, whose adapter cannot be loaded ({why}): only e3nn's modules in it are converted",
        general=True,
    )
