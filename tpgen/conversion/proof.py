"""Stock against converted: are they equal, and how long do they take?

Equality is asked in float64, of outputs, of the gradients of a random combination of them, and of the gradients of a
random combination of those: what training on forces needs.  Stock modules get their constants in full precision first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tpgen._e3nn import default_dtype
from tpgen._torch import pytree
from tpgen.conversion.adapters import cast_further
from tpgen.conversion.notices import unsaid
from tpgen.conversion.operations.splines import is_splined, without_splines
from tpgen.errors import TpgenError
from tpgen.inspection.clock import ROUGH, device_of, time_in_turns
from tpgen.inspection.training import is_floating, restored
from tpgen.text import duration, ratio, table

_FLOOR = 1e-6  # tensors below this part of the largest of their order are compared on its scale: zeros but for rounding
LIMIT = 1e-8  # relative to the largest entry of a tensor; what float64 leaves after a deep network is far below
_OUTPUTS = 1e-10  # the same of outputs, in which fewer roundings gather than in derivatives
BUSY = "the machine is busy: measure again, when it is not, for a ratio"


@dataclass(frozen=True)
class Difference:
    """The largest difference among some tensors, relative to the largest entry of the tensor it is in.

    A tensor that is nearly zero beside the others, as one that cancels, is measured on `FLOOR` of their largest entry.
    """

    what: str
    tensors: int
    absolute: float
    relative: float
    where: str


@dataclass(frozen=True)
class Proof:
    """Differences of a converted network from the stock one in float64, relative to the largest entries."""

    differences: tuple[Difference, ...]
    limit: float = LIMIT
    outputs: float = _OUTPUTS
    splined: tuple[Difference, ...] = ()  # of single results by splines, which no limit holds for

    @property
    def holds(self) -> bool:
        return all(d.relative <= (self.outputs if d.what == "outputs" else self.limit) for d in self.differences)

    def __str__(self) -> str:
        verdict = "equal" if self.holds else "NOT equal"
        columns = ("largest difference of", "tensors", "absolute", "relative", "in")
        rows = [(d.what, str(d.tensors), f"{d.absolute:.1e}", f"{d.relative:.1e}", d.where) for d in self.differences]
        limits = f"limits {self.outputs:.0e} for outputs, {self.limit:.0e} for derivatives"
        said = f"in float64, stock and converted are {verdict} ({limits})\n{table([columns, *rows])}"
        if not self.splined:
            return said
        errors = [(d.what, f"{d.absolute:.1e}", f"{d.relative:.1e}") for d in self.splined]
        errors.insert(0, ("with splines, for which there is no limit", "absolute", "relative"))
        return f"{said}\n\n{table(errors)}"


@dataclass(frozen=True)
class Time:
    """Median seconds of one task, and how many times as fast the converted network is."""

    task: str
    stock: float
    converted: float
    spread: float = 0.0  # of the times of either: the larger

    @property
    def ratio(self) -> float:
        return self.stock / self.converted

    @property
    def said(self) -> str:
        """The ratio, where times lie close enough together to say one."""
        return ratio(self.ratio) if self.spread <= ROUGH else f"times lie {100 * self.spread:.0f} % apart"


@dataclass(frozen=True)
class Times:
    """Stock and converted, called in turn."""

    tasks: tuple[Time, ...]
    rounds: int
    threads: int

    def __str__(self) -> str:
        rows = [(t.task, duration(t.stock), duration(t.converted), t.said) for t in self.tasks]
        head = f"medians, {self.rounds} rounds or more in turn, {self.threads} thread{'s' * (self.threads != 1)}"
        shown = f"{head}\n{table([('task', 'stock', 'converted', 'times as fast'), *rows])}"
        return f"{shown}\n{BUSY}" if any(t.spread > ROUGH for t in self.tasks) else shown


def prove(stock: nn.Module, converted: nn.Module, exact: Iterable[Callable[[], None]], inputs: Sequence[Any]) -> Proof:
    """Compare two networks, which become float64; ``exact`` brings the stock one's constants to full precision."""
    for network in (stock, converted):
        _to_float64(network)
    with default_dtype(torch.float64):  # what networks make on the way is float64 too
        with torch.no_grad():
            for refine in exact:
                refine()
        with without_splines(converted):
            ours, theirs = _orders(converted, inputs), _orders(stock, inputs)
        splined = _splined(stock, converted, inputs) if is_splined(converted) else ()
    return Proof(tuple(_difference(what, theirs[what], ours[what]) for what in theirs), splined=splined)


def _to_float64(network: nn.Module) -> None:
    """Cast a network, and what its modules remember of the dtype that they were built in, so that they cast to it."""
    network.double()
    for module in network.modules():
        for name, value in list(vars(module).items()):
            if value is torch.float32:
                setattr(module, name, torch.float64)
    cast_further(network)


def measure(stock: nn.Module, converted: nn.Module, inputs: Sequence[Any], rounds: int = 7) -> Times:
    """Time a call, and a call with its gradients, of both networks in turn."""
    both = {"stock": stock, "converted": converted}
    device = device_of(stock, inputs)
    found = []
    for task, run in _TASKS.items():
        timed = time_in_turns({n: partial(run, net, inputs) for n, net in both.items()}, device, rounds=rounds)
        spread = max(timing.spread for timing in timed.values())
        found.append(Time(task, timed["stock"].median, timed["converted"].median, spread))
    return Times(tuple(found), rounds, torch.get_num_threads())


_TASKS: dict[str, Callable[[nn.Module, Sequence[Any]], Any]] = {
    "call": lambda network, inputs: _called(network, _fresh(inputs)),
    "call and gradients": lambda network, inputs: _trained(network, inputs),
}


def _fresh(inputs: Sequence[Any], tracked: bool = False) -> list[Any]:
    """The inputs anew, so that what a call writes into a list or dict stays there; gradients are asked as they were."""
    return pytree.tree_map(
        lambda a: (
            a.detach().requires_grad_(is_floating(a) and (tracked or a.requires_grad)) if isinstance(a, Tensor) else a
        ),
        list(inputs),
    )


def _trained(network: nn.Module, inputs: Sequence[Any]) -> None:
    """A call and the gradients of its parameters and of inputs that require any; of all inputs where nothing does."""
    wanted: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
    given = _fresh(inputs)
    if not wanted and not _tracked(given):
        given = _fresh(inputs, tracked=True)
    wanted += _tracked(given)  # before a call that writes into a dict
    live = [leaf for leaf in _named("output", _called(network, given)).values() if leaf.requires_grad]
    if live and wanted:
        _differentiated(live, wanted, [torch.cos(leaf.detach()) for leaf in live], create_graph=False)


def _tracked(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor) and leaf.requires_grad]


_Named = dict[str, Tensor]


def _orders(network: nn.Module, inputs: Sequence[Any]) -> dict[str, _Named]:
    """Outputs, gradients and second derivatives, each by name.

    Derivatives are taken twice: of the parameters, with inputs as they are given, and of the inputs too.  A module may
    compute in another way where an input needs no gradient.
    """
    outputs, *found = _pass(network, inputs, tracked=False)
    with unsaid():
        _, *of_inputs = _pass(network, inputs, tracked=True)
    both = [a | {f"{name}, inputs tracked": g for name, g in b.items()} for a, b in zip(found, of_inputs, strict=True)]
    return dict(zip(("outputs", "gradients", "second derivatives"), (outputs, *both), strict=True))


def _splined(stock: nn.Module, converted: nn.Module, inputs: Sequence[Any]) -> tuple[Difference, ...]:
    """The difference of each result that splines are for."""
    theirs, ours = (_inferred(network.requires_grad_(False), inputs) for network in (stock, converted))
    floor = _floor(theirs)
    return tuple(Difference(name, 1, *_apart(theirs[name], ours[name], floor), name) for name in ours if name in theirs)


def _inferred(network: nn.Module, inputs: Sequence[Any]) -> _Named:
    """Outputs, and gradients of outputs with respect to inputs; splines have none where forces are outputs already."""
    with unsaid():
        try:
            outputs, gradients = _pass(network, inputs, tracked=True, orders=1)
        except TpgenError:
            return _pass(network, inputs, tracked=True, orders=0)[0]
    return outputs | {f"gradient of {name}": g for name, g in gradients.items()}


def _pass(network: nn.Module, inputs: Sequence[Any], tracked: bool, orders: int = 2) -> list[_Named]:
    with restored(network):
        torch.manual_seed(0)  # the same masks of dropout in both
        given = pytree.tree_map(lambda a: _leaf(a, tracked) if is_floating(a) else a, list(inputs))
        wanted: _Named = {name: p for name, p in network.named_parameters() if p.requires_grad}
        wanted |= _named("input", given) if tracked else {}
        outputs = _named("output", _called(network, given))
        if not outputs:
            raise TpgenError(
                "the network returns no floating tensors that prove can see: it must return a tensor, or tuples, lists "
                "and dicts of some (register another container with torch.utils._pytree)"
            )
        found = [outputs]
        for _ in range(orders):
            found.append(_pull_back(found[-1], wanted))
    return [{name: value.detach() for name, value in named.items()} for named in found]


def _called(network: nn.Module, given: list[Any]) -> Any:
    try:
        return network(*given)
    except Exception as error:
        said = str(error).splitlines()
        if opaque := _not_cast(given):
            raise TpgenError(
                f"the network cannot be called with these inputs ({': '.join([type(error).__name__, *said[:1]])}): "
                f"{opaque} could not be cast. Give its tensors in a dict, as in `batch.to_dict()`"
            ) from error
        raise TpgenError(
            f"the network cannot be called with these inputs ({type(error).__name__}{': ' + said[0] if said else ''}): "
            "give the arguments of a call in a tuple, with requires_grad where the network differentiates by them; "
            "prove calls it in float64, so build it in float64 where it casts to a dtype of its own"
        ) from error


def _not_cast(given: Sequence[Any]) -> str:
    """The first argument whose tensors are out of reach, in an object that is no list or dict; empty where none is."""
    for number, argument in enumerate(given):
        for leaf in pytree.tree_leaves(argument):
            if not isinstance(leaf, Tensor | nn.Module) and _holds_tensors(leaf):
                return f"the tensors of argument {number} (a {type(leaf).__name__})"
    return ""


def _holds_tensors(value: Any) -> bool:
    """Among the attributes of an object, or in one more object, as graphs of torch_geometric keep them in a store."""
    held = list(getattr(value, "__dict__", {}).values())
    held += [vars(one) for one in held if hasattr(one, "__dict__")]
    return any(isinstance(one, Tensor) for one in pytree.tree_leaves(held))


def _leaf(value: Tensor, tracked: bool) -> Tensor:
    return value.detach().to(torch.float64, copy=True).requires_grad_(tracked or value.requires_grad)


def _named(what: str, values: Any) -> _Named:
    leaves = pytree.tree_flatten_with_path(values)[0]
    return {what + pytree.keystr(path): leaf for path, leaf in leaves if is_floating(leaf)}


def _pull_back(outputs: _Named, wanted: _Named) -> _Named:
    """The gradients of one random combination of the outputs, which can be differentiated again."""
    live = [out for out in outputs.values() if out.requires_grad]
    if not live or not wanted:
        return {}
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(out.shape, generator=generator, dtype=out.dtype).to(out.device) for out in live]
    found = _differentiated(live, list(wanted.values()), directions, create_graph=True)
    return {name: g for name, g in zip(wanted, found, strict=True) if g is not None}


def _differentiated(
    out: Sequence[Tensor], wanted: Sequence[Tensor], directions: Sequence[Tensor], create_graph: bool
) -> Sequence[Tensor | None]:
    try:
        return torch.autograd.grad(out, wanted, directions, create_graph=create_graph, allow_unused=True)
    except RuntimeError as error:
        raise TpgenError(
            f"the network cannot be differentiated with these inputs ({str(error).splitlines()[0]}): give the inputs "
            "of a training step and call network.train(); where an argument of forward keeps the graph of its own "
            "forces, give it too (MACE: `training=True`, the second)"
        ) from error


def _difference(what: str, theirs: _Named, ours: _Named) -> Difference:
    """The worst difference by name; a gradient that only one network has must be zero."""
    worst = Difference(what, len(theirs), 0.0, 0.0, "-")
    floor = _floor(theirs)
    for name in theirs | ours:
        given = [named[name] for named in (theirs, ours) if name in named]
        wanted, got = given if len(given) == 2 else (torch.zeros_like(given[0]), given[0])
        absolute, relative = _apart(wanted, got, floor)
        if relative > worst.relative:
            worst = Difference(what, len(theirs), absolute, relative, name)
    return worst


def _floor(found: _Named) -> float:
    return _FLOOR * max(map(_largest, found.values()), default=0.0)


def _apart(wanted: Tensor, got: Tensor, floor: float) -> tuple[float, float]:
    """The largest difference, absolute and relative to the largest entry."""
    absolute, scale = _largest(wanted - got), max(_largest(wanted), floor)
    if math.isfinite(absolute) and scale > 0:
        return absolute, absolute / scale
    return absolute, 0.0 if absolute == 0 else math.inf  # a NaN is equal to nothing, so the worst there is


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def tensor_copies(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Two copies of a network to work on; scripted functions, which torch cannot copy, are the network's own."""
    functions = [f for m in network.modules() for f in vars(m).values() if isinstance(f, torch.jit.ScriptFunction)]
    try:
        first, second = (deepcopy(network, {id(f): f for f in functions}) for _ in range(2))
        return first, second
    except Exception as error:
        raise TpgenError(
            f"prove and measure work on copies, and {type(network).__name__} cannot be copied: {error}"
        ) from error
