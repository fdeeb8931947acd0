"""Calls of a stock network and of its converted twin, and the comparison of all that comes out of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tpgen
from tpgen.base._torch import pytree
from tpgen.base.errors import DeployError


@dataclass(frozen=True)
class Arguments:
    """What a call is given; its size is said where it fails."""

    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    size: int = 0

    def to(self, dtype: torch.dtype) -> Arguments:
        return self._mapped(lambda x: x.to(dtype) if x.is_floating_point() else x)

    def again(self) -> Arguments:
        """The same values, of which nobody has a gradient."""
        return self._mapped(lambda x: x.detach().clone().requires_grad_(x.requires_grad))

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Arguments:
        made = pytree.tree_map(lambda x: change(x) if isinstance(x, Tensor) else x, self.args)
        return replace(self, args=made)


@dataclass(frozen=True)
class Subject:
    """A kind of networks: random ones in double precision, random arguments, and which results are to be compared."""

    name: str
    make: Callable[[Random], nn.Module]
    given: Callable[[Random], Arguments]
    outputs: Sequence[str] = ()  # of a dict; all, where none is named
    never: Sequence[str] = ()  # moves and calls that such networks do not take

    def found(self, network: nn.Module, given: Arguments) -> list[Tensor]:
        return self.tensors(network(*given.args, **given.options))

    def tensors(self, found: Any) -> list[Tensor]:
        return tensors([found[name] for name in self.outputs] if self.outputs else found)


def tensors(found: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(found) if isinstance(x, Tensor) and x.is_floating_point()]


# --- ways to call -----------------------------------------------------------------------------------------------------


def _plain(network: nn.Module, given: Arguments) -> Any:
    return network(*given.args, **given.options)


def _functional(network: nn.Module, given: Arguments) -> Any:
    """With other values of its parameters, without a change; of a module with two names torch would keep them."""
    values = {n: 0.9 * p for n, p in network.named_parameters()}
    return torch.func.functional_call(network, values, given.args, given.options, tie_weights=False)


def _mapped(network: nn.Module, given: Arguments) -> Any:
    """Once for each of two systems, which differ in their floating tensors."""
    axes = tuple(0 if isinstance(x, Tensor) and x.is_floating_point() else None for x in given.args)
    both = [torch.stack([x, 1.1 * x]) if axis == 0 else x for x, axis in zip(given.args, axes, strict=True)]
    return torch.func.vmap(network, in_dims=axes)(*both)


def _of_leaves(network: nn.Module, given: Arguments) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """The network as a function of its floating tensors."""
    places = [n for n, x in enumerate(given.args) if isinstance(x, Tensor) and x.is_floating_point()]

    def function(*leaves: Tensor) -> Any:
        chosen = list(given.args)
        for place, leaf in zip(places, leaves, strict=True):
            chosen[place] = leaf
        return network(*chosen)

    return function, tuple(given.args[place] for place in places)


def _along(network: nn.Module, given: Arguments) -> Any:
    """With a derivative forwards."""
    function, leaves = _of_leaves(network, given)
    return torch.func.jvp(function, leaves, tuple(x.cos() for x in leaves))


def _back(network: nn.Module, given: Arguments) -> Any:
    """With a derivative backwards by torch.func."""
    function, leaves = _of_leaves(network, given)
    found, back = torch.func.vjp(function, *leaves)
    return found, back(pytree.tree_map(torch.cos, found))


def _rows(network: nn.Module, given: Arguments) -> Any:
    """All rows of a Jacobian in one call, as the older vmap has them."""
    function, leaves = _of_leaves(network, given)
    leaves = tuple(x.detach().requires_grad_() for x in leaves)
    found = torch.cat([x.flatten() for x in tensors(function(*leaves))])
    rows = torch.eye(len(found), dtype=found.dtype)
    return torch.autograd.grad(found, leaves, rows, is_grads_batched=True, allow_unused=True)


def _checkpointed(network: nn.Module, given: Arguments) -> Any:
    return checkpoint(network, *given.args, use_reentrant=False, **given.options)


def _inferred(network: nn.Module, given: Arguments) -> Any:
    with torch.inference_mode():
        return _plain(network, given)


def _without_gradients(network: nn.Module, given: Arguments) -> Any:
    with torch.no_grad():
        return _plain(network, given)


def _compiled(network: nn.Module, given: Arguments) -> Any:
    torch.compiler.reset()
    return torch.compile(network, backend="aot_eager")(*given.args, **given.options)


def _stepped(network: nn.Module, given: Arguments) -> Any:
    """As one program, which is built for one call and computes another."""
    step = tpgen.compile_step(network)
    step(*given.again().args, **given.options)
    with torch.no_grad():
        for p in network.parameters():  # are read at each call
            p.mul_(1.25)
    found = step(*given.args, **given.options)
    with torch.no_grad():
        for p in network.parameters():
            p.div_(1.25)
    return found


def _stepped_by_stock(network: nn.Module, given: Arguments) -> Any:
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(1.25)
    found = pytree.tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, _plain(network, given))
    with torch.no_grad():
        for p in network.parameters():
            p.div_(1.25)
    return found


def _loss(network: nn.Module, *args: Any, **options: Any) -> Tensor:
    found = tensors(network(*args, **options))
    return torch.stack([(x / (1 + x.square())).mean() for x in found]).sum()  # of large numbers, too, no noise


def _trained(network: nn.Module, given: Arguments) -> Any:
    """A loss and its gradients as one program."""
    return _gradients(network, tpgen.compile_training(network, _loss)(*given.args, **given.options))


def _trained_by_stock(network: nn.Module, given: Arguments) -> Any:
    return _gradients(network, _loss(network, *given.args, **given.options))


def _gradients(network: nn.Module, loss: Tensor) -> list[Tensor]:
    loss.backward()
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in network.parameters()]
    network.zero_grad()
    return [loss.detach(), *found]


Called = Callable[[nn.Module, Arguments], Any]
# name -> the call, and how often it is made: a compilation takes long
CALLS: dict[str, tuple[Called, float]] = {
    "plain": (_plain, 600),
    "functional": (_functional, 60),
    "vmap": (_mapped, 40),
    "forwards": (_along, 30),
    "func.vjp": (_back, 40),
    "batched rows": (_rows, 10),
    "checkpoint": (_checkpointed, 40),
    "inference": (_inferred, 30),
    "no_grad": (_without_gradients, 30),
    "torch.compile": (_compiled, 0.5),
    "compile_step": (_stepped, 0.25),
    "compile_training": (_trained, 0.25),
}
BY_STOCK: dict[str, Called] = {  # of programs: they are compared with what stock computes without
    "torch.compile": _plain,
    "compile_step": _stepped_by_stock,
    "compile_training": _trained_by_stock,
}
NUMBERS = ("compile_step", "compile_training")  # without derivatives
# decided by values, as it says; torch's limit, which a network with forces inside meets at first derivatives
BEYOND = {DeployError: "", RuntimeError: "torch.compile with aot_autograd does not currently support double backward"}


# --- comparison -------------------------------------------------------------------------------------------------------


def derivatives(
    subject: Subject, network: nn.Module, call: Called, given: Arguments, order: int, inputs: bool
) -> list[Tensor]:
    """Results, and gradients of sums of sines by inputs and parameters, up to an order.

    Sines of large numbers would make large errors of rounding ones.
    """
    leaves = [x.requires_grad_() for x in tensors(given.args)] if inputs else []
    leaves += [p for p in network.parameters() if p.requires_grad]
    result = call(network, given)
    last = subject.tensors(result) if isinstance(result, dict) else tensors(result)
    found = last
    for _ in range(order):
        total = torch.stack([x.double().div(size(x)).sin().sum() for x in last]).sum()
        if not total.requires_grad or not leaves:
            break
        made = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        last = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, made, strict=True)]
        found = [*found, *last]
    return [x.detach() for x in found]


def size(x: Tensor) -> float:
    return max(1.0, float(x.detach().nan_to_num().abs().max())) if x.numel() else 1.0


def compare(
    subject: Subject, both: Sequence[nn.Module], given: Arguments, call: str, order: int, inputs: bool, limit: float
) -> bool:
    """Whether stock takes the call; what it gives then, the converted network gives as well."""
    order, inputs = (0, False) if call in NUMBERS else (order, inputs)
    function = CALLS[call][0]
    try:
        wanted = derivatives(subject, both[0], BY_STOCK.get(call, function), given.again(), order, inputs)
    except Exception:
        return False
    try:
        got = derivatives(subject, both[1], function, given.again(), order, inputs)
    except tuple(BEYOND) as error:
        if not any(isinstance(error, kind) and words in str(error) for kind, words in BEYOND.items()):
            raise
        return False
    assert len(got) == len(wanted)
    for n, (one, other) in enumerate(zip(got, wanted, strict=True)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), n
        torch.testing.assert_close(one, other, rtol=0.0, atol=limit * size(other), equal_nan=True)
    return True
