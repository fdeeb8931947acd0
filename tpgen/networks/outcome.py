"""Results and side effects of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from tpgen.base._torch import pytree
from tpgen.base.errors import DeployError
from tpgen.networks.bypass import bypassing_programs
from tpgen.networks.objects import objects_with_dicts
from tpgen.networks.reads import FIXED
from tpgen.networks.results import Given, flatten, unflatten
from tpgen.networks.signature import ParameterSlots, Signature
from tpgen.networks.step_trace import Evaluate

_Tables = list[tuple[dict[str, Any], dict[str, Any]]]  # attributes of modules, now and before
_CONTAINERS = list, dict
_OURS = (*FIXED, "tpgen.networks.")


def outcome_of(call: Callable[..., Any], args: tuple, options: dict[str, Any]) -> tuple[Any, tuple]:
    """Call; return the result, and an outcome of result and side effects for `apply_outcome`.

    >>> def add(data):
    ...     data["y"] = 2 * data["x"]
    ...     return data
    >>> given = {"x": torch.ones(1)}
    >>> _, outcome = outcome_of(add, (given,), {})
    >>> outcome
    (0, None, [{'y': tensor([2.])}], [()], {})
    """
    before = StateBefore.copy_state(call, args, options)
    found = call(*args, **options)
    return found, before.collect_outcome(found)


@dataclass(frozen=True)
class StateBefore:
    """Contents of a call's arguments, and attributes of a network's modules, before the call."""

    held: list[tuple[Any, dict[str, Any]]]
    contents: list[dict[str, Any]]
    places: dict[int, Given]
    attributes: _Tables

    @staticmethod
    def copy_state(call: Any, args: tuple, options: dict[str, Any]) -> StateBefore:
        """Copy arguments' contents and modules' attributes."""
        held, (_, tensors) = objects_with_dicts(args, options), Signature.split_call(args, options)
        parameters = ParameterSlots(call, gradients=False).tensors() if isinstance(call, nn.Module) else []
        places = {id(x): Given(n) for n, x in enumerate([*parameters, *tensors])}
        return StateBefore(held, [dict(names) for _, names in held], places, _attributes_of_modules_and_copies(call))

    def collect_outcome(self, result: Any) -> tuple:
        """The call's result and side effects for `apply_outcome`."""
        whole = next((n for n, (x, _) in enumerate(self.held) if x is result), None)
        changes = [_changed_entries(now, was) for (_, now), was in zip(self.held, self.contents, strict=True)]
        pairs = zip(self.held, self.contents, strict=True)
        lost = [tuple(name for name in was if name not in now) for (_, now), was in pairs]
        within = (None if whole is not None else result, *changes)
        inner = [x for x, _ in objects_with_dicts(within, {}) if not isinstance(x, dict)]
        if any(x is one for x in inner for one, _ in self.held):
            raise DeployError("the network gives an object back that it was given, inside of another value")
        written = {n: _changed_entries(*of) for n, of in enumerate(self.attributes)}
        aside = {n: names for n, names in written.items() if names}
        leaves, spec = flatten((whole, None if whole is not None else result, changes, lost, aside))
        marked = [self.places.get(id(x), x) if isinstance(x, Tensor) else x for x in leaves]
        return unflatten(marked, spec)


def sources_of(network: nn.Module, tensors: Sequence[Tensor], leaves: Sequence[Any] = ()) -> list[Tensor]:
    """Sources of gradients: parameters, buffers, tensors, and own leaves."""
    return [*ParameterSlots(network, gradients=True).tensors(), *tensors, *own_leaves(leaves)]


def own_leaves(leaves: Sequence[Any]) -> list[Tensor]:
    """Select leaves that require gradients themselves."""
    return [x for x in leaves if isinstance(x, Tensor) and x.requires_grad and x.grad_fn is None]


def _modules_of_user_code(call: Any) -> list[nn.Module]:
    # modules whose attributes are no caches of tpgen's
    modules = call.modules() if isinstance(call, nn.Module) else ()
    return [module for module in modules if not type(module).__module__.startswith(_OURS)]


def _attributes_of_modules_and_copies(call: Any) -> _Tables:
    return [(vars(module), dict(vars(module))) for module in _modules_of_user_code(call)]


@contextmanager
def restored_attributes(network: nn.Module) -> Iterator[None]:
    """Undo the block's writes into attributes, lists and dicts of modules."""
    tables = _attributes_of_modules_and_copies(network)
    containers = [(x, x.copy()) for _, was in tables for x in was.values() if type(x) in _CONTAINERS]
    try:
        yield
    finally:
        for now, was in (*tables, *containers):
            if isinstance(now, dict):
                for name in now.keys() - was.keys():
                    del now[name]
                now.update(_changed_entries(was, now))
            elif len(now) != len(was) or not all(map(is_, now, was)):
                now.clear()
                now += was


def _changed_entries(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in now.items() if name not in before or before[name] is not x}


def apply_outcome(outcome: tuple, args: tuple, options: dict[str, Any], network: Any = None) -> Any:
    """Repeat an outcome's side effects on arguments and ``network``; return the result."""
    whole, found, changes, lost, aside = outcome
    if aside:
        modules = _modules_of_user_code(network)
        for n, names in aside.items():
            vars(modules[n]).update(names)
    if whole is not None or any(changes) or any(lost):
        held = objects_with_dicts(args, options)
        for (_, now), change, names in zip(held, changes, lost, strict=True):
            now.update(change)
            for name in names:
                del now[name]
        if whole is not None:
            return held[whole][0]
    return found


@dataclass(frozen=True)
class LeavesWithGraphs:
    """Numbers of an outcome's leaves, and of inputs, that require gradients."""

    spec: pytree.TreeSpec
    led: tuple[int, ...]  # leaves that were computed of what requires a gradient
    asking: tuple[int, ...]  # leaves that require one themselves
    asked: tuple[int, ...]  # tensors of a call that the network lets require one
    used: frozenset[int]  # sources that leaves were computed of
    alike: bool  # whether all leaves were computed of the same sources
    within: tuple[int, ...]  # leaves that others were computed of

    @staticmethod
    def classify_leaves(
        network: nn.Module, outcome: tuple, required_grad: Sequence[bool], tensors: Sequence[Tensor]
    ) -> LeavesWithGraphs:
        """Classify leaves; ``required_grad`` holds the tensors' flags before the call."""
        leaves, spec = flatten(outcome)
        live = {n: x for n, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad}
        nodes = {n: set(nodes_behind(x.grad_fn)) for n, x in live.items() if x.grad_fn is not None}
        of_each = [{id(getattr(node, "variable", None)) for node in of} for of in nodes.values()]
        sources = sources_of(network, tensors, leaves)
        used = [frozenset(n for n, x in enumerate(sources) if id(x) in of) for of in of_each]
        return LeavesWithGraphs(
            spec,
            tuple(nodes),
            tuple(n for n, x in live.items() if x.grad_fn is None),
            tuple(
                n
                for n, (x, asks) in enumerate(zip(tensors, required_grad, strict=True))
                if x.requires_grad and not asks
            ),
            frozenset().union(*used),
            len({*used}) < 2,
            tuple(n for n in nodes if any(live[n].grad_fn in of for of in nodes.values())),
        )


def nodes_behind(node: Any, ends: Iterable[Any] = ()) -> Iterator[Any]:
    """Autograd nodes that a pass through ``node`` reaches before any of the ``ends``."""
    seen, pending = {node, *ends}, [node]
    while pending:
        for found, _ in pending.pop().next_functions:
            if found is not None and found not in seen:
                seen.add(found)
                pending.append(found)
                yield found


def evaluation(network: nn.Module, grad: bool) -> Evaluate:
    """Make a function from the network's arguments to the outcome."""

    def call_for_outcome(*args: Any, **options: Any) -> tuple:
        with torch.set_grad_enabled(grad), bypassing_programs():
            return outcome_of(network, args, options)[1]

    return call_for_outcome
