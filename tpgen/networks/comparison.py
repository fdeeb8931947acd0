"""Times of a program and of its network."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import nn

from tpgen.base.errors import DeployError
from tpgen.networks.gradients import Requests, example_cotangents
from tpgen.networks.signature import Signature
from tpgen.networks.step_program import Program


class SlowerProgramError(DeployError):
    """A program takes longer than its network."""


SHARE_OF_NETWORK = 1.1  # of a network's time, which a program may take
_ROUNDS = 5
_SECONDS = 0.5  # no round begins later


def refuse_slower_program(
    program: Program, network: nn.Module, requests: Requests, args: tuple, options: dict[str, Any]
) -> None:
    """Raise `SlowerProgramError` if a program takes longer than its network, requested gradients included."""
    signature, tensors = Signature.split_call(args, options)
    cotangents = example_cotangents(network, requests, signature, tensors) if requests else []

    def run_network() -> None:
        given, named = signature.arguments([x.detach().requires_grad_(x.requires_grad) for x in tensors])
        program.evaluate(*([cotangents] if requests else ()), *given, **named)

    def run_program() -> None:
        with torch.no_grad():
            ran = program.run_call(tensors)
            if ran is not None and program.gradients is not None:
                program.gradients.run_all(ran, cotangents)

    with program.slots.restored():
        by_network, by_program = _shortest_seconds(run_network, run_program)
    if by_program > SHARE_OF_NETWORK * by_network:
        raise SlowerProgramError(
            f"its program takes {by_program * 1e3:.3g} ms for the example, the network {by_network * 1e3:.3g} ms"
        )


def _shortest_seconds(*calls: Callable[[], Any]) -> list[float]:
    # calls in turn: others on this machine slow each alike
    least, begun = [inf] * len(calls), perf_counter()
    for _ in range(_ROUNDS):
        for n, call in enumerate(calls):
            now = perf_counter()
            call()
            least[n] = min(least[n], perf_counter() - now)
        if perf_counter() - begun > _SECONDS:
            break
    return least
