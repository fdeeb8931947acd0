"""Arguments of a calculator's networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from torch import Tensor, nn

from tpgen.base._torch import pytree
from tpgen.base.errors import InputError, a_kind, first_line
from tpgen.networks.bypass import bypassing_programs
from tpgen.networks.holders import calculators_in


class _GraphTensorsAsAttributes(dict[str, Any]):
    """A graph object's tensors, also readable as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


pytree.register_pytree_node(
    _GraphTensorsAsAttributes,
    lambda graph: (list(graph.values()), tuple(graph)),
    lambda values, names: _GraphTensorsAsAttributes(zip(names, values, strict=True)),
    flatten_with_keys_fn=lambda graph: ([(pytree.MappingKey(n), x) for n, x in graph.items()], tuple(graph)),
)


def collect_forward_arguments(
    option_name: str, calculator: Any, networks: Sequence[nn.Module], arguments_or_atoms: Any
) -> list[Any]:
    """Arguments of ``forward`` per network: as given, or recorded as a calculator computes given atoms."""
    get_property = getattr(calculator, "get_property", None)
    if arguments_or_atoms is None or isinstance(arguments_or_atoms, Sequence) or not callable(get_property):
        return [arguments_or_atoms] * len(networks)
    calls: dict[nn.Module, tuple[Any, ...]] = {}

    def record_first_call(network: nn.Module, args: Any, keywords: Any) -> None:
        calls.setdefault(network, _bind_and_clone_arguments(option_name, network, args, keywords))

    _clear_cached_calculator_results(calculator)
    hooks = [network.register_forward_pre_hook(record_first_call, with_kwargs=True) for network in networks]
    try:
        with bypassing_programs():
            get_property("energy", arguments_or_atoms)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{option_name}: {type(calculator).__name__} cannot compute {a_kind(arguments_or_atoms)} "
            f"({first_line(error)}): give atoms that it takes, or the arguments of a call of its network as a tuple"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
        _clear_cached_calculator_results(calculator)
    for network in networks:
        if network not in calls:
            raise InputError(
                f"{option_name}: {type(calculator).__name__} computes {a_kind(arguments_or_atoms)} without a call of "
                f"its {type(network).__name__}: give the arguments of a call as a tuple"
            )
    return [calls[network] for network in networks]


def _clear_cached_calculator_results(calculator: Any) -> None:
    # a sum of calculators computes nothing twice
    for one in calculators_in(calculator):
        if isinstance(getattr(one, "results", None), dict):
            one.results = {}


def _bind_and_clone_arguments(option_name: str, network: nn.Module, args: Any, kwargs: Any) -> tuple[Any, ...]:
    call = signature(network.forward).bind(*args, **kwargs)
    call.apply_defaults()
    if alone := kwargs.keys() & call.kwargs.keys():
        raise InputError(f"{option_name}: {type(network).__name__} takes {', '.join(sorted(alone))} by keyword alone")
    if call.arguments.get("training") is False:  # else the graph of forces is gone
        call.arguments["training"] = True
    return pytree.tree_map(_clone_leaf_tensors, call.args)


def _clone_leaf_tensors(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    to_dict = getattr(leaf, "to_dict", None)  # of torch_geometric's graphs
    return (
        pytree.tree_map(_clone_leaf_tensors, _GraphTensorsAsAttributes(to_dict()))
        if callable(to_dict) and not isinstance(leaf, Mapping)
        else leaf
    )
