"""Calls and derivatives of networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._torch import pytree
from tpgen.base.errors import BackendError, TpgenError
from tpgen.networks.conversion.notices import suppress_slow_path_warnings
from tpgen.networks.conversion.swap import get_swap_mark
from tpgen.networks.trial import is_floating, restore_module_after

NamedTensors = dict[str, Tensor]
OUTPUTS, DERIVATIVES = "outputs", ("gradients", "second derivatives")


class CallError(TpgenError):
    """A network cannot be called with some inputs."""


class GraphError(TpgenError):
    """A network cannot be differentiated with some inputs."""


@contextmanager
def blame_conversion(network: nn.Module) -> Iterator[None]:
    """Turn errors inside the context into a `TpgenError` that blames the conversion."""
    try:
        yield
    except (CallError, GraphError) as error:
        cause = error.__cause__ or error
        module = _find_converted_module_name_in_traceback(network, cause)
        where, leave = (f" in {module!r}", f"leave the module out, keep={module!r}") if module else ("", "leave it")
        raise TpgenError(
            f"the conversion is at fault{where} ({_describe_error(cause)}): the stock network takes these inputs, and "
            f"the converted one does not. The network is as it was; {leave}, and please report it"
        ) from cause


def _find_converted_module_name_in_traceback(network: nn.Module, error: BaseException) -> str:
    names = {id(module): name for name, module in network.named_modules() if get_swap_mark(module) is not None}
    found, trace = "", error.__traceback__
    while trace is not None:
        found = names.get(id(trace.tb_frame.f_locals.get("self")), found)
        trace = trace.tb_next
    return found


def _describe_error(error: BaseException) -> str:
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def call_network(network: nn.Module, arguments: list[Any]) -> Any:
    """``network(*arguments)``; raises `BackendError` if a kernel fails, else `CallError`."""
    try:
        return network(*arguments)
    except BackendError as error:
        raise BackendError(
            f"a kernel could not be built or run, which is the fault of no input and of no network: {error}"
        ) from error
    except Exception as error:
        said = f"the stock network cannot be called with these inputs ({_describe_error(error)})"
        if opaque := _describe_argument_with_hidden_tensors(arguments):
            raise CallError(
                f"{said}: {opaque} could not be cast. Give its tensors in a dict, as in `batch.to_dict()`"
            ) from error
        raise CallError(
            f"{said}: give the arguments of a call in a tuple, with requires_grad where the network differentiates by "
            "them; prove calls it in float64, so build it in float64 where it casts to a dtype of its own"
        ) from error


def _describe_argument_with_hidden_tensors(arguments: Sequence[Any]) -> str:
    # the first argument whose tensors are out of reach, in an object that is no list or dict; empty where none is
    for number, argument in enumerate(arguments):
        for leaf in pytree.tree_leaves(argument):
            if not isinstance(leaf, Tensor | nn.Module) and _has_tensors_in_attributes(leaf):
                return f"the tensors of argument {number} (a {type(leaf).__name__})"
    return ""


def _has_tensors_in_attributes(value: Any) -> bool:
    # among the attributes of an object, or in one more object, as graphs of torch_geometric keep them in a store
    held = list(getattr(value, "__dict__", {}).values())
    held += [vars(one) for one in held if hasattr(one, "__dict__")]
    return any(isinstance(one, Tensor) for one in pytree.tree_leaves(held))


def detach_inputs(inputs: Sequence[Any], all_require_grad: bool = False) -> list[Any]:
    """Detached inputs, which require gradients as before, or all floats if ``all_require_grad``."""
    return pytree.tree_map(
        lambda a: (
            a.detach().requires_grad_(is_floating(a) and (all_require_grad or a.requires_grad))
            if isinstance(a, Tensor)
            else a
        ),
        list(inputs),
    )


def call_and_compute_gradients(network: nn.Module, inputs: Sequence[Any]) -> None:
    """Call a network, and compute gradients by parameters and inputs that require any, else by inputs."""
    wanted: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
    given = detach_inputs(inputs)
    if not wanted and not _list_tensors_requiring_grad(given):
        given = detach_inputs(inputs, all_require_grad=True)
    wanted += _list_tensors_requiring_grad(given)  # before a call that writes into a dict
    live = [
        leaf for leaf in _name_floating_leaves("output", call_network(network, given)).values() if leaf.requires_grad
    ]
    if live and wanted:
        _compute_gradients_or_graph_error(live, wanted, [torch.cos(leaf.detach()) for leaf in live], create_graph=False)


def _list_tensors_requiring_grad(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor) and leaf.requires_grad]


def compute_outputs(network: nn.Module, inputs: Sequence[Any]) -> NamedTensors:
    """Outputs by name, of inputs cast to float64."""
    return compute_outputs_and_derivatives(network, inputs, by_inputs=False, orders=0)[0]


def compute_derivatives(network: nn.Module, inputs: Sequence[Any]) -> dict[str, NamedTensors]:
    """Outputs, gradients and second derivatives of a call, each by name."""
    # twice: modules may compute in another way if an input needs no gradient
    outputs, *found = compute_outputs_and_derivatives(network, inputs, by_inputs=False)
    with suppress_slow_path_warnings():
        _, *of_inputs = compute_outputs_and_derivatives(network, inputs, by_inputs=True)
    both = [a | {f"{name}, inputs tracked": g for name, g in b.items()} for a, b in zip(found, of_inputs, strict=True)]
    return dict(zip((OUTPUTS, *DERIVATIVES), (outputs, *both), strict=True))


def compute_outputs_and_derivatives(
    network: nn.Module, inputs: Sequence[Any], by_inputs: bool, orders: int = 2
) -> list[NamedTensors]:
    """Outputs, then gradients of each order, by parameters and, if ``by_inputs``, inputs."""
    with restore_module_after(network):
        torch.manual_seed(0)  # the same masks of dropout in both
        given = pytree.tree_map(lambda a: _cast_leaf_to_float64(a, by_inputs) if is_floating(a) else a, list(inputs))
        wanted: NamedTensors = {name: p for name, p in network.named_parameters() if p.requires_grad}
        wanted |= _name_floating_leaves("input", given) if by_inputs else {}
        outputs = _name_floating_leaves("output", call_network(network, given))
        if not outputs:
            raise TpgenError(
                "the network returns no floating tensors that prove can see: it must return a tensor, or tuples, lists "
                "and dicts of some (register another container with torch.utils._pytree)"
            )
        found = [outputs]
        for _ in range(orders):
            found.append(_differentiate_random_combination(found[-1], wanted))
    return [{name: value.detach() for name, value in named.items()} for named in found]


def _cast_leaf_to_float64(value: Tensor, requires_grad: bool) -> Tensor:
    return value.detach().to(torch.float64, copy=True).requires_grad_(requires_grad or value.requires_grad)


def _name_floating_leaves(prefix: str, values: Any) -> NamedTensors:
    leaves = pytree.tree_flatten_with_path(values)[0]
    return {prefix + pytree.keystr(path): leaf for path, leaf in leaves if is_floating(leaf)}


def _differentiate_random_combination(outputs: NamedTensors, variables: NamedTensors) -> NamedTensors:
    live = [out for out in outputs.values() if out.requires_grad]
    if not live or not variables:
        return {}
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(out.shape, generator=generator, dtype=out.dtype).to(out.device) for out in live]
    found = _compute_gradients_or_graph_error(live, list(variables.values()), directions, create_graph=True)
    return {name: g for name, g in zip(variables, found, strict=True) if g is not None}


def _compute_gradients_or_graph_error(
    outputs: Sequence[Tensor], variables: Sequence[Tensor], cotangents: Sequence[Tensor], create_graph: bool
) -> Sequence[Tensor | None]:
    differentiate: Callable[..., Sequence[Tensor | None]] = torch.autograd.grad
    try:
        return differentiate(outputs, variables, cotangents, create_graph=create_graph, allow_unused=True)
    except BackendError:
        raise
    except RuntimeError as error:
        raise GraphError(
            f"the stock network cannot be differentiated with these inputs ({str(error).splitlines()[0]}): give the "
            "inputs of a training step and call network.train(); where an argument of forward keeps the graph of its "
            "own forces, give it too (MACE: `training=True`, the second)"
        ) from error
