"""Allegro (package ``nequip-allegro``): what of it stays, by name; its e3nn modules follow e3nn's rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from tpgen.conversion.swap import Finding, Kept

_WHY = "Allegro's product of strided features, which tpgen does not compute: use its own modifiers for it"


def swaps(network: nn.Module, options: dict[str, Any]) -> Iterator[Finding]:
    """Name the products that Allegro computes itself."""
    for module in network.modules():
        if type(module).__module__.startswith("allegro.") and hasattr(module, "_contract_conv"):
            yield Kept(module, _WHY)
