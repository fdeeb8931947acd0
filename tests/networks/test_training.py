"""Training as one program: gradients of a loss of energies and forces, against eager, and what they go through."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import tpgen
from tests.machine import needs_compiler
from tests.networks.deployment.network import Energy
from tests.networks.interpreted import interpreted  # noqa: F401  a fixture
from tests.networks.test_step import data
from tpgen.base.errors import DeployError, InputError
from tpgen.kernels.rows import EDGES
from tpgen.kernels.runtime.runtime import Kernels


class Trained(nn.Module):
    """The potential of these tests, which can be trained on forces."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.energy = Energy()

    def forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        positions = data["positions"].detach().requires_grad_()
        with torch.enable_grad():
            energy = self.energy(positions, data["elements"], data["edges"])
            (slope,) = torch.autograd.grad(energy, positions, create_graph=self.training)
        return {"energy": energy, "forces": -slope}


def loss(network: nn.Module, batch: dict[str, Tensor], target: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    found = network(batch)
    away = found["forces"] - target["forces"]
    return (found["energy"] - target["energy"]) ** 2 + away.square().mean(), {"mae": away.abs().mean()}


def case(atoms: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(atoms)
    energy, forces = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((), (atoms, 3)))
    return data(atoms), {"energy": energy, "forces": forces}


def gradients(network: nn.Module) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    return found


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, x in wanted.items():
        assert (found[name] - x).abs().max() <= 1e-12 * x.abs().max(), name


@needs_compiler
@pytest.mark.slow
def test_gradients_are_those_of_autograd_at_all_sizes_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[tuple[str, bool]] = []
    name = Kernels.build_kernel_with_number
    monkeypatch.setattr(Kernels, "build_kernel_with_number", lambda *of: (named.append((of[1], of[3])), name(*of))[1])
    network = Trained().double()
    training = tpgen.compile_training(network, loss)
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)
    calls: list[int] = []
    network.register_forward_hook(lambda *_: calls.append(0))
    for atoms in (5, 3, 9, 5):
        (value, beside), (wanted, _) = training(*case(atoms)), loss(network, *case(atoms))
        torch.testing.assert_close((value, beside["mae"]), (wanted, loss(network, *case(atoms))[1]["mae"].detach()))
        assert not beside["mae"].requires_grad
        wanted.backward()
        expected = gradients(network)
        (0.5 * value).backward()  # as accumulation over two batches and scalers of gradients do
        (0.5 * training(*case(atoms))[0]).backward()
        assert_same(gradients(network), expected)
        value, _ = training(*case(atoms))
        value.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert ("x1 x2 w out x2.1 w.1 -> x1 w", EDGES) in named, "second derivatives of the convolution are one kernel"
    assert len(calls) == 8 + 2, "two of eager in each turn, and what writes the program down"
    one = {**case(5)[0], "edges": case(5)[0]["edges"][:, :1]}, case(5)[1]
    training(*one)[0].backward()  # one edge: the network itself
    found = gradients(network)
    loss(network, *one)[0].backward()
    assert_same(found, gradients(network))
    with torch.no_grad():
        assert not training(*case(5))[0].requires_grad
    again = copy.deepcopy(training)
    assert again.network is not network
    assert not {"_program", "_scripted", "_trained"} & set(vars(again)), "a copy knows nothing of a program it has not"
    again(*case(5))[0].backward()
    training(*case(5))[0].backward()
    assert_same(gradients(again.network), gradients(network))
    with pytest.raises(InputError, match="a step is for calls like its example"):
        training(*case(5), None)
    value, _ = training(*case(5))
    (slope,) = torch.autograd.grad(value, network.energy.linear.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        slope.sum().backward()


@needs_compiler
@pytest.mark.slow
def test_what_is_trained_may_change() -> None:
    network, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(5, 3)
    network[0].requires_grad_(False)
    training = tpgen.compile_training(network, squared, x)
    training(x).backward()
    assert list(gradients(network)) == ["2.weight", "2.bias"]
    network[0].requires_grad_(True)
    training(x).backward()
    found = gradients(network)
    squared(network, x).backward()
    torch.testing.assert_close(found, gradients(network))


def squared(network: nn.Module, x: Tensor) -> Tensor:
    return network(x).square().mean()


def of_a_rank(rank: int, folder: str) -> None:
    """One of two processes that train together."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        train(rank, folder)  # what holds the group is freed before the group is: freeing it last can wait for ever
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def train(rank: int, folder: str) -> None:
    network = Trained().double()
    training = DistributedDataParallel(tpgen.compile_training(network, loss))
    with training.no_sync():
        training(*case(5 + rank))[0].backward()
    training(*case(7 + rank))[0].backward()
    torch.save(gradients(network), f"{folder}/{rank}.pt")


@needs_compiler
@pytest.mark.slow
def test_two_processes_train_together_and_accumulate(tmp_path: Path) -> None:
    network = Trained().double()
    tpgen.compile_training(network, loss, *case(5))  # so that one process compiles it
    torch.multiprocessing.spawn(of_a_rank, (str(tmp_path),), nprocs=2)
    for atoms in (5, 6, 7, 8):
        (0.5 * loss(network, *case(atoms))[0]).backward()
    wanted = gradients(network)
    for rank in range(2):
        assert_same(torch.load(tmp_path / f"{rank}.pt"), wanted)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Normalised(Counting):
    """Writes into a parameter."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.norm.weight.clamp_(0.5)
        return super().forward(x)


def test_buffers_are_written_once_a_call(interpreted: list[int]) -> None:  # noqa: F811
    stock, network = Counting(), Counting()
    training = tpgen.compile_training(network, squared, torch.randn(5, 3))
    for rows in (5, 7, 5):
        x = torch.randn(rows, 3)
        training(x).backward()
        squared(stock, x).backward()
        found, wanted = ([*gradients(of).values(), *of.buffers()] for of in (network, stock))
        torch.testing.assert_close(found, wanted)
    assert network.norm.num_batches_tracked == 3


@pytest.mark.parametrize(
    ("network", "function", "error", "message"),
    [
        (Normalised(), squared, DeployError, "writes into norm.weight"),
        (nn.Linear(3, 3), lambda network, x: network(x), InputError, r"one number .* got a tensor of shape \(5, 3\)"),
        (nn.Linear(3, 3), lambda network, x: network(x).sum().item(), InputError, "one number .* got float"),
    ],
)
def test_what_is_no_training(network: nn.Module, function: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tpgen.compile_training(network, function, torch.randn(5, 3))


def test_a_loop_with_a_validation_is_that_of_eager(interpreted: list[int]) -> None:  # noqa: F811
    """As docs/train.md has it: a network that takes forces with ``create_graph=self.training``."""
    network, like = Trained().double(), Trained().double()
    training = tpgen.compile_training(network, loss)
    seen: list[float] = []
    for module, run in ((network, training), (like, lambda *batch: loss(like, *batch))):
        optimizer = torch.optim.Adam(module.parameters(), 1e-2)
        for _ in range(2):
            (run if run is training else module).train()
            for atoms in (5, 4):
                optimizer.zero_grad()
                value, _ = run(*case(atoms))
                value.backward()
                optimizer.step()
            (run if run is training else module).eval()
            with torch.no_grad():
                for atoms in (6, 3):
                    value, beside = run(*case(atoms))
                    assert not any(x.requires_grad for x in (value, beside["mae"]))
                    seen += [value.item(), beside["mae"].item()]
    half = len(seen) // 2
    torch.testing.assert_close(torch.tensor(seen[:half]), torch.tensor(seen[half:]))
    assert len(interpreted) == 2, "one with gradients, one without"


def test_evaluation_with_gradients_is_the_networks(interpreted: list[int]) -> None:  # noqa: F811
    network = Trained().double()
    training = tpgen.compile_training(network, loss).eval()
    with pytest.warns(UserWarning, match="has no gradients .*the network itself serves calls"):
        value, _ = training(*case(5))
    torch.testing.assert_close(value, loss(network, *case(5))[0])
    for of in (value, loss(network, *case(5))[0]):
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            of.backward()
    training(*case(5))  # warns once
    training.train()
    training(*case(5))[0].backward()
    assert len(interpreted) == 1


def test_a_frozen_network_has_its_loss(interpreted: list[int]) -> None:  # noqa: F811
    network, x = nn.Linear(3, 3).requires_grad_(False), torch.randn(5, 3)
    training = tpgen.compile_training(network, squared, x)
    torch.testing.assert_close(training(x), squared(network, x))
    with pytest.raises(RuntimeError, match="does not require grad"):
        training(x).backward()
    network.requires_grad_(True)
    training(x).backward()
    assert network.weight.grad is not None


def test_gradients_are_freed_as_those_of_autograd(interpreted: list[int]) -> None:  # noqa: F811
    network, x = nn.Linear(3, 3), torch.randn(5, 3)
    training = tpgen.compile_training(network, squared, x)
    for run in (training, lambda x: squared(network, x)):
        network.zero_grad()
        value = run(x)
        value.backward(retain_graph=True)
        once = network.weight.grad.clone()
        value.backward()
        torch.testing.assert_close(network.weight.grad, 2 * once)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            value.backward()


def test_a_validation_follows_another_network_and_another_loss(interpreted: list[int]) -> None:  # noqa: F811
    first, second = (nn.Linear(3, 1).double() for _ in range(2))
    training, x = (
        tpgen.compile_training(first, lambda network, x: network(x).square().sum()),
        torch.randn(5, 3).double(),
    )
    with torch.no_grad():
        training(x)
        training.network = second
        torch.testing.assert_close(training(x), second(x).square().sum())
        training.loss = lambda network, x: network(x).sum()
        torch.testing.assert_close(training(x), second(x).sum())
