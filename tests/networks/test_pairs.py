"""Pairs that a program is given: found once for a list of edges, and anew where they are not those of a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tpgen
from tests.machine import needs_compiler
from tpgen.networks import recording
from tpgen.networks.recording import recorded_program

EDGES = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]])  # two images of an atom: which edges are a pair, vectors tell
SHIFTS = torch.tensor([[1.0, 0, 0], [-1.0, 0, 0], [0, 2.0, 0], [0, -2.0, 0]], dtype=torch.float64)


class OfPairs(nn.Module):
    """A sum over edges that a program computes from one of each pair."""

    def forward(self, positions: Tensor, edges: Tensor, shifts: Tensor) -> Tensor:
        vectors = positions[edges[1]] - positions[edges[0]] + shifts
        program: Any = recorded_program()
        if program is not None:
            program.sources["pairs"] = edges, vectors
            if found := program.given.get("pairs"):
                return 2 * self._energies(vectors.index_select(0, found.first)).sum()
        return self._energies(vectors).sum()

    def _energies(self, vectors: Tensor) -> Tensor:
        return vectors.square().sum(1).sin()


@needs_compiler
@pytest.mark.slow
def test_pairs_are_found_once_for_a_list_of_edges_and_anew_where_vectors_pair_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches: list[int] = []
    found = recording.FINDINGS["pairs"]

    def find(*sources: Tensor) -> Any:
        searches.append(0)
        return found.compute(*sources)

    monkeypatch.setitem(recording.FINDINGS, "pairs", found._replace(compute=find))
    network = OfPairs()
    positions = torch.rand(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    edges = EDGES.clone()
    step = tpgen.compile_step(network, positions, edges, SHIFTS)

    def count(edges: Tensor, shifts: Tensor, positions: Tensor = positions) -> int:
        before = len(searches)
        wanted = network(positions, edges, shifts)
        torch.testing.assert_close(step(positions, edges, shifts), wanted, rtol=1e-12, atol=1e-12)
        return len(searches) - before

    assert count(edges, SHIFTS) == 0  # found when the program was built
    assert count(edges, SHIFTS, positions + 0.3) == 0
    assert count(edges, SHIFTS[[0, 3, 2, 1]]) == 1  # the same list, other pairs
    assert count(edges, SHIFTS[[0, 3, 2, 1]]) == 0
    edges.copy_(EDGES.flip(0))  # written in place
    assert count(edges, -SHIFTS) == 1
    assert count(edges, SHIFTS.abs()) == 1  # none of them are pairs: the network itself
    assert count(edges, -SHIFTS) == 1
    assert count(edges[:, :2], -SHIFTS[:2]) == 1
