"""Copies of any network, also of one that keeps results of its last call."""

from __future__ import annotations

from copy import deepcopy
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_SHARED = (torch.jit.ScriptFunction, ModuleType)
_Network = TypeVar("_Network", bound=nn.Module)


class _Detaching(TorchFunctionMode):
    """Copy the values of tensors that torch does not copy: those that a call has computed, which have a graph."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), keywords: Any = None) -> Any:
        if function is not Tensor.__deepcopy__ or args[0].is_leaf:
            return function(*args, **(keywords or {}))
        x, memo = args
        return memo.setdefault(id(x), x.detach().clone())


def copy_of(network: _Network) -> _Network:
    """A copy of a network, in which results that it keeps have no graph.

    Scripted functions and modules of Python, which nobody can copy, are the network's own.

    >>> layer = nn.Linear(2, 1)
    >>> layer.last = layer(torch.ones(2))
    >>> copy_of(layer).last.equal(layer.last), copy_of(layer).last.requires_grad
    (True, False)
    """
    shared = [x for m in network.modules() for x in vars(m).values() if isinstance(x, _SHARED)]
    with _Detaching():
        return deepcopy(network, {id(x): x for x in shared})
