"""A first call, and a proof, that compile their kernels side by side."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tpgen.kernels.build import rehearsal
from tpgen.networks.conversion.report import Conversion

pytestmark = needs_compiler


class Forces(nn.Module):
    """Products of unusual multiplicities, whose kernels no other test builds."""

    def __init__(self, mul: int, decides: bool = False) -> None:
        super().__init__()
        self.harmonics = o3.SphericalHarmonics([0, 1], normalize=True)
        self.linear = o3.Linear("1x0e+1x1o", f"{mul}x0e+{mul}x1o")
        self.product = o3.FullyConnectedTensorProduct(f"{mul}x0e+{mul}x1o", "1x0e+1x1o", f"{mul}x0e")
        self.register_buffer("calls", torch.zeros(()))
        self.decides, self.seen = decides, 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        self.seen += 1
        x = (x + 0.1 * torch.randn_like(x)).detach().requires_grad_()
        y = self.harmonics(x)
        h = self.linear(y)
        if self.decides and not h.detach().any():
            raise RuntimeError("nothing there")
        energy = self.product(h, y).sum()
        return energy, torch.autograd.grad(energy, x, create_graph=self.training)[0]


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """A list that gets an entry for each kernel that a rehearsal begins; the cache is empty."""
    by_pool: list[int] = []
    begin = rehearsal.start_tasks_if_in_dry_run

    def counted(tasks: list) -> bool:
        found = begin(tasks)
        by_pool.extend([0] * (found and len(tasks)))
        return found

    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tpgen.kernels.runtime.runtime.start_tasks_if_in_dry_run", counted)
    return by_pool


@pytest.mark.parametrize(("mul", "decides"), [(11, False), (13, True)], ids=["plain", "decides"])
def test_a_first_call_rehearses_and_leaves_nothing_else(rehearsed: list[int], mul: int, decides: bool) -> None:
    stock = Forces(mul, decides).double().eval()
    converted, x = tpgen.convert(deepcopy(stock)), torch.randn(5, 3, dtype=torch.float64)
    for n in range(2):
        torch.manual_seed(3)
        wanted = stock(x)
        torch.manual_seed(3)
        torch.testing.assert_close(converted(x), wanted, rtol=1e-10, atol=1e-10)
        assert (converted.calls, converted.seen) == (n + 1, n + 1)
        assert torch.equal(torch.get_rng_state(), _after(stock, x))
        assert len(rehearsed) >= (1 if decides else 4), "of forward and backward, before the first is there"


def _after(network: nn.Module, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    deepcopy(network)(x)
    return torch.get_rng_state()


def test_calls_whose_kernels_are_there_rehearse_nothing(rehearsed: list[int]) -> None:
    network, x = Forces(14).double(), torch.randn(5, 3, dtype=torch.float64)
    tpgen.convert(network, program=False)(x)
    assert not rehearsed
    tpgen.convert(deepcopy(tpgen.restore(network)))(x)
    assert not rehearsed


def test_hooks_hear_of_calls_alone(rehearsed: list[int]) -> None:
    network, heard = tpgen.convert(Forces(15).double()), []
    network.linear.register_forward_hook(lambda *_: heard.append(0))
    network(torch.randn(5, 3, dtype=torch.float64))
    assert len(heard) == 1
    assert not rehearsed


def test_a_proof_rehearses_all_orders(rehearsed: list[int]) -> None:
    reports: list[Conversion] = []
    x = torch.randn(5, 3, dtype=torch.float64)
    network = Forces(12)
    network.harmonics = o3.SphericalHarmonics([0, 1], normalize=False)  # forces are not zero
    tpgen.convert(network.double(), program=False, prove=(x,), report=reports.append)
    proof = reports[0].proof
    assert proof is not None
    assert proof.holds, str(proof)
    assert len(rehearsed) >= 6, "of forward, backward and second derivatives, before the first is there"
