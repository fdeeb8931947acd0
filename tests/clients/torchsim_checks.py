"""What TorchSim must compute with a converted network, or with a step of one: batches, and both of its autobatchers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch_sim as ts
from torch import nn
from torch_sim.autobatching import BinningAutoBatcher, InFlightAutoBatcher

from benchmarks.engines import crystal
from tpgen.networks.conversion.convert import convert
from tpgen.networks.step import compile_step

NETWORKS: dict[str, Callable[[nn.Module], Any]] = {
    "converted": convert,
    "step": lambda network: compile_step(convert(network)),
}


def check_batches(wrap: Callable[[Any], Any], network: nn.Module, kind: str, limit: float = 2e-5) -> None:
    """Energy, forces and stress of several systems at once, of one alone, and in batches, against stock."""
    systems = [crystal(n, seed) for n, seed in ((27, 0), (36, 1), (27, 2))]
    stock, model = wrap(deepcopy(network)), wrap(NETWORKS[kind](deepcopy(network)))
    for chosen in (systems, systems[:1], systems[1:]):
        state = ts.initialize_state(chosen, stock.device, stock.dtype)
        assert_near(model(state.clone()), stock(state.clone()), limit)
    batched = BinningAutoBatcher(model=model, memory_scales_with="n_atoms", max_memory_scaler=64)
    wanted = ts.static(systems, stock)
    for found, one in zip(ts.static(systems, model, autobatcher=batched), wanted, strict=True):
        assert_near({name: found[name] for name in ("forces", "stress")}, one, limit)


def check_relaxed(wrap: Callable[[Any], Any], network: nn.Module, kind: str, limit: float = 1e-3) -> None:
    """Positions of systems that come into a batch and leave it while others relax, against stock."""
    systems = [crystal(n, seed) for n, seed in ((27, 0), (36, 1), (27, 2))]
    found = []
    for model in (wrap(deepcopy(network)), wrap(NETWORKS[kind](deepcopy(network)))):
        batcher = InFlightAutoBatcher(model=model, memory_scales_with="n_atoms", max_memory_scaler=64, max_iterations=2)
        relaxed = ts.optimize(
            systems, model, optimizer=ts.gradient_descent, autobatcher=batcher, max_steps=6, steps_between_swaps=2,
            convergence_fn=ts.generate_force_convergence_fn(force_tol=1e-9, include_cell_forces=False),
        )  # fmt: skip
        found.append(relaxed.positions)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=limit)


def assert_near(found: dict[str, Any], wanted: dict[str, Any], limit: float) -> None:
    for name in found.keys() & {"energy", "forces", "stress"}:
        assert (found[name] - wanted[name]).abs().max() <= limit * wanted[name].abs().max(), name
