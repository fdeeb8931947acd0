"""Species of rows in programs: groups of rows, and a network whose skips choose by them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tpgen.networks.conversion import species as module
from tpgen.networks.recording import find_species_groups, group_rows_by_species

ELEMENTS = 5


@pytest.mark.parametrize("species", [[0, 0, 0], [3, 1], [2, 0, 2, 2, 4, 0]])
def test_each_row_is_in_the_group_of_its_species(species: list[int]) -> None:
    numbers, there, group = group_rows_by_species(torch.tensor(species))
    assert numbers.tolist() == species
    assert len(there) == max(2, len(set(species))), "a program's size"
    assert there[group].tolist() == species


def test_one_row_is_no_size_of_a_program() -> None:
    assert group_rows_by_species(torch.tensor([3])) is None


def test_rows_are_looked_for_by_values() -> None:
    table, types = torch.randn(4, 3), torch.tensor([[2], [0], [2]])
    assert find_species_groups(table[types[:, 0]], table, types)[0].tolist() == [2, 0, 2]
    assert find_species_groups(table[types[:, 0]] + 1, table, types) is None
    assert find_species_groups(types[:, 0])[0].tolist() == [2, 0, 2], "the program itself looks rows up"
    assert find_species_groups(torch.eye(3)[[1, 1, 0]])[0].tolist() == [1, 1, 0]
    assert find_species_groups(2 * torch.eye(3)) is None


class Skips(nn.Module):
    """Two skips with the same rows, and one with rows of its own; forces through all of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        elements, hidden = f"{ELEMENTS}x0e", "3x0e+2x1o+2x0e"
        self.first = o3.FullyConnectedTensorProduct("4x0e+3x1o", elements, hidden)
        self.second = o3.FullyConnectedTensorProduct(hidden, elements, "2x1o+4x0e+1x0o")
        self.third = o3.FullyConnectedTensorProduct("4x0e+3x1o", elements, "2x0e")

    def forward(self, x: Tensor, rows: Tensor, other: Tensor) -> dict[str, Tensor]:
        x = x.detach().requires_grad_()
        energy = self.second(self.first(x, rows).sin(), rows).square().sum() + self.third(x, other).sum()
        (slope,) = torch.autograd.grad(energy, x, create_graph=self.training)
        return {"energy": energy, "slope": slope}


def given(species: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(len(species))
    x, other = (torch.randn(len(species), n, dtype=torch.float64) for n in (13, ELEMENTS))
    return x, torch.eye(ELEMENTS, dtype=torch.float64)[species], other


def assert_same(found: Any, wanted: Any) -> None:
    for name, x in wanted.items():
        assert (found[name] - x).abs().max() <= 1e-12 * x.abs().max(), name


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count of the layers by groups that are written into programs."""
    seen: list[int] = []
    run = module.kernel_layer
    monkeypatch.setattr(module, "kernel_layer", lambda *of: (seen.append(0), run(*of))[1])
    return seen


@needs_compiler
@pytest.mark.slow
def test_a_program_chooses_by_one_hot_rows_and_leaves_others_to_the_network(grouped: list[int]) -> None:
    network = tpgen.convert(Skips().double()).eval()
    calls: list[int] = []
    network.register_forward_hook(lambda *_: calls.append(0))  # one put on later would have another program written
    step = tpgen.compile_step(network, *given([0, 3, 3, 1]))
    assert len(grouped) == 2, "the third skip has rows of its own, which are no one-hot ones"
    calls.clear()
    for species in ([0, 3, 3, 1], [4, 4], [2, 0, 1, 3, 4, 4, 4, 0]):
        assert_same(step(*given(species)), network(*given(species)))
    assert len(calls) == 3
    x, rows, other = given([0, 3, 3, 1])
    rows[2] = torch.randn(ELEMENTS)
    calls.clear()
    assert_same(step(x, rows, other), network(x, rows, other))
    assert len(calls) == 2, "what the program does not hold for"


class OneResult(Skips):
    """Skips whose program has one result."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.second(self.first(x, rows).sin(), rows)


@needs_compiler
@pytest.mark.slow
def test_a_program_of_one_result(grouped: list[int]) -> None:
    network = tpgen.convert(OneResult().double()).eval().requires_grad_(False)
    step = tpgen.compile_step(network, *given([0, 3, 3, 1])[:2])
    assert len(grouped) == 2
    torch.testing.assert_close(step(*given([4, 4])[:2]), network(*given([4, 4])[:2]))


@needs_compiler
@pytest.mark.slow
def test_rows_that_are_not_one_hot_in_the_example_are_multiplied(grouped: list[int]) -> None:
    network, (x, rows, other) = tpgen.convert(Skips().double()).eval(), given([0, 3, 3, 1])
    step = tpgen.compile_step(network, x, 2 * rows, other)
    assert not grouped
    for factor in (2, 1):
        assert_same(step(x, factor * rows, other), network(x, factor * rows, other))


def loss(network: nn.Module, *args: Tensor) -> Tensor:
    found = network(*args)
    return found["energy"].square() + found["slope"].square().sum()


@needs_compiler
@pytest.mark.slow
def test_gradients_of_weights_are_those_of_the_network(grouped: list[int]) -> None:
    network = tpgen.convert(Skips().double()).train()
    training = tpgen.compile_training(network, loss, *given([0, 3, 3, 1]))
    assert len(grouped) == 2
    for species in ([0, 3, 3, 1], [4, 4, 4]):
        gradients = []
        for evaluate in (training, lambda *args: loss(network, *args)):
            network.zero_grad()
            evaluate(*given(species)).backward()
            gradients.append({name: p.grad for name, p in network.named_parameters() if p.numel()})
        assert_same(*gradients)
