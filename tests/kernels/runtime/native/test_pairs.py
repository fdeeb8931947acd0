"""Pairs among the edges of a graph, found in C++."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.machine import needs_compiler
from tpgen.kernels.runtime.native.pairs import EdgePairs, find_pairs

pytestmark = needs_compiler


def graph(nodes: int, edges: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Edges of a few vectors, so that many join the same nodes by equal lengths, and a row for each length."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(nodes, (2, edges), generator=generator)
    vectors = torch.randint(-1, 2, (edges, 3), generator=generator).to(dtype)
    return index, vectors, vectors.norm(dim=1, keepdim=True).expand(-1, 2)


def check(found: EdgePairs, index: Tensor, vectors: Tensor, rows: Tensor) -> None:
    edges = index.shape[1]
    assert sorted(found.order.tolist()) == list(range(edges))
    assert torch.equal(found.place[found.order], torch.arange(edges))
    assert torch.equal(found.number[found.first], torch.arange(found.numbers))
    assert torch.equal(found.number[found.second], torch.arange(found.pairs))
    one, other = found.first[: found.pairs], found.second
    assert torch.equal(index[:, one], index[:, other].flip(0))
    assert torch.equal(vectors[one], -vectors[other])
    assert torch.equal(rows[one], rows[other])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_pairs_are_reversed_negatives_and_none_is_left(nodes: int, dtype: torch.dtype) -> None:
    index, vectors, rows = graph(nodes, 200, dtype)
    found = find_pairs(index, vectors, rows)
    check(found, index, vectors, rows)
    alone = found.first[found.pairs :].tolist()
    key = {e: (*index[:, e].tolist(), *vectors[e].tolist()) for e in alone}
    back = {(j, i, -x, -y, -z) for i, j, x, y, z in key.values()} if nodes > 1 else set()
    of_no_length = {k for k in key.values() if not any(k[2:]) and k[0] == k[1]}
    assert not back & (set(key.values()) - of_no_length)


def test_an_edge_is_in_one_pair() -> None:
    index = torch.tensor([[0, 1, 0, 1, 0], [1, 0, 1, 0, 1]])
    vectors = torch.tensor([[1.0], [-1.0], [1.0], [-1.0], [1.0]]).expand(-1, 3)
    found = find_pairs(index, vectors, torch.ones(5, 1))
    assert (found.first.tolist(), found.second.tolist()) == ([0, 2, 4], [1, 3])


def test_equal_rows_do_not_make_a_pair_nor_do_vectors_alone() -> None:
    index = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]])
    vectors = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 2.0], [0, 0, -2.0]])
    assert find_pairs(index, vectors, torch.ones(4, 1)).pairs == 1
    assert find_pairs(index, vectors, torch.arange(4.0).unsqueeze(1)).pairs == 0


def test_images_of_one_atom_are_pairs_and_an_edge_of_no_length_is_none() -> None:
    vectors = torch.tensor([[1.0, 0, 0], [0, 0, 0], [-1.0, 0, 0], [0, -1.0, -0.0], [-0.0, 1.0, 0.0]])
    found = find_pairs(torch.zeros(2, 5, dtype=torch.int32), vectors, torch.ones(5, 1))
    assert (found.first.tolist(), found.second.tolist()) == ([0, 3, 1], [2, 4])


def test_no_edges_and_numbers_that_are_none() -> None:
    assert find_pairs(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, 3), torch.zeros(0, 4)).pairs == 0
    nan = torch.full((2, 3), torch.nan)
    assert find_pairs(torch.tensor([[0, 1], [1, 0]]), nan, torch.ones(2, 1)).pairs == 0


def test_many_edges_that_are_alike_take_no_longer_than_a_few_places_each() -> None:
    edges = 50_000
    index = torch.stack([torch.zeros(edges, dtype=torch.int64), torch.ones(edges, dtype=torch.int64)])
    found = find_pairs(index, torch.ones(edges, 3), torch.ones(edges, 1))
    assert found.pairs == 0
