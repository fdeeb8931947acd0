"""Times of a network as it is, with its products inlined, and flat: what inlining and sharing bring.

>>> import torch, tpgen
>>> network = torch.nn.Sequential(tpgen.TensorSquare("2x1o", strategy="einsum"), torch.nn.ReLU())
>>> found = time_flat(network, [torch.randn(4, 6)], rounds=3)
>>> [row.contender for row in found.rows]
['network', 'inlined', 'flat']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from tpgen._torch import pytree
from tpgen.compiler.backends import compile_program
from tpgen.compiler.config import Config
from tpgen.errors import TpgenError
from tpgen.inspection.clock import ROUGH, device_of, time_in_turns
from tpgen.inspection.training import forward, restored, step
from tpgen.networks.inline import Gain, inline_products
from tpgen.networks.tracer import trace_network
from tpgen.text import duration, ratio, table


@dataclass(frozen=True)
class Row:
    """Median seconds of one contender."""

    contender: str
    forward: float
    step: float  # forward, and backward to every floating input and every parameter that requires it
    spread: float = 0.0  # of the times of either: the larger


@dataclass(frozen=True)
class FlatTimes:
    """The times of a network in three forms, and what sharing saved in the last."""

    backend: str
    strategy: str
    rounds: int
    gain: Gain
    rows: tuple[Row, ...]

    def ratio(self, task: str, contender: str = "network") -> float:
        """Ratio of a contender's time to that of the flat network, in ``forward`` or ``step``."""
        times = {row.contender: getattr(row, task) for row in self.rows}
        return times[contender] / times["flat"]

    def __str__(self) -> str:
        head = ("backend " + self.backend, "forward", "flat is", "forward+backward", "flat is")
        rows = [
            (
                row.contender,
                duration(row.forward),
                ratio(self.ratio("forward", row.contender)),
                duration(row.step),
                ratio(self.ratio("step", row.contender)),
            )
            for row in self.rows
        ]
        return f"{self.gain}\n{table([head, *rows])}\n{self.verdict}"

    @property
    def verdict(self) -> str:
        """Whether the flat network is faster than the network as it is, in words, a line for each task."""
        spread = max(row.spread for row in self.rows)
        if spread > ROUGH:
            return f"times of the same call lie {100 * spread:.0f} % apart, so they decide nothing: measure again"
        ratios = {"forward": self.ratio("forward"), "forward+backward": self.ratio("step")}
        return "\n".join(
            f"{task}: a flat graph is {'' if gain > 1 else 'not '}faster than the network as it is ({ratio(gain)})"
            for task, gain in ratios.items()
        )


def time_flat(
    network: nn.Module,
    inputs: Sequence[Any],
    *,
    strategy: str | None = "einsum",
    backend: str = "eager",
    functions: Iterable[Callable] = (),
    rounds: int = 30,
) -> FlatTimes:
    """Time a network as it is, inlined without sharing, and flat.

    The three are called in turn, round by round, so that whatever else the machine does falls on all of them; the
    medians count.  They compute the same, which is checked first.  The network runs in the mode that it is in; its
    buffers and torch's random numbers are put back as they were.

    Parameters
    ----------
    network, inputs
        the network, and arguments of a call with at least two rows.
    strategy
        of the inlined products, as in `inline_products`; the network keeps the strategies of its own.
    backend
        of `tpgen.compiler.backends.BACKENDS`, for all three.
    functions
        functions that stay single nodes, as in `trace_network`.
    rounds
        how often each is called for each task.

    Raises `TraceError` for a network that cannot be traced, and `TpgenError` for less than one round.
    """
    if rounds < 1:
        raise TpgenError(f"rounds is how often each network is called and must be positive, got {rounds}")
    # traced networks all three: Dynamo follows none of e3nn's irreps then
    traced = trace_network(network, functions=functions)
    inlined = inline_products(traced, strategy=strategy, inputs=inputs, shared=False)
    flat = inline_products(traced, strategy=strategy, inputs=inputs)
    networks: dict[str, fx.GraphModule] = {"network": traced, "inlined": inlined, "flat": flat}
    with restored(network):
        _check_same(networks, inputs)
        runs = {name: compile_program(module, Config(backend=backend)) for name, module in networks.items()}
        steps = {name: partial(step, runs[name], inputs, tuple(networks[name].parameters())) for name in networks}
        forwards = {name: partial(forward, runs[name], inputs) for name in networks}
        device = device_of(network, inputs)
        once, trained = (time_in_turns(calls, device, rounds=rounds) for calls in (forwards, steps))
    rows = tuple(
        Row(name, once[name].median, trained[name].median, max(once[name].spread, trained[name].spread))
        for name in networks
    )
    return FlatTimes(backend, strategy or "of each product", rounds, flat.gain, rows)


def _check_same(networks: dict[str, fx.GraphModule], inputs: Sequence[Any]) -> None:
    with torch.no_grad():
        wanted, *others = (pytree.tree_leaves(network(*inputs)) for network in networks.values())
    for found in others:
        for a, b in zip(wanted, found, strict=True):
            if isinstance(a, Tensor) and not torch.allclose(a, b, rtol=1e-2, atol=1e-3 * float(a.abs().max())):
                raise TpgenError(
                    "the flat network does not compute what the network does, so no time is worth comparing: "
                    "is there a random function in it (dropout)? Call network.eval() first"
                )
