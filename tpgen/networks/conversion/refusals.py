"""Errors for networks that `convert` or `restore` cannot take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import torch
from torch import nn

from tpgen.base.errors import InputError, a_kind
from tpgen.networks.conversion.swap import KeptModule, get_swap_mark
from tpgen.networks.holders import held_networks

_AOT = (
    "a compiled package (AOTInductor): convert the network before it is compiled, as nequip-compile does with "
    "--modifiers enable_tpgen"
)
# where a class stands whose objects run programs that were written from a network -> what such a program is
_PROGRAMS = {
    "torch.jit.": "a scripted or traced network: convert the network before it is scripted or traced",
    "torch.fx.": "a graph that was traced or exported: convert the network before it is traced",
    "torch._inductor.": _AOT,
    "torch.export.pt2_archive.": _AOT,
    "torch.export.": "an exported program: convert the network before it is exported",
}


def list_networks(
    caller_name: str, network_or_holder: Any, is_relevant: Callable[[nn.Module], bool]
) -> list[nn.Module]:
    """Networks in a module, list, dict or object such as a calculator; `InputError` if none."""
    if isinstance(network_or_holder, nn.Module):
        return [network_or_holder]
    networks = {} if _describe_kind_of_program(network_or_holder) else held_networks(network_or_holder)
    if not networks:
        way = _advise_on_object_without_network(network_or_holder)
        got = f"{a_kind(network_or_holder)}{f': {way}' if way else ''}"
        raise InputError(f"network: {caller_name} takes a torch.nn.Module, got {got}")
    found = [*networks.values()]
    if len(found) == 1 or isinstance(network_or_holder, (list, tuple, Mapping)):
        return found
    return [one for one in found if is_relevant(one)] or found  # an object may hold others beside these


def get_only_network(caller_name: str, network_or_holder: Any, is_relevant: Callable[[nn.Module], bool]) -> nn.Module:
    """The only network in a module, list, dict or object; `InputError` for several."""
    network, *others = list_networks(caller_name, network_or_holder, is_relevant)
    if others:
        place = next(place for place, one in held_networks(network_or_holder).items() if one is network)
        raise InputError(
            f"network: {caller_name} takes one network, got {a_kind(network_or_holder)} that holds {len(others) + 1}: "
            f"give each by itself, such as `given{place}`"
        )
    return network


def explain_nothing_to_convert(network: nn.Module, kept: Sequence[KeptModule]) -> str:
    """Error message for a network without swaps."""
    name = type(network).__name__
    if any(get_swap_mark(module) for module in network.modules()):
        return f"{name} is converted already: tpgen.restore(network) undoes it, then convert it anew"
    if kept:
        reasons = "; ".join(sorted({k.why for k in kept}))
        return f"{name} holds nothing that can be converted: {reasons}"
    if program := describe_compiled_program(network):
        return f"{name} holds nothing that can be converted: it runs {program}"
    return (
        f"{name} holds no tensor product, linear layer or harmonics of e3nn's and no module of a project tpgen knows: "
        "there is nothing to convert"
    )


def describe_compiled_program(network: nn.Module) -> str | None:
    """Kind of a module's scripted, traced or compiled program, or None."""
    return next(
        filter(None, map(_describe_kind_of_program, (network, *vars(network).values(), *network.children()))), None
    )


def _describe_kind_of_program(program: Any) -> str | None:
    homes = [f"{cls.__module__}." for cls in type(program).__mro__]
    return next((said for home, said in _PROGRAMS.items() if any(h.startswith(home) for h in homes)), None)


def _advise_on_object_without_network(network_or_holder: Any) -> str | None:
    if program := _describe_kind_of_program(network_or_holder):
        return program
    if isinstance(network_or_holder, (str, PathLike)):
        file = f"torch.load({str(network_or_holder)!r}, weights_only=False)"
        return f"load the file first, as in {file}, or as its project does"
    if (
        isinstance(network_or_holder, Mapping)
        and network_or_holder
        and all(isinstance(x, torch.Tensor) for x in network_or_holder.values())
    ):
        return "tensors alone are no network: convert a network that has loaded them"
    return None
