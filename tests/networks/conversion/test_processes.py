"""Converted networks in other processes: they arrive converted and compute the same numbers."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.networks.conversion.networks import Mixed, mixed_inputs
from tpgen.networks.conversion.convert import conversion_report, convert

STARTS = ("spawn", "forkserver")


def network() -> nn.Module:
    torch.manual_seed(0)
    return convert(Mixed().double())


def with_indices(network: nn.Module) -> tuple[int, list[Any]]:
    """How many modules compute with tpgen, and numbers and a gradient: as lists, which need no shared memory."""
    torch.manual_seed(1)
    x, y, w = mixed_inputs(dtype=torch.float64)
    results = network(x.requires_grad_(), y, w)
    (gradient,) = torch.autograd.grad(sum(r.square().sum() for r in results.values()), x)
    return len(conversion_report(network).replaced), [t.tolist() for t in (*results.values(), gradient)]


def answer(network: nn.Module, answers: Any) -> None:
    answers.put(with_indices(network))


def assert_alike(found: tuple[int, list[Any]], wanted: tuple[int, list[Any]]) -> None:
    assert found[0] == wanted[0] == 5
    for a, b in zip(found[1], wanted[1], strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("start", STARTS)
def test_a_pool_of_workers_gets_converted_networks(start: str) -> None:
    converted = network()
    with multiprocessing.get_context(start).Pool(1) as pool:
        found = pool.map(with_indices, [converted, converted])
    for each in found:
        assert_alike(each, with_indices(converted))


@pytest.mark.parametrize("start", STARTS)
def test_a_process_of_torch_gets_a_converted_network(start: str) -> None:
    """Its tensors stand in memory that both processes share."""
    converted = network()
    context = torch.multiprocessing.get_context(start)
    answers = context.SimpleQueue()
    process = context.Process(target=answer, args=(converted, answers))
    process.start()
    found = answers.get()
    process.join()
    assert process.exitcode == 0
    assert_alike(found, with_indices(converted))


class Computed(Dataset):
    """Rows that a worker computes with a converted network."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __len__(self) -> int:
        return 4

    def __getitem__(self, n: int) -> Tensor:
        generator = torch.Generator().manual_seed(n)
        x, y, w = (torch.randn(1, dim, dtype=torch.float64, generator=generator) for dim in (5, 4, 5))
        with torch.no_grad():
            return self.network(x, y, w)["squares"][0]


@pytest.mark.parametrize("start", [*STARTS, "fork"])
def test_workers_of_a_loader_compute_with_a_converted_network(start: str) -> None:
    rows = Computed(network())
    wanted = torch.stack([rows[n] for n in range(len(rows))])
    (found,) = DataLoader(rows, batch_size=4, num_workers=1, multiprocessing_context=start)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
