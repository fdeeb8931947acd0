"""The checks of `make gpu` that need a GPU: streams, CUDA graphs, programs, a second device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_checks import (
    Finding,
    agrees,
    compared,
    convolved,
    finding,
    of_polynomial,
    polynomial_of_rows,
    random_polynomial_operands,
)
from benchmarks.gpu_clock import recorded, seconds_of
from benchmarks.gpu_times import convolution, product_of_edges, product_of_rows
from tpgen.form.sampling import random_operands
from tpgen.kernels.runtime.ops import describe
from tpgen.kernels.runtime.polynomials import forward_call
from tpgen.networks.conversion.convert import convert
from tpgen.planner.problems import POLYNOMIALS, PROBLEMS
from tpgen.tools.demo.potential import Potential, atoms

_CALLS = 20  # of each stream: one of 400 rows alone ends before another has begun


def streams(device: str) -> Iterator[Finding]:
    """Two streams at once give what one after the other gives; and how much of the time of one they take."""
    given, text = product_of("mace-medium", 400, device)
    one = product_of_rows(*given, description=text)
    both = [torch.cuda.Stream() for _ in range(2)]

    def run(chosen: list[Any], calls: int = 1) -> list[Tensor]:
        found, here = [], torch.cuda.current_stream()
        for stream in dict.fromkeys(chosen):
            stream.wait_stream(here)
        for stream in chosen:
            with torch.cuda.stream(stream):
                found += [product_of_rows(*given, description=text) for _ in range(calls)]
        for stream in dict.fromkeys(chosen):
            here.wait_stream(stream)
        return found

    found = run(both)
    torch.cuda.synchronize()
    yield "two streams at once", all(torch.equal(one, x) for x in found), ""
    # In a CUDA graph, since Python takes longer for each call than the device.
    chains = [recorded(partial(run, chosen, _CALLS))[1] for chosen in (both, [both[0]] * 2)]
    apart, same = (seconds_of(replay, device, 0.2) for replay in chains)
    note = f"two streams take {apart / same:.0%} of the time of one, of {_CALLS} products of 400 rows each"
    yield "streams overlap", True, note


def graphs(device: str) -> Iterator[Finding]:
    """CUDA graphs record products, gradients and convolutions, and replay them with other numbers."""
    given, text = product_of("mace-medium", 4000, device)
    nodal, graph = convolution(PROBLEMS["mace-medium"].plan, 4000, device)
    mixing, mixing_text = product_of("article", 500, device)
    calls: dict[str, tuple[Tensor, Callable[[], list[Tensor]]]] = {
        "a product": (given[0], lambda: [product_of_rows(*given, description=text)]),
        "a convolution": (nodal[0], lambda: [product_of_edges(*nodal, **graph)]),
        "a product that mixes copies": (mixing[0], lambda: [product_of_rows(*mixing, description=mixing_text)]),
        "a product with gradients": (given[0], lambda: mixed_of(given, text)),
    }
    for name, (changed, call) in calls.items():
        yield agrees(f"CUDA graphs: {name}", partial(replayed, changed, call))
    other = "CUDA graphs: a convolution with gradients, of other edges"
    yield agrees(other, partial(refilled, nodal, graph))
    yield agrees("CUDA graphs: a polynomial with gradients of both orders", partial(polynomial_replayed, device))


def polynomial_replayed(device: str) -> bool:
    """A replay with other numbers of MACE's contraction, whose rows are of several elements."""
    problem = POLYNOMIALS["mace-contraction"]
    operands = random_polynomial_operands(problem.plan, 50, problem.channels, problem.elements)
    given = [x.to(device, torch.float32) for x in operands]
    index = (torch.arange(50) % problem.elements).to(device)
    call = problem.plan.to_json(), str(forward_call(problem.plan))
    return replayed(given[0], lambda: of_polynomial(lambda xs, rows: polynomial_of_rows(xs, rows, *call), given, index))


def programs(device: str) -> Iterator[Finding]:
    """A program of a network on the device gives what stock gives in float64: at other sizes, replayed, and trained."""
    stock = Potential(channels=16).double().eval()
    network = convert(deepcopy(stock).to(device), program=True)
    near = partial(relative_to_stock, stock, network, device, torch.Generator().manual_seed(0))
    for side in (3, 4, 3):
        yield finding(f"a program on the device, {side**3} atoms", partial(near, side), 1e-10)
    for call in range(5):  # equal sizes in a row are recorded
        yield finding(f"a program on the device, repeated sizes, call {call}", partial(near, 3), 1e-10)
    with torch.no_grad():
        for mine, its in zip(stock.parameters(), network.parameters(), strict=True):
            its.copy_(mine.mul_(1.1))
    yield finding("a program on the device, other parameters", partial(near, 3), 1e-10)


def relative_to_stock(
    stock: Potential, network: nn.Module, device: str, generator: torch.Generator, side: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Results of both for new positions."""
    positions, elements, edges = atoms(side)
    moved = positions.double() + 0.01 * torch.randn(positions.shape, generator=generator, dtype=torch.float64)
    given = (moved, elements.double(), edges)
    wanted, found = stock(*given), network(*(x.to(device) for x in given))
    yield from ((found[name], wanted[name]) for name in wanted)


def another(device: str) -> Iterator[Finding]:
    """The last of several devices gives what is right, while the first is the current one."""
    count = torch.cuda.device_count()
    if count > 1:
        plan = PROBLEMS["mace-medium"].plan
        last = partial(compared, plan, "mul_ir", torch.float32, f"cuda:{count - 1}")
        yield finding(f"a product and its gradients on cuda:{count - 1}", last, 1e-5)


def replayed(changed: Tensor, call: Callable[[], list[Tensor]]) -> bool:
    """Whether a replay with other numbers gives what a call gives."""
    found, replay = recorded(call)
    changed.mul_(0.5)
    replay()
    return all(map(torch.equal, found, call()))


def refilled(given: list[Tensor], graph: dict[str, Any]) -> bool:
    """A convolution is replayed with other edges in the same tensors; those of the warm-up are known."""

    def call() -> list[Tensor]:
        return convolved(given, graph)

    found, replay = recorded(call)
    for name in ("edge_src", "edge_dst"):
        graph[name].copy_(graph[name].flip(0) * 7 % graph["num_nodes"])
    replay()
    return all(map(torch.equal, found, call()))


def mixed_of(given: list[Tensor], text: str) -> list[Tensor]:
    inputs = [x.detach().requires_grad_() for x in given]
    out = product_of_rows(*inputs, description=text)
    return [out.detach(), *torch.autograd.grad(out.sum(), inputs)]


def product_of(name: str, rows: int, device: str) -> tuple[list[Tensor], str]:
    plan = PROBLEMS[name].plan
    return [*random_operands(plan, rows, device=device, dtype=torch.float32).values()], describe(plan)


CHECKS: dict[str, Callable[[str], Iterator[Finding]]] = {
    "streams": streams,
    "CUDA graphs": graphs,
    "programs": programs,
    "another device": another,
}
