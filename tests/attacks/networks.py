"""Whole networks of e3nn's modules beside their converted copies, and what happens to networks in their lives."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import torch
from e3nn import nn as e3nn_nn
from e3nn import o3
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

import tpgen
from tests.conversion.networks import Mixed, mixed_inputs
from tests.conversion.projects.mace_stand_in import Potential as StandIn
from tests.conversion.projects.mace_stand_in import arguments
from tests.verification.messages import Messages, skewed
from tpgen.demo.potential import Potential, atoms


class Gated(nn.Module):
    """Harmonics of vectors, a net of their lengths, a product, a gate, and a linear layer with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = e3nn_nn.Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
        self.harmonics = o3.SphericalHarmonics([0, 1], True)
        self.product = o3.FullyConnectedTensorProduct("3x0e", "0e+1o", self.gate.irreps_in, shared_weights=False)
        self.radial = e3nn_nn.FullyConnectedNet([1, 8, self.product.weight_numel], nn.functional.silu)
        self.readout = o3.Linear(self.gate.irreps_out, "2x0e+1o", biases=True)

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        weights = self.radial(vectors.square().sum(-1, keepdim=True))
        return self.readout(self.gate(self.product(x, self.harmonics(vectors), weights)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mixed": Mixed,
    "gated": Gated,
    "potential": lambda: Potential(channels=4),
    "messages": Messages,
    "stand-in of MACE": StandIn,
}
GIVEN: dict[str, Callable[[int], tuple[Any, ...]]] = {  # the arguments of a call of some size
    "mixed": lambda size: mixed_inputs(size),
    "gated": lambda size: tuple(torch.randn(size, 3, generator=torch.Generator().manual_seed(n)) for n in (1, 2)),
    "potential": lambda size: tuple(x[: size + 1] for x in atoms(2)),
    "messages": lambda size: _fewer(skewed(), size),
    "stand-in of MACE": lambda size: arguments(size + 1, 3 * size),
}


def _fewer(found: tuple[Tensor, ...], size: int) -> tuple[Tensor, ...]:
    """A part of the edges."""
    positions, cell, units, ends, species = found
    return positions, cell, units[::size], ends[:, ::size], species


@cache
def _made(name: str) -> nn.Module:
    """Made in double precision, so that stock's couplings are exact."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return NETWORKS[name]()
    finally:
        torch.set_default_dtype(before)


PROGRAMS = ("_compiled_main", "_compiled_main_left_right")  # e3nn's, which compute for stock alone


@dataclass
class Twins:
    """A stock network and its converted copy, to which the same happens."""

    stock: nn.Module
    converted: nn.Module
    random: Random
    dtype: torch.dtype = torch.float64
    rounded: bool = False  # whether stock's couplings have been in float32, where ours are exact again
    hooks: list[RemovableHandle] = field(default_factory=list)

    @property
    def both(self) -> tuple[nn.Module, nn.Module]:
        return self.stock, self.converted

    def each(self, change: Callable[[nn.Module], nn.Module]) -> None:
        self.stock, self.converted = change(self.stock), change(self.converted)

    @property
    def limit(self) -> float:
        if self.dtype == torch.float32:
            return 3e-3
        return 1e-4 if self.rounded else 1e-8

    def module(self) -> str:
        """The name of a module that hooks can stand on."""
        plain = [
            name
            for name, m in self.stock.named_modules()
            if name and not isinstance(m, torch.jit.ScriptModule) and not any(part in name for part in PROGRAMS)
            and not isinstance(m, (nn.ModuleList, nn.ParameterList))
        ]  # fmt: skip
        return self.random.choice(plain)

    def hooked(self, add: Callable[[nn.Module], RemovableHandle]) -> None:
        name = self.module()
        self.hooks += [add(network.get_submodule(name)) for network in self.both]


def twins(name: str, seed: int) -> Twins:
    stock = copy.deepcopy(_made(name))
    return Twins(stock, tpgen.convert(copy.deepcopy(stock)), Random(seed))


def _file(network: nn.Module) -> nn.Module:
    held = io.BytesIO()
    torch.save(network, held)
    held.seek(0)
    return torch.load(held, weights_only=False)


def _cast(dtype: torch.dtype) -> Callable[[Twins], None]:
    def cast(twins: Twins) -> None:
        twins.each(lambda network: network.to(dtype))
        twins.rounded |= dtype == torch.float32
        twins.dtype = dtype

    return cast


def _freeze(twins: Twins) -> None:
    for (_, one), (_, other) in zip(*(network.named_parameters() for network in twins.both), strict=True):
        frozen = twins.random.random() < 0.5
        one.requires_grad_(not frozen)
        other.requires_grad_(not frozen)


def _step(twins: Twins) -> None:
    """Parameters that are changed in place, as optimisers do."""
    seed = twins.random.randrange(1000)
    for network in twins.both:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator).to(parameter))


def _load(twins: Twins) -> None:
    """The weights of one in the other, each way."""
    _step(twins)
    state = {name: x.clone() for name, x in twins.stock.state_dict().items()}
    twins.converted.load_state_dict(state, strict=False)
    twins.stock.load_state_dict(twins.converted.state_dict(), strict=False)


def _again(twins: Twins) -> None:
    """Restored and converted anew; hooks stay where they were."""
    twins.converted = tpgen.convert(tpgen.restore(twins.converted))


def _scaled(module: nn.Module, given: Any, result: Any) -> Any:
    return 0.5 * result if isinstance(result, Tensor) else None


def _bent(module: nn.Module, given: tuple[Any, ...]) -> Any:
    return (given[0] * 1.5, *given[1:]) if isinstance(given[0], Tensor) and given[0].is_floating_point() else None


def _unhook(twins: Twins) -> None:
    for hook in twins.hooks:
        hook.remove()
    twins.hooks.clear()


def _copied(twins: Twins) -> None:
    """A copy, whose hooks are copies as well: those that can be removed stay behind."""
    _unhook(twins)
    twins.each(copy.deepcopy)


def _filed(twins: Twins) -> None:
    _unhook(twins)
    twins.each(_file)


def _renewed(twins: Twins) -> None:
    """Parameters that are other objects than before."""
    for network in twins.both:
        for module in network.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                for name, p in list(module.named_parameters(recurse=False)):
                    setattr(module, name, nn.Parameter(p.detach().clone(), p.requires_grad))


OPERATIONS: dict[str, Callable[[Twins], None]] = {
    "copy": _copied,
    "file": _filed,
    "double": _cast(torch.float64),
    "float": _cast(torch.float32),
    "freeze": _freeze,
    "thaw": lambda twins: twins.each(lambda network: network.requires_grad_(True)),
    "step": _step,
    "load": _load,
    "other parameters": _renewed,
    "train": lambda twins: twins.each(nn.Module.train),
    "eval": lambda twins: twins.each(nn.Module.eval),
    "hook": lambda twins: twins.hooked(lambda m: m.register_forward_hook(_scaled)),
    "hook before": lambda twins: twins.hooked(lambda m: m.register_forward_pre_hook(_bent)),
    "unhook": _unhook,
    "restore": _again,
}


# --- how networks are called ------------------------------------------------------------------------------------------

Called = Callable[[nn.Module, tuple[Any, ...]], Any]


def _functional(network: nn.Module, given: tuple[Any, ...]) -> Any:
    """With other values of its parameters, without a change."""
    return torch.func.functional_call(network, {n: 0.9 * p for n, p in network.named_parameters()}, given)


def _mapped(network: nn.Module, given: tuple[Any, ...]) -> Any:
    """Once for each of two systems, which differ in their floating tensors."""
    axes = tuple(0 if isinstance(x, Tensor) and x.is_floating_point() else None for x in given)
    both = [torch.stack([x, 1.1 * x]) if axis == 0 else x for x, axis in zip(given, axes, strict=True)]
    return torch.func.vmap(network, in_dims=axes)(*both)


def _along(network: nn.Module, given: tuple[Any, ...]) -> Any:
    """With a derivative forwards."""
    places = [n for n, x in enumerate(given) if isinstance(x, Tensor) and x.is_floating_point()]

    def function(*leaves: Tensor) -> Any:
        chosen = list(given)
        for place, leaf in zip(places, leaves, strict=True):
            chosen[place] = leaf
        return network(*chosen)

    leaves = tuple(given[place] for place in places)
    return torch.func.jvp(function, leaves, tuple(x.cos() for x in leaves))


CALLS: dict[str, Called] = {
    "plain": lambda network, given: network(*given),
    "functional": _functional,
    "vmap": _mapped,
    "forwards": _along,
}
