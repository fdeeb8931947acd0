"""The potential of the tour is a potential, and converting it changes nothing that it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from e3nn import o3

from tests.machine import needs_compiler
from tests.networks.served import served_calls
from tpgen.networks.conversion.convert import convert
from tpgen.tools.demo.potential import (
    KERNELS,
    PROGRAM,
    STOCK,
    Potential,
    atoms,
    convert_potential,
    time_potential,
)
from tpgen.tools.verification.verify import verify


def test_forces_turn_with_the_atoms() -> None:
    torch.manual_seed(0)
    model, (positions, elements, edges) = Potential(4).double(), atoms(2)
    positions, elements = positions.double(), elements.double()
    turn = o3.rand_matrix().double()
    found, turned = model(positions, elements, edges), model(positions @ turn.T, elements, edges)
    torch.testing.assert_close(turned["energy"], found["energy"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(turned["forces"], found["forces"] @ turn.T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change", [lambda network: network, convert])
def test_it_computes_under_torch_compile(change: Callable[[Potential], Potential]) -> None:
    torch.manual_seed(0)
    report = verify(change(Potential(4)), atoms(2), only=["compiled"])
    assert report.passed, str(report)
    assert report.finding("compiled", "forces").relative < 1e-5


def test_the_converted_potential_is_the_same() -> None:
    stock, network, found = convert_potential(4, 1)
    assert found.proof is not None
    assert found.proof.holds
    products = {"e3nn.TensorProduct", "e3nn.FullyConnectedTensorProduct", "e3nn.SphericalHarmonics"}
    assert {r.was for r in found.replaced} == {"e3nn.Linear", "e3nn.FullyConnectedNet"} | products
    assert not found.kept
    given = atoms(2)
    for name, x in network(*given).items():
        torch.testing.assert_close(x, stock(*given)[name], rtol=1e-4, atol=1e-5)


@needs_compiler
@pytest.mark.slow
def test_its_program_serves_the_calls_that_are_timed() -> None:
    stock, network, _ = convert_potential(4, 1)
    with served_calls() as calls:
        times = time_potential(stock, network, 2)
    assert [*times] == [STOCK, KERNELS, PROGRAM]
    assert len(calls) == 2 + times[PROGRAM].calls * len(times[PROGRAM].samples)
