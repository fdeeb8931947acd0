"""Traces of networks, by fx alone and by `trace_network`: what each must keep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from tests.networks.conversion.networks import derivatives
from tpgen.networks.tracer import trace_network

TRACES = {"fx": fx.symbolic_trace, "tpgen": trace_network}


class Around(nn.Module):
    """A module between two functions, called by a fixed number of tensors."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleList([module])

    def run(self, *given: Tensor, **named: Any) -> Tensor:
        first, *rest = given
        return self.inner[0](first.sin(), *rest, **named).tanh()


class One(Around):
    def forward(self, a: Tensor) -> Tensor:
        return self.run(a)


class Two(Around):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.run(a, b)


class Three(Around):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return self.run(a, b, c)


class Five(Around):
    def forward(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> Tensor:
        return self.run(a, b, c, d, e)


BY_COUNT: dict[int, type[Around]] = {1: One, 2: Two, 3: Three, 5: Five}


def modules_called(traced: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in traced.graph.nodes if node.op == "call_module"]


def check_traces(network: nn.Module, inputs: Iterable[Tensor], called: Iterable[str]) -> None:
    """Both traces call these modules, one node each, and compute what the network does, to second derivatives."""
    given = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    moving = [*given, *network.parameters()]
    wanted = derivatives(network(*given), moving)
    for name, trace in TRACES.items():
        traced = trace(network)
        assert modules_called(traced) == list(called), name
        assert dict(traced.named_parameters()).items() <= dict(network.named_parameters()).items()
        torch.testing.assert_close(derivatives(traced(*given), moving), wanted, rtol=1e-10, atol=1e-10)
