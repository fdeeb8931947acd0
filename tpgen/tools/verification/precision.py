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


class NarrowDtypeMode(TorchFunctionMode):
    """Torch function mode that records narrow dtypes in calls, or widens each."""

    def __init__(self, widen_to_float64: bool = False) -> None:
        """With ``widen_to_float64``, calls get float64 for narrow dtypes."""
        super().__init__()
        self.widen_to_float64 = widen_to_float64
        self.named: dict[tuple[str, torch.dtype], None] = {}  # in their order

    def __torch_function__(self, function: Any, types: Any, args: Any = (), keywords: Any = None) -> Any:
        given, further = list(args), dict(keywords or {})
        dtypes = [x for x in (*given, *further.values()) if isinstance(x, torch.dtype) and x in NARROW]
        if function in _CASTS:
            dtypes.append(_CASTS[function])
        if dtypes:
            self.named |= dict.fromkeys((resolve_name(function) or function.__name__, dtype) for dtype in dtypes)
            if self.widen_to_float64:
                function = Tensor.double if function in _CASTS else function
                given = [_replace_narrow_dtype_by_float64(x) for x in given]
                further = {name: _replace_narrow_dtype_by_float64(x) for name, x in further.items()}
        return function(*given, **further)


def _replace_narrow_dtype_by_float64(x: Any) -> Any:
    return torch.float64 if isinstance(x, torch.dtype) and x in NARROW else x


def wrap_call_in_float64(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call: default and narrower dtypes become float64."""

    def call_in_float64(*given: Any) -> Any:
        with default_dtype(torch.float64), NarrowDtypeMode(widen_to_float64=True):
            return call(*given)

    return call_in_float64


def copy_in_float64(network: nn.Module) -> nn.Module:
    """Copy a network in float64, with tensors outside parameters and buffers."""
    copy = copy_of(network)
    plain = find_unregistered_tensors(copy)
    copy.double()
    for _, x in plain:
        if x.dtype in NARROW:
            x.data = x.data.double()
    return copy
