"""Adapters, which find swaps of modules of other projects than e3nn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pkgutil import resolve_name
from typing import Any

from torch import nn

from tpgen.base.errors import TpgenError
from tpgen.networks.conversion.packages import get_module_name_in_package, group_modules_without_installed_class
from tpgen.networks.conversion.swap import ClassSwap, KeptModule, SwapOrKept, get_swap_mark

Adapter = Callable[[nn.Module, dict[str, Any]], Iterable[SwapOrKept]]

# root package of a project's classes -> the adapter, or "module:function" that is imported when it is needed
ADAPTERS: dict[str, Adapter | str] = {
    "allegro": "tpgen.networks.conversion.projects.allegro:find_allegro_swaps",
    "mace": "tpgen.networks.conversion.projects.mace:find_mace_swaps",
    "nequip": "tpgen.networks.conversion.projects.nequip:find_nequip_swaps",
    "sevenn": "tpgen.networks.conversion.projects.sevennet:find_sevennet_swaps",
}


# root package -> what casts its modules to float64, "module:function", besides ``network.double()``; for proofs
CASTS: dict[str, str] = {"sevenn": "tpgen.networks.conversion.projects.sevennet:cast_elements_to_float64"}


def register_adapter(package: str, adapter: Adapter | str) -> None:
    """Let `convert` call ``adapter(network, options)`` (or "module:function"); it yields `ClassSwap`, `KeptModule`.

    >>> register_adapter("my_potentials", "my_potentials.speed:swaps")
    >>> ADAPTERS.pop("my_potentials")
    'my_potentials.speed:swaps'
    """
    ADAPTERS[package] = adapter


def load_adapters_for(network: nn.Module) -> list[Adapter]:
    """Adapters of the packages that a network's modules come from."""
    packages = find_package_names_of_modules(network)
    return [_load_adapter_or_fallback(package, adapter) for package, adapter in ADAPTERS.items() if package in packages]


def cast_project_modules_to_float64(network: nn.Module) -> None:
    """Let modules that cast tensors to float32 cast to float64, in place."""
    for package in find_package_names_of_modules(network) & CASTS.keys():
        resolve_name(CASTS[package])(network)


def find_package_names_of_modules(network: nn.Module) -> set[str]:
    return {package for module in network.modules() for package in list_package_names_of_class_and_bases(module)}


def list_package_names_of_class_and_bases(module: nn.Module) -> set[str]:
    return {get_module_name_in_package(cls).partition(".")[0] for cls in type(module).__mro__}


def find_package_mismatches(network: nn.Module) -> Iterable[KeptModule]:
    """Yield a `KeptModule` per project whose code from `torch.package` differs from installed code."""
    for project, modules in group_modules_without_installed_class(network).items():
        if project == "e3nn" or project in ADAPTERS:
            yield KeptModule(
                modules[0],
                f"from a package with another {project} than is installed here (modules that differ: {len(modules)}): "
                f"install the {project} that the package was made with, or make it anew",
                general=True,
            )


def check_adapter_swaps(network: nn.Module, adapter: Adapter, swaps: Iterable[ClassSwap]) -> None:
    """Raise `TpgenError` if an adapter swaps a module twice, or hides an attribute."""
    seen: set[nn.Module] = set()
    for swap in swaps:
        hidden = [] if get_swap_mark(swap.module) else [name for name in swap.extra if hasattr(swap.module, name)]
        why = "a second time" if swap.module in seen else f"and hides its {', '.join(hidden)}" if hidden else ""
        if why:
            named = network.named_modules(remove_duplicate=False)
            path = " = ".join(name for name, module in named if module is swap.module)
            raise TpgenError(
                f"the adapter {adapter.__module__}.{getattr(adapter, '__qualname__', adapter)} swaps {path!r} (a "
                f"{swap.was}) {why}: it must yield one ClassSwap for each module, whose extra names are new; "
                "nothing is changed"
            )
        seen.add(swap.module)


def _load_adapter_or_fallback(package: str, adapter: Adapter | str) -> Adapter:
    if not isinstance(adapter, str):
        return adapter
    try:
        if ":" not in adapter:
            raise ValueError("an adapter is written as module:function")
        return resolve_name(adapter)
    except (ImportError, AttributeError, ValueError) as error:
        return partial(_report_unloadable_adapter, package, f"{adapter}: {error}")


def _report_unloadable_adapter(
    package: str, error: str, network: nn.Module, options: dict[str, Any]
) -> Iterable[SwapOrKept]:
    first = next(module for module in network.modules() if package in list_package_names_of_class_and_bases(module))
    yield KeptModule(
        first,
        f"of {package}, whose adapter cannot be loaded ({error}): only e3nn's modules in it are converted",
        general=True,
    )
