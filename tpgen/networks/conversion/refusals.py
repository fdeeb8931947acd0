"""What `convert`, `restore` and `conversion_report` say of what they cannot take, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import torch
from torch import nn

from tpgen.base.errors import InputError, a_kind
from tpgen.networks.conversion.swap import Kept, mark_of

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


def check_network(function: str, network: Any) -> None:
    """Raise `InputError` for what is no network, with the way to one."""
    if not isinstance(network, nn.Module):
        given = f"network: {function} takes a torch.nn.Module, got {a_kind(network)}"
        way = _way_to_a_network(network)
        raise InputError(f"{given}: {way}" if way else given)


def nothing_to_convert(network: nn.Module, kept: Sequence[Kept]) -> str:
    """Say why there is no swap in a network."""
    name = type(network).__name__
    if any(mark_of(module) for module in network.modules()):
        return f"{name} is converted already: tpgen.restore(network) undoes it, then convert it anew"
    if kept:
        reasons = "; ".join(sorted({k.why for k in kept}))
        return f"{name} holds nothing that can be converted: {reasons}"
    if program := _program_in(network):
        return f"{name} holds nothing that can be converted: it runs {program}"
    return (
        f"{name} holds no tensor product, linear layer or harmonics of e3nn's and no module of a project tpgen knows: "
        "there is nothing to convert"
    )


def _program_in(network: nn.Module) -> str | None:
    """What a network runs in the place of modules: it is a program itself, or it holds one."""
    return next(filter(None, map(_program_of, (network, *vars(network).values(), *network.children()))), None)


def _program_of(held: Any) -> str | None:
    homes = [f"{cls.__module__}." for cls in type(held).__mro__]
    return next((said for home, said in _PROGRAMS.items() if any(h.startswith(home) for h in homes)), None)


def _way_to_a_network(given: Any) -> str | None:
    if program := _program_of(given):
        return program
    if isinstance(given, (str, PathLike)):
        return f"load the file first, as in torch.load({str(given)!r}, weights_only=False), or as its project does"
    if isinstance(given, Mapping) and given and all(isinstance(x, torch.Tensor) for x in given.values()):
        return "tensors alone are no network: convert a network that has loaded them"
    held = _held_networks(given)
    return f"give each network that it holds by itself, such as `given{held[0]}`" if held else None


def _held_networks(holder: Any) -> list[str]:
    """Find the networks in a list or a dict, or in an object such as a calculator: their places, as ``.model[0]``."""
    attributes = {f".{name}": value for name, value in getattr(holder, "__dict__", {}).items()}
    return [
        place
        for where, value in {"": holder, **attributes}.items()
        for place, one in {where: value, **_entries(where, value)}.items()
        if isinstance(one, nn.Module)
    ]


def _entries(where: str, value: Any) -> dict[str, Any]:
    if isinstance(value, (list, tuple)):
        return {f"{where}[{n}]": one for n, one in enumerate(value)}
    return {f"{where}[{key!r}]": one for key, one in value.items()} if isinstance(value, Mapping) else {}
