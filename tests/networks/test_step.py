"""A network as one program: the same results at all sizes, and what is an error."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tests.networks.deployment.network import Potential, inputs
from tpgen.base.errors import InputError
from tpgen.networks import libraries
from tpgen.networks.named import _get_operator_that_calls_kernel_by_number
from tpgen.networks.signature import ParameterSlots, Signature
from tpgen.networks.step_trace import trace_evaluation

NAMES = ("positions", "elements", "edges")


class OfDicts(nn.Module):
    """The potential of these tests as the field's networks are called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.potential = Potential()

    def forward(self, data: dict[str, Tensor], scale: float = 1.0) -> dict[str, Tensor]:
        energy, forces = self.potential(*(data[name] for name in NAMES))
        return {**data, "energy": scale * energy, "forces": scale * forces}


def data(atoms: int) -> dict[str, Tensor]:
    return dict(zip(NAMES, inputs(atoms), strict=True))


@needs_compiler
@pytest.mark.slow
def test_one_program_computes_all_sizes_with_the_parameters_of_the_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TPGEN_CACHE_DIR", str(tmp_path))  # the first time is compiled, the second found
    network = OfDicts().double()
    calls: list[Any] = []
    network.register_forward_hook(lambda *_: calls.append(0))  # one put on later would have another program written
    step = tpgen.compile_step(network, data(5), scale=0.5, outputs=["energy", "forces"])
    calls.clear()

    def compare(atoms: int) -> None:
        wanted, found = network(data(atoms), scale=0.5), step(data(atoms), scale=0.5)
        assert list(found) == ["energy", "forces"]
        for name, x in found.items():
            torch.testing.assert_close(x, wanted[name], rtol=1e-12, atol=1e-12)

    for atoms in (5, 3, 9):
        compare(atoms)
    assert len(calls) == 3
    with torch.no_grad():  # as an optimiser does
        for p in network.parameters():
            p.mul_(1.1)
    compare(4)
    network.load_state_dict(copy.deepcopy(OfDicts().double().state_dict()))
    compare(7)
    turned = {
        **data(6),
        "edges": data(6)["edges"].t().contiguous().t(),
        "positions": data(6)["positions"].t().contiguous().t(),
    }
    torch.testing.assert_close(step(turned, scale=0.5)["forces"], network(data(6), scale=0.5)["forces"])
    calls.clear()
    step({**data(5), "edges": data(5)["edges"][:, :1]}, scale=0.5)  # one edge: the network itself
    assert len(calls) == 1
    assert step.state_dict().keys() == network.state_dict().keys()
    with pytest.raises(InputError, match="a step is for calls like its example"):
        step(data(5), scale=2.0)
    with pytest.raises(IndexError):  # the network's
        step({**data(5), "edges": data(5)["edges"] + 3}, scale=0.5)

    def refuse(*_: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(libraries, "_compile_graph", refuse)
    again = tpgen.compile_step(network, data(5), scale=0.5, outputs=["energy", "forces"])
    torch.testing.assert_close(again(data(6), scale=0.5)["forces"], network(data(6), scale=0.5)["forces"])


def test_outputs_must_be_there() -> None:
    with pytest.raises(InputError, match="outputs: the network returns no 'stress', it returns positions"):
        tpgen.compile_step(OfDicts().double(), data(5), outputs=["stress"])


def test_a_step_stays_a_step_in_both_modes() -> None:
    network = OfDicts()
    step = tpgen.compile_step(network)
    assert step.eval() is step
    assert not network.training
    assert step.train() is step
    assert network.potential.training


@needs_compiler
def test_a_name_without_a_kernel_is_an_error() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="a call of a compiled program has no kernel in this process"):
        _get_operator_that_calls_kernel_by_number()([x], 7)


def test_an_example_asks_for_no_gradients_of_parameters() -> None:
    """Else kernels would be built for them, which the program never calls."""
    network, asked = nn.Linear(3, 1), []

    def evaluate(x: Tensor) -> Tensor:
        asked.append(network.weight.requires_grad)
        return network(x)

    signature, tensors = Signature.split_call((torch.ones(5, 3),), {})
    trace_evaluation(evaluate, ParameterSlots(network, gradients=False), signature, tensors)
    assert asked == [False, False]  # the example, and while it is written down
    assert network.weight.requires_grad
