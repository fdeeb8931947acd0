"""Lives of networks: stock and converted twins, to which the same happens, and which must compute the same.

An attack is one of the `MOVES`, and then one comparison: of values and derivatives, of a call in one of several ways.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

import tpgen
from tests.attacks.calls import CALLS, Arguments, Subject, compare, size
from tests.attacks.counts import count
from tpgen.networks.conversion.swap import get_swap_mark
from tpgen.tools.verification.runs import save_and_load

LENGTH = 40  # attacks of a life
PROGRAMS = ("_compiled_main", "_compiled_main_left_right")  # e3nn's, which compute for stock alone


class Refused(Exception):
    """What stock does not take, a converted network need not."""


@dataclass
class Twins:
    """A stock network and its converted copy, to which the same happens."""

    subject: Subject
    random: Random
    stock: nn.Module
    converted: nn.Module
    dtype: torch.dtype = torch.float64
    rounded: bool = False  # whether stock's couplings have been in float32, where ours are exact again
    hooks: list[RemovableHandle] = field(default_factory=list)
    held: list[nn.Module] = field(default_factory=list)  # networks whose parameters the twins have

    @classmethod
    def of(cls, subject: Subject, random: Random) -> Twins:
        stock = subject.make(random)
        return cls(subject, random, stock, tpgen.convert(copy.deepcopy(stock)))

    @property
    def both(self) -> tuple[nn.Module, nn.Module]:
        return self.stock, self.converted

    @property
    def limit(self) -> float:
        """How far results may be apart, in parts of the largest of them."""
        if self.dtype == torch.float32:
            return 3e-3
        return 1e-4 if self.rounded else 1e-8

    def each(self, change: Callable[[nn.Module], nn.Module]) -> None:
        try:
            stock = change(self.stock)
        except Exception as error:
            raise Refused from error
        self.stock, self.converted = stock, change(self.converted)

    def arguments(self) -> Arguments:
        return self.subject.given(self.random).to(self.dtype)

    def hooked(self, add: Callable[[nn.Module], RemovableHandle]) -> None:
        """Put a hook on a module that both have."""
        plain = [
            name
            for name, m in self.stock.named_modules()
            if name and not isinstance(m, (torch.jit.ScriptModule, nn.ModuleList, nn.ParameterList, nn.ModuleDict))
            and not any(part in name for part in PROGRAMS)
        ]  # fmt: skip
        name = self.random.choice(plain)
        self.hooks += [add(network.get_submodule(name)) for network in self.both]


# --- moves ------------------------------------------------------------------------------------------------------------


def unhook(twins: Twins) -> None:
    for hook in twins.hooks:
        hook.remove()
    twins.hooks.clear()


def _copied(change: Callable[[nn.Module], nn.Module]) -> Callable[[Twins], None]:
    """A copy, whose hooks are copies as well: those that can be removed stay behind."""

    def copied(twins: Twins) -> None:
        unhook(twins)
        twins.each(change)

    return copied


def _tied(twins: Twins) -> None:
    """A copy with the same parameters, beside the network that it was made of."""
    unhook(twins)
    twins.held = [*twins.both]
    twins.each(lambda network: copy.deepcopy(network, {id(p): p for p in network.parameters()}))


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


def _written(write: Callable[[Tensor, Tensor], object]) -> Callable[[Twins], None]:
    """Parameters that are written in place, with the same noise for both."""

    def written(twins: Twins) -> None:
        seed = twins.random.randrange(1000)
        for network in twins.both:
            made = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for p in network.parameters():
                    write(p, torch.randn(p.shape, generator=made, dtype=torch.float64).to(p))

    return written


_step = _written(lambda p, noise: p.add_(noise, alpha=0.05))


def _averaged(p: Tensor, noise: Tensor) -> None:
    """As averages of weights are written, which torch does not count."""
    p.data.lerp_(noise, 0.05)


def _optimised(twins: Twins) -> None:
    given = twins.arguments()

    def step(network: nn.Module) -> nn.Module:
        moving = [p for p in network.parameters() if p.requires_grad]
        optimiser = torch.optim.SGD(moving, lr=1e-3, momentum=0.5)
        found = twins.subject.found(network, given.again())
        total = torch.stack([x.double().div(size(x)).sin().sum() for x in found]).sum()
        total.backward()
        nn.utils.clip_grad_norm_(moving, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        return network

    twins.each(step)


def _load(twins: Twins) -> None:
    """The weights of one in the other, each way."""
    _step(twins)
    state = {name: x.clone() for name, x in twins.stock.state_dict().items()}
    twins.converted.load_state_dict(state, strict=False)
    twins.stock.load_state_dict(twins.converted.state_dict(), strict=False)


def _emptied(twins: Twins) -> None:
    """Memory of converted modules taken anew, as where a network is built on ``meta``."""
    state = {name: x.clone() for name, x in twins.stock.state_dict().items()}
    for module in twins.converted.modules():
        if get_swap_mark(module) is not None:
            module.to_empty(device="cpu", recurse=False)
            with torch.no_grad():
                for held in (*module.buffers(recurse=False), *module.parameters(recurse=False)):
                    held.fill_(1)
    twins.converted.load_state_dict(state, strict=False)


def _renewed(twins: Twins) -> None:
    """Parameters that are other objects than before."""
    for network in twins.both:
        for module in network.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                for name, p in list(module.named_parameters(recurse=False)):
                    setattr(module, name, nn.Parameter(p.detach().clone(), p.requires_grad))


def _again(twins: Twins) -> None:
    """Restored and converted anew, with other options; hooks stay where they were."""
    strategy = twins.random.choice(["auto", "auto", "grouped", "unrolled", "einsum"])
    twins.converted = tpgen.convert(tpgen.restore(twins.converted), strategy=strategy)


def _scaled(module: nn.Module, given: Any, result: Any) -> Any:
    return 0.5 * result if isinstance(result, Tensor) else None


def _bent(module: nn.Module, given: tuple[Any, ...]) -> Any:
    bends = given and isinstance(given[0], Tensor) and given[0].is_floating_point()
    return (given[0] * 1.5, *given[1:]) if bends else None


def _damped(module: nn.Module, inwards: tuple, outwards: tuple) -> tuple:
    floats = [x is not None and x.is_floating_point() for x in inwards]  # an index of edges may be among them
    return tuple(0.5 * x if halved else x for x, halved in zip(inwards, floats, strict=True))


# name -> the move, and how often it is made: what takes long is rare
MOVES: dict[str, tuple[Callable[[Twins], None], int]] = {
    "nothing": (lambda twins: None, 60),
    "copy": (_copied(copy.deepcopy), 3),
    "file": (_copied(save_and_load), 3),
    "pickle": (_copied(lambda network: pickle.loads(pickle.dumps(network))), 3),
    "copy with the same parameters": (_tied, 3),
    "double": (_cast(torch.float64), 10),
    "float": (_cast(torch.float32), 4),
    "freeze": (_freeze, 15),
    "thaw": (lambda twins: twins.each(lambda network: network.requires_grad_(True)), 10),
    "step": (_step, 15),
    "average": (_written(_averaged), 15),
    "optimiser": (_optimised, 15),
    "load": (_load, 10),
    "empty memory": (_emptied, 10),
    "other parameters": (_renewed, 15),
    "train": (lambda twins: twins.each(nn.Module.train), 10),
    "eval": (lambda twins: twins.each(nn.Module.eval), 10),
    "hook": (lambda twins: twins.hooked(lambda m: m.register_forward_hook(_scaled)), 15),
    "hook before": (lambda twins: twins.hooked(lambda m: m.register_forward_pre_hook(_bent)), 15),
    "hook backwards": (lambda twins: twins.hooked(lambda m: m.register_full_backward_hook(_damped)), 5),
    "unhook": (unhook, 15),
    "restore": (_again, 6),
}


# --- lives ------------------------------------------------------------------------------------------------------------


def attack(twins: Twins, done: list[str]) -> bool:
    """One move and one comparison, which are told before they are made; whether stock could do as much."""
    random, subject = twins.random, twins.subject
    moves = {name: often for name, (_, often) in MOVES.items() if name not in subject.never}
    move = random.choices([*moves], [*moves.values()])[0]
    done.append(move)
    try:
        MOVES[move][0](twins)
    except Refused:
        return False
    calls = {name: often for name, (_, often) in CALLS.items() if name not in subject.never}
    call, order = random.choices([*calls], [*calls.values()])[0], random.choices(range(3), (4, 3, 2))[0]
    inputs, given = random.random() < 0.6, twins.arguments()
    done[-1] += f" ({call} of {given.size}, order {order}{' by inputs' * inputs})"
    if compare(subject, twins.both, given, call, order, inputs, twins.limit):
        return True
    unhook(twins)  # which may be what stock does not take
    return False


def live(subject: Subject, kind: str, attacks: int, seed: int) -> None:
    """Attack so many times, one pair of twins after the other, and count those that were compared.

    A fault says from which seed, and after which moves, it comes.
    """
    for start in range(0, attacks, LENGTH):
        life, done = f"{subject.name}, SEED={seed} + {start // LENGTH}", list[str]()
        random = Random(f"{subject.name} {seed + start // LENGTH}")
        torch.manual_seed(random.randrange(2**31))
        try:
            twins, compared = Twins.of(subject, random), 0
            for _ in range(min(LENGTH, attacks - start)):
                compared += attack(twins, done)
                if twins.rounded and twins.dtype == torch.float64 and random.random() < 0.2:
                    break  # stock's couplings are wrong from here on
        except Exception as error:
            raise AssertionError(f"{life}: {'; '.join(done)}: {error}") from error
        count(kind, compared)
