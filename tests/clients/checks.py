"""What every project must keep once it is converted."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from benchmarks.networks import Case, lattice
from tests.networks.deployment.elsewhere import NETWORK, run_without_tpgen
from tests.networks.deployment.network import products_of_rows
from tpgen.networks.conversion.convert import conversion_report, convert, restore
from tpgen.networks.conversion.operations import pairs
from tpgen.networks.deployment import runtime as deployed
from tpgen.networks.deployment.models import OfStructures, describe_model
from tpgen.networks.deployment.runtime import list_kernels_in

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


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor], limit: float | None = None) -> None:
    """Equal in float64, or but for a limit of another dtype."""
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        most = limit or (GRADIENTS if name.startswith("gradient") else ENERGIES)
        assert (found[name] - x).abs().max() <= most * x.abs().max(), name


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


class _Called(Exception):
    """The arguments of a call."""


class _Catches(nn.Module):
    def forward(self, *args: Any, **options: Any) -> None:
        raise _Called(args, options)


def arguments(case: Case, training: bool = True) -> tuple[tuple, dict[str, Any]]:
    """What a case calls its model with."""
    try:
        case.run(_Catches(), training)
    except _Called as call:
        return call.args
    raise AssertionError("the model was not called")


_COMPUTE = NETWORK + "found = {name: network(*x) for name, x in given.items()}"


def check_deployed(
    folder: Path,
    model: nn.Module,
    cases: dict[int, Case],
    elements: Sequence[str] = ("H", "C", "N", "O"),
    limit: float = 1e-12,
    refused: Sequence[str] = (),
) -> None:
    """A deployed model without tpgen against stock: energy, forces and stress of lattices, and of an atom or two.

    Structures that its package does not take are ``refused`` in words.
    """
    given: dict[Any, list[Tensor]] = few()
    for name in refused:
        with pytest.raises(AssertionError, match="RuntimeError: this package is for inputs with"):
            run_without_tpgen(folder, _COMPUTE, {name: given.pop(name)})
    small = [*given]
    for atoms in cases:
        s = lattice(atoms, torch.float64)
        given[atoms] = [s.positions, s.edges, s.species, s.cell[None], s.shifts]
    results, _ = run_without_tpgen(folder, _COMPUTE, given)
    described = json.loads((folder / "manifest.json").read_text())["model"]
    assert (described["elements"], described["cutoff"]) == ([*elements], 5.0)
    stock = OfStructures(model, describe_model(model))
    for name in small:
        check_few(results.pop(name), stock(*given[name]), name, limit)
    for atoms, found in results.items():
        wanted, made = cases[atoms].run(model, False), dict(zip(described["outputs"], found, strict=True))
        stress = wanted["stress"].reshape(-1)
        if len(stress) == 6:  # as SevenNet has it
            stress = -stress[[0, 3, 5, 3, 1, 4, 5, 4, 2]]
        volume = torch.linalg.det(given[atoms][3])
        for name, x, y in (
            ("energy", made["total_energy"].sum(), wanted["energy"].sum()),
            ("energies", made["atomic_energy"].sum(), wanted["energy"].sum()),
            ("forces", made["forces"], wanted["forces"]),
            ("stress", made["stress"].reshape(-1), stress),
            ("virial", made["virial"].reshape(-1), -stress * volume),
        ):
            assert (x - y).abs().max() <= limit * y.abs().max(), name


def deployed_programs(monkeypatch: pytest.MonkeyPatch) -> list[ExportedProgram]:
    """Programs that are deployed from here on."""
    seen: list[ExportedProgram] = []
    monkeypatch.setattr(
        deployed, "list_kernels_in", lambda program: (seen.append(program), list_kernels_in(program))[1]
    )
    return seen


def check_products(programs: Sequence[ExportedProgram]) -> None:
    """A deployed program has no product of open rows that a kernel computes, and some that kernels do."""
    (program,) = programs
    left, computed = products_of_rows(program.graph)
    assert not left
    assert computed


def few() -> dict[Any, list[Tensor]]:
    """Structures of an atom or two: alone, beside its own images, and with neighbours that are too far or one-sided."""

    def structure(places: Any, edges: Any, shifts: Any = None) -> list[Tensor]:
        positions, pairs = torch.tensor(places), torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)
        cell = (
            20 * torch.eye(3)[None] if shifts is None else torch.tensor([[[3.0, 0.1, 0], [0, 3.2, 0], [0.2, 0, 2.9]]])
        )
        moved = torch.zeros(len(pairs), 3) if shifts is None else torch.tensor(shifts)
        given = [positions, pairs.T.contiguous(), torch.arange(len(positions)) % 4, cell, moved]
        return [x.double() if x.is_floating_point() else x for x in given]

    apart, near = [[0.0, 0, 0], [0, 0, 9]], [[0.0, 0, 0], [0.3, 0.2, 1.9]]
    return {
        "an atom": structure(apart[:1], []),
        "an atom and an image": structure(near[1:], [[0, 0]], [[1.0, 0, 0]]),
        "an atom and its images": structure(near[1:], 2 * [[0, 0]], [[1.0, 0, 0], [-1, 0, 0]]),
        "two atoms apart": structure(apart, []),
        "an edge": structure(near, [[0, 1]]),
        "two edges": structure(near, [[0, 1], [1, 0]]),
        "two edges and an atom apart": structure([*near, [9.0, 9, 9]], [[0, 1], [1, 0]]),
    }


def check_few(found: Sequence[Tensor], wanted: Sequence[Tensor], name: str, limit: float) -> None:
    """Results of such a structure, of which some are zero, within a part of the largest."""
    largest = max(float(y.abs().max()) for y in wanted)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x.reshape(y.shape), y, rtol=limit, atol=limit * largest, msg=f"{name}: {x}, {y}")


def counted_pairs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nets run once for each pair of edges, however few there are; the list gets how many rows each of them sees."""
    seen: list[int] = []
    mean = pairs._average_over_pairs
    monkeypatch.setattr(pairs, "WORTH_PAIRS", 1)
    monkeypatch.setattr(pairs, "SHARE", 2**20)
    monkeypatch.setattr(pairs, "_average_over_pairs", lambda x, found: (seen.append(found.numbers), mean(x, found))[1])
    return seen


def counted_lengths(monkeypatch: pytest.MonkeyPatch, adapter: Any) -> list[int]:
    """How many lengths each call of the kernel of Bessel functions gets from an adapter."""
    seen: list[int] = []
    run = adapter.cut_bessel
    monkeypatch.setattr(adapter, "cut_bessel", lambda r, *rest: seen.append(len(r)) or run(r, *rest))
    return seen


def carbon(seed: int = 0) -> Any:
    """Eight atoms of diamond, shaken."""
    import numpy
    from ase.build import bulk

    atoms = bulk("C", "diamond", 3.57, cubic=True)
    atoms.rattle(0.1, rng=numpy.random.RandomState(seed))
    return atoms


def nequip_calculator(model: nn.Module) -> Any:
    from nequip.integrations.ase import NequIPCalculator
    from nequip.integrations.utils import basic_transforms

    model = model.eval()
    names = model.metadata["type_names"].split()
    transforms = basic_transforms(model.metadata, model.metadata["r_max"], names, {name: name for name in names})
    return NequIPCalculator(model, "cpu", transforms=transforms)
