"""Edges that change no result, added to calls of programs on a GPU; a tape stands in for CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.networks.tape import programs_as_on_gpu
from tpgen.networks.neutral_edges import NEUTRAL_LENGTH, EdgePadding, padded_size
from tpgen.networks.signature import Signature
from tpgen.networks.step import compile_step

CUTOFF = 5.0


class Springs(nn.Module):
    """An energy of edges within a cutoff, forces, and rows of edges."""

    def __init__(self, mean: bool = False) -> None:
        super().__init__()
        self.mean = mean
        self.weight = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, data: dict[str, Any]) -> dict[str, Tensor]:
        positions = data["positions"].detach().requires_grad_()
        senders, receivers = data["edge_index"]
        shifts = data["shifts"] if "shifts" in data else data["unit_shifts"] @ data["cell"]
        lengths = (positions[receivers] - positions[senders] + shifts).norm(dim=1)
        each = self.weight * ((CUTOFF - lengths).clamp(min=0) ** 3) * data.get("of_edges", 1.0)
        energy = each.mean() if self.mean else each.sum()
        (gradient,) = torch.autograd.grad(energy, positions)
        return {"energy": energy.detach(), "forces": -gradient, "edges": each.detach(), "index": data["edge_index"]}


def system(edges: int, unit: bool = False, seed: int = 0, dtype: torch.dtype = torch.int64) -> dict[str, Tensor]:
    """Seven atoms with random edges."""
    rng = torch.Generator().manual_seed(seed)
    data = {
        "positions": 4 * torch.rand(7, 3, generator=rng, dtype=torch.float64),
        "edge_index": torch.randint(0, 7, (2, edges), generator=rng).to(dtype),
        "cell": 4 * torch.eye(3, dtype=torch.float64),
    }
    cells = torch.randint(-1, 2, (edges, 3), generator=rng).double() + torch.tensor([1.5, 0, 0])
    return data | ({"unit_shifts": cells} if unit else {"shifts": 4 * cells})


def assert_served(step: Any, network: nn.Module, data: dict[str, Tensor]) -> None:
    wanted, found = network(data), step(data)
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-13, atol=1e-13)


def padding_of(step: Any) -> EdgePadding | None:
    return step._program.written.padding


@pytest.mark.parametrize("unit", [False, True], ids=["vectors", "cells"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_calls_with_other_numbers_of_edges_replay_one_recording(
    unit: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape, network = programs_as_on_gpu(monkeypatch), Springs()
    step = compile_step(network, system(1000, unit, dtype=dtype))
    for n, edges in enumerate(range(993, 1025)):
        assert_served(step, network, system(edges, unit, n, dtype))
    recorded = tape.recorded, tape.repeated
    for n in range(4):
        assert_served(step, network, system(1025, unit, n, dtype))
    assert (recorded, tape.recorded) == ((1, 30), 2)


def test_sizes_are_sixteen_in_an_octave() -> None:
    assert len({padded_size(n) for n in range(513, 1025)}) == 16
    for n in range(2000):
        assert n <= padded_size(n) <= max(n + n // 16, 1)


def test_added_edges_belong_to_all_atoms_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    programs_as_on_gpu(monkeypatch)
    given = system(1025, unit=True)
    step = compile_step(Springs(), given)
    padding = padding_of(step)
    assert padding is not None
    _, tensors = Signature.split_call((given,), {})
    added = padding.add(tensors)
    assert added is not None
    index, shifts = (next(x for x in added if x.shape == shape) for shape in ((2, 1088), (1088, 3)))
    counts = index[1, 1025:].bincount()
    assert counts.max() - counts.min() <= 1
    assert torch.equal(index[0, 1025:], index[1, 1025:])
    assert torch.equal(
        (shifts[1025:] @ given["cell"]).norm(dim=1), torch.full((63,), NEUTRAL_LENGTH, dtype=torch.float64)
    )


@pytest.mark.parametrize(
    "why", ["a mean over edges", "an unknown tensor of edges", "no vectors", "no positions", "twice"]
)
def test_networks_that_padding_would_change_run_without(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    programs_as_on_gpu(monkeypatch)
    network: Any = Springs(mean=why == "a mean over edges")

    def given(edges: int) -> dict[str, Any]:
        data: dict[str, Any] = system(edges)
        if why == "an unknown tensor of edges":
            data["of_edges"] = torch.linspace(0, 1, edges, dtype=torch.float64)
        if why == "twice":
            data["inner"] = {"edge_index": data["edge_index"].clone()}
        return data

    def renamed(data: dict[str, Any]) -> dict[str, Any]:
        names = {"no vectors": {"vectors": "shifts"}, "no positions": {"places": "positions"}}.get(why, {})
        return {names.get(name, name): x for name, x in data.items()}

    class Renamed(nn.Module):
        def forward(self, data: dict[str, Any]) -> dict[str, Tensor]:
            return network(renamed(data))

    back = {"no vectors": {"shifts": "vectors"}, "no positions": {"positions": "places"}}.get(why, {})
    outer = Renamed()
    step = compile_step(outer, {back.get(name, name): x for name, x in given(1000).items()})
    assert padding_of(step) is None
    assert_served(step, outer, {back.get(name, name): x for name, x in given(1003).items()})


@pytest.mark.parametrize(
    ("side", "grad", "padded"),
    [(0.0, False, False), (0.5, False, True), (400.0, False, True), (4.0, True, True), (float("nan"), False, False)],
)
def test_cells_without_length_are_left_and_edges_that_ask_for_gradients_are_not(
    side: float, grad: bool, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs_as_on_gpu(monkeypatch)
    given = system(1025, unit=True)
    padding = padding_of(compile_step(Springs(), given))
    assert padding is not None
    other = given | {"cell": side * torch.eye(3, dtype=torch.float64)}
    other["unit_shifts"] = given["unit_shifts"].clone().requires_grad_(grad)
    assert (padding.add(Signature.split_call((other,), {})[1]) is not None) == padded


@pytest.mark.parametrize(("ratio", "padded"), [(99.0, True), (101.0, False)])
def test_cells_of_very_different_sizes_are_left(ratio: float, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    programs_as_on_gpu(monkeypatch)
    given = system(1025, unit=True)
    padding = padding_of(compile_step(Springs(), given))
    assert padding is not None
    cells = torch.eye(3, dtype=torch.float64) * torch.tensor([1.0, ratio])[:, None, None]
    assert (padding.add(Signature.split_call((given | {"cell": cells},), {})[1]) is not None) == padded


@pytest.mark.parametrize("edges", [1024, 1025, 30_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mean", [False, True])
def test_a_trial_adds_many_edges_to_any_example(
    mean: bool, dtype: torch.dtype, edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs_as_on_gpu(monkeypatch)
    given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in system(edges).items()}
    step = compile_step(Springs(mean).to(dtype), given)
    assert (padding_of(step) is None) == mean


def test_programs_on_a_cpu_add_no_edges() -> None:
    step = compile_step(Springs(), system(1000))
    assert padding_of(step) is None
    assert_served(step, Springs(), system(1003))
