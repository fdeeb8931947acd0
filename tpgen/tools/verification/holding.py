"""Tensors that networks hold and use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tpgen.base._torch import pytree

AttributePath = tuple[str, ...]  # names of a module, of its attribute, and of what that holds
_DEEP = 6  # objects within objects
_REGISTERED = ("_parameters", "_buffers", "_modules")


def list_entries_and_attributes(value: Any) -> dict[Any, Any]:
    """Entries of a list or dict, or attributes of an object or module."""
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    if isinstance(value, nn.Module):
        registered = (getattr(value, name).items() for name in _REGISTERED)
        return list_unregistered_attributes(value) | {name: x for items in registered for name, x in items}
    return getattr(value, "__dict__", None) or {}


def list_unregistered_attributes(module: nn.Module) -> dict[str, Any]:
    """Attributes except parameters, buffers and submodules."""
    return {name: x for name, x in vars(module).items() if name not in _REGISTERED}


def find_unregistered_tensors(network: nn.Module) -> list[tuple[AttributePath, Tensor]]:
    """Find floating tensors outside parameters and buffers, with attribute paths."""
    held = {x.data_ptr() for x in (*network.parameters(), *network.buffers()) if x.numel()}
    seen = {id(module) for module in network.modules()}
    found: dict[int, tuple[AttributePath, Tensor]] = {}
    for path, module in network.named_modules():
        for name, value in list_unregistered_attributes(module).items():
            for place, x in _iterate_tensors_with_paths((path, name), value, seen):
                if x.is_floating_point() and x.numel() and x.data_ptr() not in held:
                    found.setdefault(id(x), (place, x))
    return list(found.values())


def _iterate_tensors_with_paths(
    path: AttributePath, value: Any, visited_ids: set[int]
) -> Iterator[tuple[AttributePath, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif len(path) <= _DEEP and id(value) not in visited_ids and _may_contain_network_tensors(value):
        visited_ids.add(id(value))
        for name, one in list_entries_and_attributes(value).items():
            yield from _iterate_tensors_with_paths((*path, str(name)), one, visited_ids)


def _may_contain_network_tensors(value: Any) -> bool:
    # Objects of torch's and ours, as graphs, optimizers and programs, hold the network itself.
    own = type(value).__module__.partition(".")[0] in ("torch", "tpgen") and not isinstance(value, nn.Module)
    return not own and not isinstance(value, (type, FunctionType, ModuleType))


class _UsedTensorRecorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[int] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), keywords: Any = None) -> Any:
        if getattr(function, "__name__", "") != "__get__":  # of a dtype, a device and the like
            self.ids |= {id(x) for x in pytree.tree_leaves((args, keywords)) if isinstance(x, Tensor)}
        return function(*args, **(keywords or {}))


def find_parameters_used_by_call(network: nn.Module, call: Callable[[], Any]) -> list[str]:
    """Names of the network's parameters that ``call()`` uses.

    >>> layer = nn.Linear(2, 2)
    >>> find_parameters_used_by_call(layer, lambda: layer.weight + 1)
    ['weight']
    """
    with _UsedTensorRecorder() as recorder:
        call()
    return [name for name, p in network.named_parameters() if id(p) in recorder.ids]
