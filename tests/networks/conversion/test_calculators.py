"""Atoms in the place of arguments: a calculator calls its networks with its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.mixing import SumCalculator
from e3nn import o3
from torch import nn

import tpgen
from tests.networks.conversion.networks import GRAPHS
from tpgen.base.errors import InputError
from tpgen.networks.conversion.report import Conversion


class Graph(SimpleNamespace):
    """As graphs of torch_geometric: tensors in an object."""

    def to_dict(self) -> dict[str, Any]:
        return vars(self)


class Forces(nn.Module):
    """It frees the graph of its forces unless it is asked to train."""

    def __init__(self) -> None:
        super().__init__()
        self.square = o3.TensorSquare("1o", "0e")

    def energy(self, graph: Any, training: bool) -> dict[str, torch.Tensor]:
        x = graph.x.requires_grad_()
        energy = self.square(x).square().sum()
        return {"energy": energy, "forces": torch.autograd.grad(energy, x, create_graph=training)[0]}


class Positional(Forces):
    def forward(self, graph: Any, training: bool = False) -> dict[str, torch.Tensor]:
        return self.energy(graph, training)


class ByKeyword(Forces):
    def forward(self, graph: Any, *, scale: float = 1.0, training: bool = False) -> dict[str, torch.Tensor]:
        return self.energy(graph, training)


class Potential(Calculator):
    """A calculator of ASE's, which keeps its networks and calls the first."""

    implemented_properties = ("energy",)

    def __init__(self, *models: nn.Module, **asked: Any) -> None:
        super().__init__()
        self.models, self.asked = list(models), asked

    def calculate(self, atoms: Any = None, properties: Any = None, system_changes: Any = all_changes) -> None:
        super().calculate(atoms, properties, system_changes)
        graph = Graph(x=torch.tensor(atoms.positions, dtype=torch.float32))
        self.results = {"energy": self.models[0](graph, **self.asked)["energy"].item()}


ATOMS = Atoms("H3", [[0.0, 0, 1], [0, 1, 2], [2, 1, 1]])


@pytest.mark.parametrize("function", [tpgen.convert, tpgen.conversion_report])
@pytest.mark.parametrize("summed", [False, True])
def test_a_proof_has_the_arguments_that_the_calculator_gives(function: Any, summed: bool) -> None:
    network = Positional().eval().requires_grad_(False)
    potential: Any = Potential(network, training=False)
    calculator = SumCalculator([potential, potential]) if summed else potential
    wanted = calculator.get_potential_energy(ATOMS)
    reports: list[Conversion] = []
    if function is tpgen.convert:
        tpgen.convert(calculator, prove=ATOMS, measure=ATOMS, report=reports.append, **GRAPHS)
    else:
        reports.append(tpgen.conversion_report(calculator, prove=ATOMS, measure=ATOMS))
    (found,) = reports
    assert found.proof is not None
    assert found.proof.holds
    outputs, gradients, second = found.proof.differences
    assert (outputs.tensors, gradients.tensors, second.tensors) == (2, 1, 1)
    assert found.times is not None
    assert [task.task for task in found.times.tasks] == ["call", "call and gradients"]
    assert potential.results == {}
    assert not network._forward_pre_hooks
    assert calculator.get_potential_energy(ATOMS) == pytest.approx(wanted)


def test_what_the_calculator_does_not_call_is_named() -> None:
    with pytest.raises(InputError, match="prove: Potential computes an Atoms without a call of its Positional: give"):
        tpgen.convert(Potential(Positional(), Positional()), prove=ATOMS, **GRAPHS)
    with pytest.raises(InputError, match="measure: ByKeyword takes scale by keyword alone"):
        tpgen.convert(Potential(ByKeyword(), scale=1.0), measure=ATOMS, **GRAPHS)
    with pytest.raises(InputError, match=r"prove: give the arguments of a call as a tuple, .* got an Atoms"):
        tpgen.convert(Positional(), prove=ATOMS, **GRAPHS)


def test_what_the_calculator_cannot_compute_is_an_error_that_converts_nothing() -> None:
    network = Positional()
    with pytest.raises(
        InputError, match=r"prove: Potential cannot compute an int \('int' .*: give atoms that it takes"
    ):
        tpgen.convert(Potential(network), prove=42, **GRAPHS)
    assert type(network.square) is o3.TensorSquare
    assert not network._forward_pre_hooks
