"""Float64 copies of networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from tpgen.base._e3nn import default_dtype
from tpgen.networks.copies import copy_of
from tpgen.tools.verification.holding import find_unregistered_tensors

NARROW = (torch.float32, torch.float16, torch.bfloat16)
_CASTS = {Tensor.float: torch.float32, Tensor.half: torch.float16, Tensor.bfloat16: torch.bfloat16}


class Casts(TorchFunctionMode):
    """Mode that records narrow dtypes that calls name; with ``widens``, calls get float64 instead."""

    def __init__(self, widens: bool = False) -> None:
        super().__init__()
        self.widens = widens
        self.named: dict[tuple[str, torch.dtype], None] = {}  # in their order

    def __torch_function__(self, function: Any, types: Any, args: Any = (), keywords: Any = None) -> Any:
        given, further = list(args), dict(keywords or {})
        dtypes = [x for x in (*given, *further.values()) if isinstance(x, torch.dtype) and x in NARROW]
        if function in _CASTS:
            dtypes.append(_CASTS[function])
        if dtypes:
            self.named |= dict.fromkeys((resolve_name(function) or function.__name__, dtype) for dtype in dtypes)
            if self.widens:
                function = Tensor.double if function in _CASTS else function
                given = [_float64_for_narrow(x) for x in given]
                further = {name: _float64_for_narrow(x) for name, x in further.items()}
        return function(*given, **further)


def _float64_for_narrow(x: Any) -> Any:
    return torch.float64 if isinstance(x, torch.dtype) and x in NARROW else x


def run_in_float64(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call: default and narrower dtypes become float64."""

    def call_in_double(*given: Any) -> Any:
        with default_dtype(torch.float64), Casts(widens=True):
            return call(*given)

    return call_in_double


def copy_in_float64(network: nn.Module) -> nn.Module:
    """Copy a network in float64, with unregistered tensors."""
    copy = copy_of(network)
    plain = find_unregistered_tensors(copy)
    copy.double()
    for _, x in plain:
        if x.dtype in NARROW:
            x.data = x.data.double()
    return copy
