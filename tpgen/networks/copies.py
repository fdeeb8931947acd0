"""Copies of networks."""

from __future__ import annotations

from copy import deepcopy
from types import ModuleType
from typing import Any, TypeVar

import torch
from e3nn.util.codegen import CodeGenMixin
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_SHARED = (torch.jit.ScriptFunction, ModuleType)
_Network = TypeVar("_Network", bound=nn.Module)


class _Detaching(TorchFunctionMode):
    """Makes deepcopy copy computed tensors as detached clones."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), keywords: Any = None) -> Any:
        if function is not Tensor.__deepcopy__ or args[0].is_leaf:
            return function(*args, **(keywords or {}))
        x, memo = args
        return memo.setdefault(id(x), x.detach().clone())


def copy_of(network: _Network) -> _Network:
    """Copy a network with detached results, sharing scripted functions and Python modules.

    >>> layer = nn.Linear(2, 1)
    >>> layer.last = layer(torch.ones(2))
    >>> copy_of(layer).last.equal(layer.last), copy_of(layer).last.requires_grad
    (True, False)
    """
    shared = [x for m in network.modules() for x in vars(m).values() if isinstance(x, _SHARED)]
    with torch.no_grad(), _Detaching():  # with gradients on, parameters of a scripted copy are no leaves
        copied = deepcopy(network, {id(x): x for x in shared})
    for own, copy in zip(network.parameters(), copied.parameters(), strict=True):
        copy.requires_grad_(own.requires_grad)
    return copied


def copy_to_call(network: _Network) -> _Network:
    """Copy a network for calls only, sharing e3nn's compiled code."""
    memo: dict[int, Any] = {}
    for module in network.modules():
        if isinstance(module, CodeGenMixin):
            memo[id(module)] = object.__new__(type(module))
    for module in network.modules():
        if isinstance(module, CodeGenMixin):
            own = set(getattr(module, "__codegen__", ()))
            state = {**vars(module), "_modules": {k: x for k, x in module._modules.items() if k not in own}}
            vars(memo[id(module)]).update(deepcopy(state, memo))
            memo[id(module)]._modules.update({name: module._modules[name] for name in own})
    return deepcopy(network, memo)
