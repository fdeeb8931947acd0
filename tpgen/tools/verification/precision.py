"""Networks in float64: copies whose every number is of that dtype, also where their code names another.

Derivatives by differences need it.  A float32 network that makes one-hot rows by ``.float()``, or ends in
``.to(torch.float32)``, is right; its copy computes the same function with float64 in the place of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tpgen.base._e3nn import default_dtype
from tpgen.networks.copies import copy_of

Place = tuple[str, ...]  # names of a module, of its attribute, and of what that holds
NARROW = (torch.float32, torch.float16, torch.bfloat16)
_CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)


class Casts(TorchFunctionMode):
    """Note whether calls name a narrow dtype; `Doubled` has float64 in its place."""

    named = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), keywords: Any = None) -> Any:
        given, further = list(args), dict(keywords or {})
        if function in _CASTS or any(x in NARROW for x in (*given, *further.values()) if isinstance(x, torch.dtype)):
            self.named = True
            function, given, further = self.changed(function, given, further)
        return function(*given, **further)

    def changed(
        self, function: Any, given: list[Any], further: dict[str, Any]
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        return function, given, further


class Doubled(Casts):
    def changed(
        self, function: Any, given: list[Any], further: dict[str, Any]
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        own = Tensor.double if function in _CASTS else function
        return own, list(map(_doubled, given)), {name: _doubled(x) for name, x in further.items()}


def _doubled(x: Any) -> Any:
    return torch.float64 if isinstance(x, torch.dtype) and x in NARROW else x


def in_double(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call with float64 where its code names a narrower dtype, or none."""

    def called(*given: Any) -> Any:
        with default_dtype(torch.float64), Doubled():
            return call(*given)

    return called


def double_of(network: nn.Module) -> nn.Module:
    """A copy in float64, with the tensors among its attributes."""
    copy = copy_of(network)
    plain = plain_tensors(copy)
    copy.double()
    for _, x in plain:
        if x.dtype in NARROW:
            x.data = x.data.double()
    return copy


def plain_tensors(network: nn.Module) -> list[tuple[Place, Tensor]]:
    """Floating tensors among the attributes of modules, also those in lists and dicts."""
    held = {x.data_ptr() for x in (*network.parameters(), *network.buffers()) if x.numel()}
    found: dict[int, tuple[Place, Tensor]] = {}
    for path, module in network.named_modules():
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            for place, x in _tensors((path, name), value):
                if x.is_floating_point() and x.numel() and x.data_ptr() not in held:
                    found.setdefault(id(x), (place, x))
    return list(found.values())


def _tensors(place: Place, value: Any) -> Iterator[tuple[Place, Tensor]]:
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, (list, tuple)):
        for n, one in enumerate(value):
            yield from _tensors((*place, str(n)), one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _tensors((*place, str(key)), one)
