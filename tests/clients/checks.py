"""What every project must keep once it is converted."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from benchmarks.networks import Case
from tpgen.conversion.convert import conversion_report, convert, restore
from tpgen.nn import pairs

Written = (GraphModule, torch.jit.ScriptModule)  # each copy has a class of its own
ENERGIES, GRADIENTS = 1e-10, 1e-8  # relative, in float64
ROUNDED = 1e-5  # in float32


def results(case: Case, network: nn.Module) -> dict[str, Tensor]:
    """Energy, forces and stress, and the gradients of a loss of the forces."""
    found = case.run(network, True)
    network.zero_grad()
    found["forces"].square().sum().backward()
    gradients = {f"gradient of {name}": p.grad for name, p in network.named_parameters() if p.grad is not None}
    return {name: x.detach().clone() for name, x in {**found, **gradients}.items()}


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        limit = GRADIENTS if name.startswith("gradient") else ENERGIES
        scale = x.abs().max()
        assert (found[name] - x).abs().max() <= limit * scale, name


def check_everything(case: Case) -> nn.Module:
    """Convert a copy, compare, go through a state_dict, a copy and a pickle, restore; returns the converted copy."""
    stock, model = case.model, deepcopy(case.model)
    wanted, keys, parameters = results(case, stock), list(stock.state_dict()), list(model.parameters())
    assert convert(model) is model
    assert_same(results(case, model), wanted)
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    deepcopy(stock).load_state_dict(model.state_dict(), strict=True)
    model.load_state_dict(stock.state_dict(), strict=True)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (deepcopy(model), torch.load(file, weights_only=False)):
        assert_same(results(case, other), wanted)
    assert not conversion_report(model).kept
    restored = restore(deepcopy(model))
    classes = {name: type(module) for name, module in stock.named_modules() if not isinstance(module, Written)}
    assert all(type(restored.get_submodule(name)) is cls for name, cls in classes.items())
    assert_same(results(case, restored), wanted)
    return model


def counted_pairs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nets run once for each pair of edges, however few there are; the list gets how many rows each of them sees."""
    seen: list[int] = []
    mean = pairs._mean
    monkeypatch.setattr(pairs, "WORTH", 1)
    monkeypatch.setattr(pairs, "SHARE", 2**20)
    monkeypatch.setattr(pairs, "_mean", lambda x, found: (seen.append(found.numbers), mean(x, found))[1])
    return seen


def counted_lengths(monkeypatch: pytest.MonkeyPatch, adapter: Any) -> list[int]:
    """How many lengths each call of the kernel of Bessel functions gets from an adapter."""
    seen: list[int] = []
    run = adapter.cut_bessel
    monkeypatch.setattr(adapter, "cut_bessel", lambda r, *rest: seen.append(len(r)) or run(r, *rest))
    return seen


def check_float32(case: Case) -> None:
    """Energy, forces and stress of a model in float32, within its rounding of stock's."""
    assert {p.dtype for p in case.model.parameters()} == {torch.float32}
    found, wanted = (case.run(network, False) for network in (convert(deepcopy(case.model)), case.model))
    for name, x in wanted.items():
        assert (found[name] - x).abs().max() <= ROUNDED * x.abs().max(), name


def carbon(seed: int = 0) -> Any:
    """Eight atoms of diamond, shaken."""
    import numpy
    from ase.build import bulk

    atoms = bulk("C", "diamond", 3.57, cubic=True)
    atoms.rattle(0.1, rng=numpy.random.RandomState(seed))
    return atoms


def compare_dynamics(
    calculator: Callable[[nn.Module], Any], model: nn.Module, steps: int = 200, rounded: bool = False
) -> None:
    """Molecular dynamics: a converted model conserves energy as stock does, and moves the atoms as stock does.

    Trajectories ``rounded`` to float32 part, so of these only the first is asked.
    """
    stock, converted = (_total_energies(calculator(m), steps) for m in (model, convert(deepcopy(model))))
    drift = max(stock) - min(stock)
    assert drift > 0
    assert max(converted) - min(converted) < 1.5 * drift
    if not rounded:
        assert max(abs(a - b) for a, b in zip(stock, converted, strict=True)) < 1e-6 * drift + 1e-10


def _total_energies(calculator: Any, steps: int) -> list[float]:
    import numpy
    from ase import units
    from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
    from ase.md.verlet import VelocityVerlet

    atoms = carbon()
    atoms.calc = calculator
    MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=numpy.random.RandomState(0))
    found = []
    dynamics = VelocityVerlet(atoms, 0.5 * units.fs)
    dynamics.attach(lambda: found.append(atoms.get_total_energy()))
    dynamics.run(steps)
    return found
